// A line: a thread that accepts connections, reads requests whose heads are known, and writes answers.
//
// One thread owns all connections of a line. This is what all protocols share; `express_http.hpp` and
// `express_grpc.hpp` say how each of them reads and writes.

#pragma once

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
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
constexpr double NAP_SHARE = 0.25, LEAST_NAP_S = 0.001;
constexpr uint64_t WAKE = ~0ull, LISTENERS = ~0ull - 64;  // tokens of what is no connection
constexpr int INDEX_BITS = 24;

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
        ++size_;
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
        --size_;
    }
    template <class Visit>
    void each(Visit visit) {  // which may remove things, and add some
        for (size_t at = 0; at < things_.size(); ++at)
            if (things_[at]->token) visit(*things_[at]);
    }
    size_t size() const { return size_; }

  private:
    std::deque<std::unique_ptr<Thing>> things_;
    std::vector<uint32_t> unused_;
    uint64_t generation_ = 0;
    size_t size_ = 0;
};

// What connections of all protocols have.
struct Socket {
    int fd = -1;
    uint64_t token = 0;
    bool is_readable = true, is_queued = false;
    std::string address;
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
        std::vector<Command> commands;
        commands.push_back({Command::STOP});
        tell(std::move(commands));
        thread_.join();
    }

  protected:
    double now_s_ = 0.0;
    bool is_draining_ = false;
    Table<Connection> connections_;
    std::unordered_map<int64_t, std::shared_ptr<Known>> known_;

    virtual void opened(Connection& one) = 0;
    virtual void closing(Connection& one) = 0;
    virtual void too_many(int fd, std::string address, int why) = 0;  // 1: in all; 2: from this address
    virtual void react(Connection& one, uint32_t events) = 0;
    virtual void go_on(Connection& one) = 0;  // it was queued
    virtual void check(Connection& one) = 0;  // each is looked at regularly
    virtual void drain(Connection& one) = 0;
    virtual bool is_idle(const Connection& one) const = 0;
    virtual void carry_out(Command& command) = 0;
    virtual void learn(Command& command) = 0;
    virtual void forget() = 0;
    virtual void look() {}

    Connection& open_up(int fd, std::string address) {
        Connection& one = connections_.add();
        one.fd = fd;
        one.address = std::move(address);
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
        count_out(one.address);
        release(one);
    }
    void unwatch(int fd) { epoll_ctl(poll_fd_, EPOLL_CTL_DEL, fd, nullptr); }

    void queue(Connection& one) {
        if (one.is_queued) return;
        one.is_queued = true;
        again_.push_back(one.token);
    }

    void count_out(const std::string& address) {
        --total_;
        auto found = by_address_.find(address);
        if (found != by_address_.end() && --found->second <= 0) by_address_.erase(found);
    }

  private:
    std::vector<int> listeners_;
    int poll_fd_;
    std::thread thread_;
    ByText<int64_t> by_address_;  // connections here and lent
    int64_t total_ = 0;           // likewise
    std::vector<uint64_t> again_;
    double swept_s_ = 0.0, rests_until_s_ = 0.0;
    bool is_stopped_ = false, is_resting_ = false;

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
            if (has_commands()) timeout_ms = 0;
            int count = epoll_wait(poll_fd_, events, 128, timeout_ms);
            sleeps_.store(false);
            now_s_ = monotonic_s();
            for (auto& one : commands()) obey(one);
            for (int at = 0; at < count; ++at) react(events[at]);
            go_on();
            if (now_s_ > swept_s_ + SWEEP_S) sweep();
            publish(now_s_);
            nap();
        }
        connections_.each([this](Connection& one) { shut(one); });
    }

    // While requests only gather, let events gather too: each time this thread wakes, it takes a core from a server.
    void nap() {
        double seconds = NAP_SHARE * hold_s.load();
        if (seconds < LEAST_NAP_S || !again_.empty()) return;
        timespec time{0, long(1e9 * seconds)};
        nanosleep(&time, nullptr);
    }

    int timeout() {
        if (!again_.empty() || now_s_ < awake_until_s_) return 0;
        double left_s = swept_s_ + SWEEP_S - now_s_;
        if (waits_to_notify_) left_s = std::min(left_s, notify_at_s() - now_s_);
        return std::max(0, int(std::ceil(1e3 * left_s)));
    }

    void obey(Command& one) {
        switch (one.kind) {
            case Command::GONE: count_out(one.text); break;
            case Command::LEARN: learn(one), known_[one.known->number] = one.known; break;
            case Command::FORGET: forget(), known_.clear(); break;
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
        if (Connection* one = connections_.find(event.data.u64)) react(*one, event.events);
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

    void sweep() {
        swept_s_ = now_s_;
        if (is_resting_ && now_s_ > rests_until_s_ && !is_draining_) {
            is_resting_ = false;
            listen();
        }
        connections_.each([this](Connection& one) { check(one); });
        look();
    }

    void drain() {
        is_draining_ = true;
        for (int fd : listeners_) unwatch(fd);
        connections_.each([this](Connection& one) { drain(one); });
    }

    // -- new connections

    void accept_all(int listener) {
        while (!is_draining_) {
            sockaddr_storage from{};
            socklen_t length = sizeof from;
            int fd = accept4(listener, reinterpret_cast<sockaddr*>(&from), &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
            if (fd < 0) {
                if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) rest();
                return;
            }
            int yes = 1;
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
            std::string address = text_of(from);
            int why = count_in(address);
            if (why) too_many(fd, std::move(address), why);
            else open_up(fd, std::move(address));
        }
    }

    void rest() {  // a listener that cannot be served would be reported again and again
        for (int fd : listeners_) unwatch(fd);
        is_resting_ = true;
        rests_until_s_ = now_s_ + REST_S;
    }

    static std::string text_of(const sockaddr_storage& from) {
        char text[INET6_ADDRSTRLEN] = "";
        if (from.ss_family == AF_INET)
            inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(from).sin_addr, text, sizeof text);
        else if (from.ss_family == AF_INET6)
            inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(from).sin6_addr, text, sizeof text);
        return text;
    }

    int count_in(const std::string& address) {
        int64_t& own = by_address_[address];
        ++own, ++total_;
        if (own > limits.per_address.load() && !make_room(&address)) return 2;
        if (total_ > limits.connections.load() && !make_room(nullptr)) return 1;
        return 0;
    }

    bool make_room(const std::string* address) {
        Connection* longest = nullptr;
        connections_.each([&](Connection& one) {
            if (is_idle(one) && (!address || one.address == *address) && (!longest || one.since_s < longest->since_s))
                longest = &one;
        });
        if (!longest || now_s_ < longest->since_s + ROOM_AFTER_S) return false;
        shut(*longest);
        return true;
    }
};

}  // namespace
