// The thread of the express line: accepts connections, reads requests whose heads are known, writes answers.
//
// `express.cpp` says what it is for. One thread owns all connections. Python and the thread exchange vectors under
// a lock, and wake each other with eventfds, written only if the other side sleeps.

#pragma once

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

constexpr size_t FIRST_BYTES = 4096;
constexpr size_t LONGEST_HEAD_BYTES = 16384;  // a longer head is lent
constexpr double PROMPT_S = 1.0;              // a client that takes longer to send or to read is lent
constexpr double SWEEP_S = 0.25;
constexpr double ROOM_AFTER_S = 5.0;  // at the limit, a connection that was idle for longer makes room
constexpr double REST_S = 0.1;        // how long not to accept after the system had no more files
constexpr double NAP_SHARE = 0.25, LEAST_NAP_S = 0.001;
constexpr int TURN = 16;              // requests of one connection before others have their turn
constexpr uint64_t WAKE = ~0ull, LISTENERS = ~0ull - 64;  // tokens of what is no connection
constexpr int INDEX_BITS = 24;

double monotonic_s() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

// Bytes that grow without being set to zero first.
struct Bytes {
    std::unique_ptr<char[]> data;
    size_t size = 0, room = 0;

    void reserve(size_t wanted) {
        if (wanted <= room) return;
        std::unique_ptr<char[]> larger(new char[wanted]);
        if (size) memcpy(larger.get(), data.get(), size);
        data = std::move(larger);
        room = wanted;
    }
    std::string_view view(size_t from, size_t count) const { return {data.get() + from, count}; }
};

struct Part {
    size_t start, size;  // of an input tensor, behind the JSON
};

// What a head and a JSON together mean.
struct Known {
    int64_t number = 0;
    int64_t examples = 1;
    double longest_s = 0.0;  // how much later than the first of a group a request may have come
    std::vector<Part> parts;
    double closed_until_s = 0.0;  // until then it is refused here
    std::string refusal;
};

struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
template <class Value>
using ByText = std::unordered_map<std::string, Value, TextHash, std::equal_to<>>;

struct Head {
    std::string text;
    size_t body_bytes = 0, json_bytes = 0;
    bool is_stale = false;
    ByText<std::shared_ptr<Known>> calls;  // by JSON
};

enum class Stage { READING, WAITING, WRITING };

struct Connection {
    int fd = -1;
    uint64_t token = 0;
    Stage stage = Stage::READING;
    bool is_readable = true, is_queued = false;
    std::string address;
    Bytes in;
    std::shared_ptr<Head> head;  // of the request that arrives now, then a guess for the next one
    bool is_head_known = false;
    size_t need = 0;  // bytes of the whole request, once its head is known
    size_t expected = FIRST_BYTES;
    size_t held = 0;
    std::string out;
    size_t out_at = 0;
    double since_s = 0.0;  // when the request, or the answer, or the idle time began
};

// A request that is complete.
struct Ready {
    uint64_t token;
    std::shared_ptr<Known> known;
    double arrived_s;
    Bytes bytes;
    size_t raw_at;  // where its tensors begin
};

// A connection that goes to Python, with what has arrived of the next request and what is not yet written.
struct Lent {
    int fd;
    std::string in, out, address;
    int why;  // 0: unusual; 1: too many connections; 2: too many from its address
};

struct Command {
    enum Kind { ANSWER, ADOPT, GONE, LEARN, FORGET, CLOSE_FOR, DRAIN, STOP } kind;
    uint64_t token = 0;
    int fd = -1;
    std::string text = {};
    std::shared_ptr<Head> head = {};
    std::shared_ptr<Known> known = {};
    double until_s = 0.0;
};

struct Limits {
    std::atomic<int64_t> connections{2048}, per_address{1024}, held_bytes{1 << 30};
    std::atomic<double> idle_s{75.0};
};

struct Published {
    std::vector<Ready> ready;
    std::vector<Lent> lent;
    std::vector<uint64_t> left;
    std::unordered_map<int64_t, int64_t> refused;  // requests, by what they meant
};

class Line {
  public:
    Limits limits;
    std::atomic<double> hold_s{0.0};  // how long Python may be left alone after it took requests
    std::atomic<double> awake_s{0.0};  // how long not to sleep while requests wait for their answers
    std::atomic<int64_t> held_bytes{0}, open{0};
    int notify_fd;

    Line(std::vector<int> listeners)
        : notify_fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
          listeners_(std::move(listeners)),
          wake_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
          poll_fd_(epoll_create1(EPOLL_CLOEXEC)) {
        listen();
        watch(wake_fd_, WAKE, EPOLLIN);
        thread_ = std::thread([this] { run(); });
    }

    ~Line() {
        stop();
        for (int fd : {notify_fd, wake_fd_, poll_fd_}) close(fd);
    }

    void stop() {
        if (!thread_.joinable()) return;
        tell({Command{Command::STOP}});
        thread_.join();
    }

    void tell(std::vector<Command> commands) {
        {
            std::lock_guard lock(inbox_lock_);
            for (auto& one : commands) inbox_.push_back(std::move(one));
        }
        if (sleeps_.exchange(false)) ring(wake_fd_);
    }

    Published take(bool with_requests) {
        uint64_t count;
        (void)!read(notify_fd, &count, sizeof count);
        Published taken;
        std::lock_guard lock(outbox_lock_);
        notified_ = false;
        is_expected_ = !with_requests && !outbox_.ready.empty();
        if (with_requests) {
            std::swap(taken, outbox_);
            last_take_s_.store(monotonic_s());
        } else {
            std::swap(taken.lent, outbox_.lent);
            std::swap(taken.left, outbox_.left);
        }
        return taken;
    }

  private:
    std::vector<int> listeners_;
    int wake_fd_, poll_fd_;
    std::thread thread_;
    std::mutex inbox_lock_, outbox_lock_;
    std::vector<Command> inbox_;
    Published outbox_, fresh_;
    bool notified_ = false;     // with outbox_lock_, as the next one
    bool is_expected_ = false;  // Python knows of requests, and takes them when it is ready
    std::atomic<bool> sleeps_{false};
    std::atomic<double> last_take_s_{0.0};
    std::deque<std::unique_ptr<Connection>> connections_;
    std::vector<uint32_t> unused_;
    uint64_t generation_ = 0;
    ByText<int64_t> by_address_;  // connections here and lent
    int64_t total_ = 0;           // likewise
    ByText<std::shared_ptr<Head>> heads_;
    std::unordered_map<int64_t, std::shared_ptr<Known>> known_;
    std::vector<uint64_t> again_;
    double now_s_ = 0.0, swept_s_ = 0.0, rests_until_s_ = 0.0, awake_until_s_ = 0.0;
    int64_t waiting_ = 0;  // requests without an answer
    bool is_draining_ = false, is_stopped_ = false, is_resting_ = false, waits_to_notify_ = false;

    static void ring(int fd) {
        uint64_t one = 1;
        (void)!write(fd, &one, sizeof one);
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
            if (has_commands()) timeout_ms = 0;
            int count = epoll_wait(poll_fd_, events, 128, timeout_ms);
            sleeps_.store(false);
            now_s_ = monotonic_s();
            if (count > 0) awake_until_s_ = now_s_ + awake_s.load();
            carry_out();
            for (int at = 0; at < count; ++at) react(events[at]);
            go_on();
            if (now_s_ > swept_s_ + SWEEP_S) sweep();
            publish();
            nap();
        }
        for (auto& one : connections_)
            if (one->fd >= 0) close(one->fd);
    }

    // While requests only gather, let events gather too: each time this thread wakes, it takes a core from a server.
    void nap() {
        double seconds = NAP_SHARE * hold_s.load();
        if (seconds < LEAST_NAP_S || !again_.empty()) return;
        timespec time{0, long(1e9 * seconds)};
        nanosleep(&time, nullptr);
    }

    bool has_commands() {
        std::lock_guard lock(inbox_lock_);
        return !inbox_.empty();
    }

    int timeout() {
        if (!again_.empty() || (waiting_ && now_s_ < awake_until_s_)) return 0;
        double left_s = swept_s_ + SWEEP_S - now_s_;
        if (waits_to_notify_) left_s = std::min(left_s, last_take_s_.load() + hold_s.load() - now_s_);
        return std::max(0, int(std::ceil(1e3 * left_s)));
    }

    // -- between Python and this thread

    void carry_out() {
        std::vector<Command> commands;
        {
            std::lock_guard lock(inbox_lock_);
            std::swap(commands, inbox_);
        }
        for (auto& one : commands) switch (one.kind) {
                case Command::ANSWER:
                    if (Connection* connection = find(one.token); connection && connection->stage == Stage::WAITING)
                        answer(*connection, std::move(one.text));
                    break;
                case Command::ADOPT: adopt(one.fd, std::move(one.text)); break;
                case Command::GONE: count_out(one.text); break;
                case Command::LEARN: learn(one); break;
                case Command::FORGET: forget(); break;
                case Command::CLOSE_FOR:
                    if (auto found = known_.find(int64_t(one.token)); found != known_.end()) {
                        found->second->closed_until_s = one.until_s;
                        found->second->refusal = std::move(one.text);
                    }
                    break;
                case Command::DRAIN: drain(); break;
                case Command::STOP: is_stopped_ = true; break;
            }
    }

    void learn(Command& one) {
        auto& head = heads_[one.head->text];
        if (!head) head = one.head;
        if (head->body_bytes != one.head->body_bytes || head->json_bytes != one.head->json_bytes) head = one.head;
        head->calls[one.text] = one.known;
        known_[one.known->number] = one.known;
    }

    void forget() {
        for (auto& one : heads_) one.second->is_stale = true;
        heads_.clear();
        known_.clear();
    }

    void publish() {
        bool wants = !fresh_.ready.empty() || !fresh_.refused.empty();
        bool is_urgent = !fresh_.lent.empty() || !fresh_.left.empty();
        std::lock_guard lock(outbox_lock_);
        if (wants || is_urgent) {
            for (auto& one : fresh_.ready) outbox_.ready.push_back(std::move(one));
            for (auto& one : fresh_.lent) outbox_.lent.push_back(std::move(one));
            outbox_.left.insert(outbox_.left.end(), fresh_.left.begin(), fresh_.left.end());
            for (auto [number, count] : fresh_.refused) outbox_.refused[number] += count;
            fresh_ = Published{};
        }
        waits_to_notify_ = false;
        if (notified_) return;
        bool has_requests = !outbox_.ready.empty() && !is_expected_;
        bool is_due = has_requests && now_s_ >= last_take_s_.load() + hold_s.load();
        if (is_due || !outbox_.lent.empty() || !outbox_.left.empty()) {  // what was refused can wait
            notified_ = true;
            ring(notify_fd);
        } else {
            waits_to_notify_ = has_requests;
        }
    }

    // -- connections

    Connection* find(uint64_t token) {
        size_t index = token & ((1u << INDEX_BITS) - 1);
        if (index >= connections_.size()) return nullptr;
        Connection* one = connections_[index].get();
        return one->fd >= 0 && one->token == token ? one : nullptr;
    }

    void react(const epoll_event& event) {
        if (event.data.u64 == WAKE) {
            uint64_t count;
            (void)!read(wake_fd_, &count, sizeof count);
            return;
        }
        if (event.data.u64 >= LISTENERS) return accept_all(listeners_[event.data.u64 - LISTENERS]);
        Connection* one = find(event.data.u64);
        if (!one) return;
        bool has_left = event.events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP);
        if (has_left && one->stage != Stage::READING) return drop(*one);
        if (has_left || (event.events & EPOLLIN)) one->is_readable = true;
        if (one->stage == Stage::WRITING && (event.events & EPOLLOUT)) flush(*one);
        else if (one->stage == Stage::READING && one->is_readable) proceed(*one);
        if (has_left && find(event.data.u64)) drop(*one);
    }

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
            if (why) lend(fd, "", "", std::move(address), why);
            else open_up(fd, std::move(address));
        }
    }

    void rest() {  // a listener that cannot be served would be reported again and again
        for (int fd : listeners_) epoll_ctl(poll_fd_, EPOLL_CTL_DEL, fd, nullptr);
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

    void count_out(const std::string& address) {
        --total_;
        auto found = by_address_.find(address);
        if (found != by_address_.end() && --found->second <= 0) by_address_.erase(found);
    }

    bool make_room(const std::string* address) {
        Connection* longest = nullptr;
        for (auto& one : connections_)
            if (one->fd >= 0 && is_idle(*one) && (!address || one->address == *address) &&
                (!longest || one->since_s < longest->since_s))
                longest = one.get();
        if (!longest || now_s_ < longest->since_s + ROOM_AFTER_S) return false;
        shut(*longest);
        return true;
    }

    static bool is_idle(const Connection& one) { return one.stage == Stage::READING && !one.in.size; }

    Connection& open_up(int fd, std::string address) {
        uint32_t index;
        if (unused_.empty()) {
            index = uint32_t(connections_.size());
            connections_.push_back(std::make_unique<Connection>());
        } else {
            index = unused_.back();
            unused_.pop_back();
        }
        auto& one = *connections_[index];
        one = Connection{};
        one.fd = fd;
        one.token = (++generation_ << INDEX_BITS) | index;
        one.address = std::move(address);
        one.since_s = now_s_;
        ++open;
        watch(fd, one.token, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
        return one;
    }

    void adopt(int fd, std::string address) {
        if (is_draining_) {
            close(fd);
            return count_out(address);
        }
        Connection& one = open_up(fd, std::move(address));
        queue(one);
    }

    void hold(Connection& one, size_t bytes) {
        held_bytes += int64_t(bytes) - int64_t(one.held);
        one.held = bytes;
    }

    void release(Connection& one) {  // the connection leaves this thread, open or closed
        hold(one, 0);
        waiting_ -= one.stage == Stage::WAITING;
        one.fd = -1;
        unused_.push_back(uint32_t(one.token & ((1u << INDEX_BITS) - 1)));
        one.in = Bytes{};
        one.out = std::string();
        one.head.reset();
        --open;
    }

    void shut(Connection& one) {
        close(one.fd);
        count_out(one.address);
        release(one);
    }

    void drop(Connection& one) {  // the client has left
        if (one.stage == Stage::WAITING) fresh_.left.push_back(one.token);
        shut(one);
    }

    void lend(Connection& one) {
        epoll_ctl(poll_fd_, EPOLL_CTL_DEL, one.fd, nullptr);
        std::string in = one.in.size ? std::string(one.in.data.get(), one.in.size) : std::string();
        std::string out = one.stage == Stage::WRITING ? one.out.substr(one.out_at) : std::string();
        lend(one.fd, std::move(in), std::move(out), one.address, 0);
        release(one);
    }

    void lend(int fd, std::string in, std::string out, std::string address, int why) {
        fresh_.lent.push_back({fd, std::move(in), std::move(out), std::move(address), why});
    }

    void queue(Connection& one) {
        if (one.is_queued) return;
        one.is_queued = true;
        again_.push_back(one.token);
    }

    void go_on() {
        std::vector<uint64_t> tokens;
        std::swap(tokens, again_);
        for (uint64_t token : tokens)
            if (Connection* one = find(token)) {
                one->is_queued = false;
                if (one->stage == Stage::READING) proceed(*one);
            }
    }

    void sweep() {
        swept_s_ = now_s_;
        if (is_resting_ && now_s_ > rests_until_s_ && !is_draining_) {
            is_resting_ = false;
            listen();
        }
        double idle_s = limits.idle_s.load();
        for (auto& each : connections_) {
            Connection& one = *each;
            if (one.fd < 0 || one.stage == Stage::WAITING) continue;
            if (is_idle(one)) {
                if (now_s_ > one.since_s + idle_s) shut(one);
            } else if (now_s_ > one.since_s + PROMPT_S) {
                lend(one);
            }
        }
    }

    void drain() {
        is_draining_ = true;
        for (int fd : listeners_) epoll_ctl(poll_fd_, EPOLL_CTL_DEL, fd, nullptr);
        for (auto& each : connections_) {
            Connection& one = *each;
            if (one.fd < 0 || one.stage != Stage::READING) continue;
            if (is_idle(one)) shut(one);
            else lend(one);
        }
    }

    // -- one connection: read a request, wait for its answer, write it

    void proceed(Connection& one) {
        for (int turn = 0; turn < TURN; ++turn) {
            if (!read_request(one)) return;                       // more must come, or the connection is gone
            if (!enter(one) || one.stage != Stage::READING) return;  // lent, waiting or writing
        }
        queue(one);
    }

    // Whether a whole request with a known head is here.
    bool read_request(Connection& one) {
        while (true) {
            if (one.in.size) {
                if (!one.is_head_known && !recognise(one)) return false;
                if (one.is_head_known && one.in.size >= one.need) return true;
            }
            if (!one.is_readable) return false;
            one.in.reserve(one.is_head_known ? one.need : std::max(one.expected, one.in.size + FIRST_BYTES));
            size_t room = one.in.room - one.in.size;
            ssize_t count = recv(one.fd, one.in.data.get() + one.in.size, room, 0);
            if (count > 0) {
                if (!one.in.size) one.since_s = now_s_;
                one.in.size += size_t(count);
                one.is_readable = size_t(count) == room;
            } else if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
                one.is_readable = false;
                if (!one.in.size) one.in = Bytes{};  // an idle connection keeps nothing
            } else if (count < 0 && errno == EINTR) {
                continue;
            } else {
                drop(one);
                return false;
            }
        }
    }

    // Find what the head means; false if the connection was lent.
    bool recognise(Connection& one) {
        auto guess = one.head;
        if (guess && !guess->is_stale && one.in.size >= guess->text.size() && one.in.view(0, guess->text.size()) == guess->text)
            return begin(one, std::move(guess));
        std::string_view seen = one.in.view(0, one.in.size);
        size_t end = seen.find("\r\n\r\n");
        if (end == std::string_view::npos) {
            if (one.in.size < LONGEST_HEAD_BYTES) return true;
            lend(one);
            return false;
        }
        auto found = heads_.find(seen.substr(0, end + 4));
        if (found == heads_.end()) {
            lend(one);
            return false;
        }
        return begin(one, found->second);
    }

    bool begin(Connection& one, std::shared_ptr<Head> head) {
        one.need = head->text.size() + head->body_bytes;
        one.head = std::move(head);
        one.is_head_known = true;
        hold(one, one.need);
        if (held_bytes.load() <= limits.held_bytes.load()) return true;
        lend(one);  // Python says that there is too much
        return false;
    }

    // Pass a whole request on, or refuse it; false if the connection was lent.
    bool enter(Connection& one) {
        Head& head = *one.head;
        auto found = head.calls.find(one.in.view(head.text.size(), head.json_bytes));
        if (found == head.calls.end() || head.is_stale) {
            lend(one);
            return false;
        }
        const auto& known = found->second;
        if (now_s_ < known->closed_until_s) {
            fresh_.refused[known->number] += 1;
            cut(one);
            one.expected = one.need;
            answer(one, known->refusal);
            return find(one.token) == &one;
        }
        Bytes rest;
        if (one.in.size > one.need) {
            rest.reserve(one.in.size - one.need);
            memcpy(rest.data.get(), one.in.data.get() + one.need, one.in.size - one.need);
            rest.size = one.in.size - one.need;
        }
        one.in.size = one.need;
        fresh_.ready.push_back({one.token, known, now_s_, std::move(one.in), head.text.size() + head.json_bytes});
        one.in = std::move(rest);
        one.expected = one.need;
        one.stage = Stage::WAITING;
        ++waiting_;
        return true;
    }

    static void cut(Connection& one) {  // take the request away, keep what follows it
        size_t left = one.in.size - one.need;
        if (left) memmove(one.in.data.get(), one.in.data.get() + one.need, left);
        one.in.size = left;
    }

    void answer(Connection& one, std::string text) {
        waiting_ -= one.stage == Stage::WAITING;
        one.out = std::move(text);
        one.out_at = 0;
        one.stage = Stage::WRITING;
        one.is_head_known = false;
        one.since_s = now_s_;
        hold(one, 0);
        flush(one);
    }

    void flush(Connection& one) {
        while (one.out_at < one.out.size()) {
            ssize_t count = send(one.fd, one.out.data() + one.out_at, one.out.size() - one.out_at, MSG_NOSIGNAL);
            if (count >= 0) one.out_at += size_t(count);
            else if (errno == EAGAIN || errno == EWOULDBLOCK) return;
            else if (errno != EINTR) return drop(one);
        }
        one.out.clear();
        one.stage = Stage::READING;
        one.since_s = now_s_;
        if (is_draining_) return shut(one);
        if (one.in.size || one.is_readable) queue(one);
    }
};

}  // namespace
