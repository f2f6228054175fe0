// A line: a thread that accepts connections, reads requests whose heads are known, and writes answers.
//
// One thread owns all connections of a line. This is what all protocols share; `express_http.hpp` and
// `express_grpc.hpp` say how each of them reads and writes.
//
// What clients can make the thread and Python keep is bounded, in total and for each address: connections, bytes,
// calls, and what waits for Python. A client that has had its share of a round is set aside: it is read again once
// Python has taken what waits. So a flood slows down whoever sends it, and costs others little. A proxy, whose
// clients share its address, may have all that there is.

#pragma once

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cmath>
#include <deque>
#include <thread>

#include "express_mailbox.hpp"

namespace {

constexpr double PROMPT_S = 1.0;      // a client that takes longer to send is left to Python
constexpr double SWEEP_S = 0.25;
constexpr double ROOM_AFTER_S = 5.0;  // at the limit, a connection that was idle for longer makes room
constexpr double REST_S = 0.1;        // how long not to accept after the system had no more files
constexpr double PAUSE_S = 0.02;      // how long not to accept while much waits for Python
constexpr int ACCEPTS = 64;           // connections before those that are open have their turn
constexpr int TURN = 16;              // reads or requests of one connection before others have their turn
constexpr int64_t NOTICES = 256;      // how much may wait for Python; one address may have half of it
constexpr size_t MOST_ACCOUNTS = 1 << 16;
constexpr double NAP_SHARE = 0.25, LEAST_NAP_S = 0.001;
constexpr uint64_t WAKE = ~0ull, LISTENERS = ~0ull - 64;  // tokens of what is no connection
constexpr int INDEX_BITS = 24;
constexpr double PROXY_SHARE = 64.0;  // how many clients a proxy may reset calls for

struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
template <class Value>
using ByText = std::unordered_map<std::string, Value, TextHash, std::equal_to<>>;

// Things with tokens: a token is never used twice, so it cannot mean what came later.
template <class Thing>
class Table {
  public:
    Thing& add() {
        uint32_t index;
        if (unused_.empty()) {
            index = uint32_t(things_.size());
            things_.push_back(std::make_unique<Thing>());
        } else {
            index = unused_.back();
            unused_.pop_back();
        }
        Thing& one = *things_[index];
        one = Thing{};
        one.token = (++generation_ << INDEX_BITS) | index;
        return one;
    }
    Thing* find(uint64_t token) {
        size_t index = token & ((1u << INDEX_BITS) - 1);
        if (!token || index >= things_.size()) return nullptr;
        return things_[index]->token == token ? things_[index].get() : nullptr;
    }
    void remove(Thing& one) {
        unused_.push_back(uint32_t(one.token & ((1u << INDEX_BITS) - 1)));
        one = Thing{};
    }
    template <class Visit>
    void each(Visit visit) {  // which may remove things, and add some
        for (size_t at = 0; at < things_.size(); ++at)
            if (things_[at]->token) visit(*things_[at]);
    }

  private:
    std::deque<std::unique_ptr<Thing>> things_;
    std::vector<uint32_t> unused_;
    uint64_t generation_ = 0;
};

// What may happen so often at once, and so often per second.
struct Allowance {
    double most, per_s, left = most, at_s = 0.0;

    void renew(double now_s) {
        left = std::min(most, left + per_s * (now_s - at_s));
        at_s = now_s;
    }
    bool take(double now_s) {
        renew(now_s);
        if (left < 1.0) return false;
        left -= 1.0;
        return true;
    }
};

// What one client address has here. It outlives its connections until its allowance is whole again.
struct Account {
    std::string address;
    bool is_proxy = false;
    int64_t connections = 0;  // here and lent
    int64_t calls = 0;        // under way, with their messages
    int64_t held_bytes = 0;
    uint64_t round = 0;  // in which these wait for Python:
    int64_t notices = 0, notice_bytes = 0;
    Allowance resets{0.0, 0.0};
    std::deque<uint64_t> unsent;  // calls whose messages have not come, the oldest first, and some that are over
    int64_t unsent_calls = 0;

    // How much of a limit it may have: half of it, so that no client can take all.
    int64_t share(int64_t limit) const { return is_proxy ? limit : (limit + 1) / 2; }
};

// What connections of all protocols have.
struct Socket {
    int fd = -1;
    uint64_t token = 0;
    bool is_readable = true, is_queued = false, is_aside = false;
    bool sends_no_more = false;  // its client has ended its side
    Account* account = nullptr;
    double since_s = 0.0;  // when what it does now began; idle is something, too
};

template <class Connection>
class Line : public Mailbox {
  public:
    explicit Line(std::vector<int> listeners)
        : listeners_(std::move(listeners)), poll_fd_(epoll_create1(EPOLL_CLOEXEC)) {
        listen();
        watch(wake_fd_, WAKE, EPOLLIN);
    }
    ~Line() override { close(poll_fd_); }

    void start() override {
        thread_ = std::thread([this] { run(); });
    }
    void stop() override {
        if (!thread_.joinable()) return;
        tell(Command{Command::STOP});
        thread_.join();
    }

  protected:
    double now_s_ = 0.0;
    bool is_draining_ = false;
    Table<Connection> connections_;
    std::unordered_map<int64_t, std::shared_ptr<Known>> known_;

    virtual void opened(Connection& one) = 0;
    virtual void closing(Connection& one) = 0;
    virtual void too_many(int fd, Account& account, int why) = 0;  // 1: in all; 2: from this address
    virtual void react(Connection& one, bool has_room) = 0;  // it can be read, or written again
    virtual void go_on(Connection& one) = 0;                 // it was queued
    virtual void check(Connection& one) = 0;  // each is looked at regularly
    virtual void drain(Connection& one) = 0;
    virtual bool is_idle(const Connection& one) const = 0;
    virtual void carry_out(Command& command) = 0;
    virtual void learn(Command& command) = 0;
    virtual void forget() = 0;
    virtual void look() {}

    static int64_t limit_of(const std::atomic<double>& setting) { return int64_t(setting.load()); }

    Connection& open_up(int fd, Account& account) {
        Connection& one = connections_.add();
        one.fd = fd;
        one.account = &account;
        one.since_s = now_s_;
        ++open;
        watch(fd, one.token, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
        opened(one);
        return one;
    }
    void release(Connection& one) {  // the connection leaves this thread, open or closed
        closing(one);
        connections_.remove(one);
        --open;
    }
    void shut(Connection& one) {
        close(one.fd);
        Account& account = *one.account;
        release(one);
        count_out(account);
    }
    bool lost(Connection& one) {  // always false: nothing more can be done with it
        shut(one);
        return false;
    }
    void cut(Connection& one, Cut why) {  // its client makes work for nothing
        ++cuts[why];
        shut(one);
    }
    // Read what has come: how much, 0 if that is nothing, or -1 if the client is gone.
    static ssize_t read_some(Socket& one, void* to, size_t room) {
        ssize_t count;
        do count = recv(one.fd, to, room, 0);
        while (count < 0 && errno == EINTR);
        one.is_readable = size_t(count) == room || (count > 0 && one.sends_no_more);  // its end is reported once
        if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
        return count > 0 ? count : -1;
    }
    // Send what the system takes: how much, 0 if that is nothing, or -1 if the client is gone.
    static ssize_t send_some(const Socket& one, std::string_view text) {
        ssize_t count;
        do count = send(one.fd, text.data(), text.size(), MSG_NOSIGNAL);
        while (count < 0 && errno == EINTR);
        return count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? 0 : count;
    }
    // Throw away what still comes from a client that has its last answer: closing earlier would reset what it reads.
    void see_off(Connection& one) {
        char thrown_away[16384];
        for (int turn = 0; turn < TURN; ++turn) {
            ssize_t count = read_some(one, thrown_away, sizeof thrown_away);
            if (count < 0) return shut(one);
            if (!one.is_readable) return;
        }
        queue(one);
    }
    void unwatch(int fd) { epoll_ctl(poll_fd_, EPOLL_CTL_DEL, fd, nullptr); }

    void queue(Connection& one) {
        if (one.is_queued) return;
        one.is_queued = true;
        again_.push_back(one.token);
    }

    // -- what an address has here

    Account& account_of(const std::string& address) {
        auto [found, is_new] = accounts_.try_emplace(address);
        Account& account = found->second;
        if (is_new) {
            account.address = address;
            set_limits(account);
        }
        return account;
    }
    void turn_away(int fd, Account& account) {
        close(fd);
        count_out(account);
    }
    void count_out(Account& account) {
        --total_;
        --account.connections;
        forget(account);
    }
    template <class Visit>
    void each_account(Visit visit) {
        for (auto& [_, account] : accounts_) visit(account);
    }
    void hold(Account& account, size_t& held, size_t bytes) {  // so many bytes of a request are here now
        int64_t more = int64_t(bytes) - int64_t(held);
        held_bytes += more;
        account.held_bytes += more;
        held = bytes;
    }
    bool is_full(const Account& account) const {  // too many bytes of requests are here
        int64_t limit = limit_of(settings.held_bytes);
        int64_t own = account.held_bytes + (account.round == round_.load() ? account.notice_bytes : 0);
        return held_bytes.load() > limit || own > account.share(limit);
    }

    // Leave something to Python.
    void notify(Account& account, Notice notice) {
        begin_round(account);
        ++account.notices, ++notices_;
        account.notice_bytes += int64_t(notice.held);
        fresh_.notices.push_back(std::move(notice));
    }
    void tell_left(Account& account, uint64_t token) {  // nobody waits for this any more
        begin_round(account);
        ++account.notices, ++notices_;
        fresh_.left.push_back(token);
    }
    bool has_room(Account& account) {  // for more that waits for Python
        begin_round(account);
        return notices_ < NOTICES && account.notices < account.share(NOTICES);
    }
    // Whether this client must wait until Python has taken what waits; then it goes on by itself.
    bool set_aside(Connection& one) {
        if (has_room(*one.account)) return false;
        if (!one.is_aside) aside_.push_back(one.token);
        return one.is_aside = true;
    }

  private:
    std::vector<int> listeners_;
    int poll_fd_;
    std::thread thread_;
    ByText<Account> accounts_;
    std::unordered_set<std::string> proxies_;
    int64_t total_ = 0;  // connections here and lent
    uint64_t in_round_ = 0, taken_up_ = 0;
    int64_t notices_ = 0;  // of this round
    std::vector<uint64_t> again_, aside_;
    double swept_s_ = 0.0, rests_until_s_ = 0.0;
    bool is_stopped_ = false, is_resting_ = false;

    void set_limits(Account& account) {
        account.is_proxy = proxies_.count(account.address);
        double per_s = settings.resets_per_s.load() * (account.is_proxy ? PROXY_SHARE : 1.0);
        account.resets = {2.0 * per_s, per_s};
    }

    void begin_round(Account& account) {
        uint64_t round = round_.load();
        if (in_round_ != round) in_round_ = round, notices_ = 0;
        if (account.round != round) account.round = round, account.notices = account.notice_bytes = 0;
    }

    void forget(Account& account) {  // if nothing of it is here
        if (account.connections > 0) return;
        account.resets.renew(now_s_);
        bool is_whole = account.resets.left >= account.resets.most;
        if (is_whole || accounts_.size() > MOST_ACCOUNTS) accounts_.erase(accounts_.find(account.address));
    }

    void watch(int fd, uint64_t token, uint32_t events) {
        epoll_event event{};
        event.events = events;
        event.data.u64 = token;
        epoll_ctl(poll_fd_, EPOLL_CTL_ADD, fd, &event);
    }

    void listen() {
        for (size_t at = 0; at < listeners_.size(); ++at) watch(listeners_[at], LISTENERS + at, EPOLLIN);
    }

    void run() {
        epoll_event events[128];
        while (!is_stopped_) {
            int timeout_ms = timeout();
            sleeps_.store(true);
            if (has_commands() || (!aside_.empty() && round_.load() != taken_up_)) timeout_ms = 0;
            int count = epoll_wait(poll_fd_, events, 128, timeout_ms);
            sleeps_.store(false);
            now_s_ = monotonic_s();
            for (auto& one : commands()) obey(one);
            for (int at = 0; at < count; ++at) react(events[at]);
            if (round_.load() != taken_up_) take_up();
            go_on();
            if (now_s_ > swept_s_ + SWEEP_S) sweep();
            rest_no_more();
            if (!aside_.empty()) waits_for_round_.store(true);
            publish(now_s_);
            nap();
        }
        connections_.each([this](Connection& one) { shut(one); });
    }

    // While requests only gather, let events gather too: each time this thread wakes, it takes a core from a server.
    void nap() {
        double seconds = NAP_SHARE * settings.hold_s.load();
        if (seconds < LEAST_NAP_S || !again_.empty()) return;
        timespec time{0, long(1e9 * seconds)};
        nanosleep(&time, nullptr);
    }

    int timeout() {
        if (!again_.empty() || now_s_ < awake_until_s_) return 0;
        double left_s = (is_resting_ ? std::min(swept_s_ + SWEEP_S, rests_until_s_) : swept_s_ + SWEEP_S) - now_s_;
        if (waits_to_notify_) left_s = std::min(left_s, notify_at_s() - now_s_);
        return std::max(0, int(std::ceil(1e3 * left_s)));
    }

    void obey(Command& one) {
        switch (one.kind) {
            case Command::GONE: count_out(account_of(one.text)); break;
            case Command::PROXY: proxies_.insert(one.text); break;
            case Command::LIMITS: each_account([this](Account& account) { set_limits(account); }); break;
            case Command::LEARN: learn(one), known_[one.known->number] = one.known; break;
            case Command::FORGET: forget(), known_.clear(), proxies_.clear(); break;
            case Command::CLOSE_FOR:
                if (auto found = known_.find(int64_t(one.token)); found != known_.end()) {
                    found->second->closed_until_s = one.until_s;
                    found->second->refusal = std::move(one.text);
                }
                break;
            case Command::DRAIN: drain(); break;
            case Command::STOP: is_stopped_ = true; break;
            default: carry_out(one);
        }
    }

    void react(const epoll_event& event) {
        if (event.data.u64 == WAKE) return silence(wake_fd_);
        if (event.data.u64 >= LISTENERS) return accept_all(listeners_[event.data.u64 - LISTENERS]);
        Connection* one = connections_.find(event.data.u64);
        if (!one) return;
        if (event.events & (EPOLLHUP | EPOLLERR)) return shut(*one);
        one->is_readable |= bool(event.events & (EPOLLIN | EPOLLRDHUP));
        one->sends_no_more |= bool(event.events & EPOLLRDHUP);
        react(*one, event.events & EPOLLOUT);
    }

    void go_on() {
        std::vector<uint64_t> tokens;
        std::swap(tokens, again_);
        for (uint64_t token : tokens)
            if (Connection* one = connections_.find(token)) {
                one->is_queued = false;
                go_on(*one);
            }
    }

    // Go on with clients that were set aside, in the order in which they were.
    void take_up() {
        taken_up_ = round_.load();
        std::vector<uint64_t> tokens;
        std::swap(tokens, aside_);
        for (uint64_t token : tokens)
            if (Connection* one = connections_.find(token)) one->is_aside = false, queue(*one);
    }

    void sweep() {
        swept_s_ = now_s_;
        connections_.each([this](Connection& one) { check(one); });
        look();
        for (auto at = accounts_.begin(); at != accounts_.end();) forget((at++)->second);
    }

    void drain() {
        is_draining_ = true;
        for (int fd : listeners_) unwatch(fd);
        connections_.each([this](Connection& one) { drain(one); });
    }

    // -- new connections

    void accept_all(int listener) {
        for (int turn = 0; turn < ACCEPTS && !is_draining_; ++turn) {
            if (in_round_ == round_.load() && notices_ >= NOTICES) return rest(PAUSE_S);
            sockaddr_storage from{};
            socklen_t length = sizeof from;
            int fd = accept4(listener, reinterpret_cast<sockaddr*>(&from), &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
            if (fd < 0) {
                if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) rest(REST_S);
                return;
            }
            int yes = 1;
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
            Account& account = account_of(text_of(from));
            int why = count_in(account);
            if (why) ++cuts[CONNECTIONS], too_many(fd, account, why);
            else open_up(fd, account);
        }
    }

    void rest(double seconds) {  // a listener that cannot be served would be reported again and again
        if (is_resting_) return;
        for (int fd : listeners_) unwatch(fd);
        is_resting_ = true;
        rests_until_s_ = now_s_ + seconds;
    }

    void rest_no_more() {
        if (!is_resting_ || now_s_ < rests_until_s_ || is_draining_) return;
        is_resting_ = false;
        listen();
    }

    // An address as text; all of a network of version 6, which one client may have, count as one.
    static std::string text_of(const sockaddr_storage& from) {
        char text[INET6_ADDRSTRLEN] = "";
        if (from.ss_family == AF_INET)
            inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(from).sin_addr, text, sizeof text);
        if (from.ss_family == AF_INET6) {
            in6_addr address = reinterpret_cast<const sockaddr_in6&>(from).sin6_addr;
            if (!IN6_IS_ADDR_LOOPBACK(&address)) memset(address.s6_addr + 8, 0, 8);
            inet_ntop(AF_INET6, &address, text, sizeof text);
        }
        return text;
    }

    int count_in(Account& account) {
        ++account.connections, ++total_;
        int64_t most = limit_of(settings.connections);
        int64_t own = account.is_proxy ? most : limit_of(settings.connections_per_address);
        if (account.connections > own && !make_room(&account)) return 2;
        if (total_ > most && !make_room(nullptr) && !displace(account)) return 1;
        return 0;
    }

    // Where all places are taken, an address with few connections gets one of the address that has most.
    bool displace(const Account& account) {
        return shut_first(
            [&](const Connection& one) { return one.account->connections > 2 * account.connections; },
            [](const Connection& one, const Connection& other) {
                bool is_longer = one.account == other.account && one.since_s < other.since_s;
                return one.account->connections > other.account->connections || is_longer;
            });
    }

    bool make_room(const Account* account) {
        return shut_first(
            [&](const Connection& one) {
                return (!account || one.account == account) && now_s_ >= one.since_s + ROOM_AFTER_S;
            },
            [](const Connection& one, const Connection& other) { return one.since_s < other.since_s; });
    }

    // Shut the first of the idle connections that may be shut; false if there is none.
    template <class May, class Before>
    bool shut_first(May may, Before before) {
        Connection* first = nullptr;
        connections_.each([&](Connection& one) {
            if (is_idle(one) && may(one) && (!first || before(one, *first))) first = &one;
        });
        if (first) shut(*first);
        return first;
    }
};

}  // namespace
