// What Python and the thread of a line exchange: requests and notices one way, answers and commands the other.
//
// Both sides put vectors in place under a lock, and wake each other with eventfds, written only if the other side
// sleeps. What waits for Python is bounded: a line counts its notices by rounds, which end when Python takes them,
// and reads no more of a client that has had its share of a round.

#pragma once

#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace {

inline double monotonic_s() {
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
    void append(const char* from, size_t count) {
        if (size + count > room) reserve(std::max(size + count, 2 * room));
        memcpy(data.get() + size, from, count);
        size += count;
    }
    std::string_view view(size_t from, size_t count) const { return {data.get() + from, count}; }

    // Cut the bytes here, and return what follows.
    Bytes split(size_t at) {
        Bytes rest;
        if (size > at) rest.append(data.get() + at, size - at);
        size = at;
        return rest;
    }
};

struct Part {
    size_t start, size;  // of an input tensor, behind the text that says what the request means
};

// Bytes between the tensors, which are the same in each request.
struct Fixed {
    size_t start;
    std::string bytes;
};

// What a head and a text together mean.
struct Known {
    int64_t number = 0;
    int64_t examples = 1;
    double longest_s = 0.0;  // how much later than the first of a group a request may have come
    std::vector<Part> parts;
    std::vector<Fixed> fixed;
    double closed_until_s = 0.0;  // until then it is refused here
    std::string refusal;
};

// A request that is complete.
struct Ready {
    uint64_t token;
    std::shared_ptr<Known> known;
    double arrived_s;
    std::string head;  // where it is not a part of the bytes
    Bytes bytes;
    size_t raw_at;  // where its tensors begin
};

// What Python must deal with: each line says what the fields mean. A line has notices of several kinds, or of none.
struct Notice {
    uint64_t token;
    std::string first, second, address;
    int kind = 0;
    size_t held = 0;     // bytes that count as held here until Python takes them
    bool opens = false;  // Python has not heard of the token before
};

struct Command {
    enum Kind { ANSWER, WRITE, READ, CANCEL, ADOPT, GONE, LEARN, FORGET, CLOSE_FOR, PROXY, LIMITS, FULL, DRAIN, STOP };
    Kind kind;
    uint64_t token = 0;  // of a request or call; ADOPT: the file; CLOSE_FOR: the number of what is known; FULL: why
    std::string text = {}, head = {};
    size_t bytes = 0;
    std::shared_ptr<Known> known = {};
    double until_s = 0.0;
};

// What Python sets; most of them are limits of the same name, which `limits.py` explains.
struct Settings {
    std::atomic<double> connections{2048}, connections_per_address{1024}, held_bytes{1 << 30}, idle_s{75.0};
    std::atomic<double> calls{2048}, resets_per_s{1000}, message_bytes{8 << 20}, unread_bytes{64 << 20};
    std::atomic<double> head_bytes{32 << 10}, headers{100}, head_s{10.0}, sending_s{60.0};
    std::atomic<double> hold_s{0.0};   // how long Python may be left alone after it took requests
    std::atomic<double> awake_s{0.0};  // how long not to sleep after requests came, whose answers come soon
};

// Why a line turned clients away without asking Python; `service.py` names them in the same order.
enum Cut { CONNECTIONS, RESETS, FRAMES, UNSENT, HEADS, BYTES, CUTS };

struct Published {
    std::vector<Ready> ready;
    std::vector<Notice> notices;
    std::vector<uint64_t> left;
    std::unordered_map<int64_t, int64_t> refused;  // requests, by what they meant
};

class Mailbox {
  public:
    Settings settings;
    std::atomic<int64_t> held_bytes{0}, open{0};
    std::atomic<int64_t> cuts[CUTS] = {};
    int notify_fd;

    Mailbox() : notify_fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)), wake_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
    virtual ~Mailbox() {
        for (int fd : {notify_fd, wake_fd_}) close(fd);
    }

    virtual void start() = 0;
    virtual void stop() = 0;

    // How answers that differ in two numbers are written.
    virtual std::string network_text(double network_ms) const = 0;
    virtual std::string number_text(int64_t number) const = 0;
    virtual std::string opening(size_t text_bytes, size_t raw_bytes) const = 0;

    void tell(std::vector<Command> commands) {
        {
            std::lock_guard lock(inbox_lock_);
            for (auto& one : commands) inbox_.push_back(std::move(one));
        }
        if (sleeps_.exchange(false)) ring(wake_fd_);
    }

    void tell(Command command) {
        std::vector<Command> commands;
        commands.push_back(std::move(command));
        tell(std::move(commands));
    }

    Published take(bool with_requests) {
        silence(notify_fd);
        Published taken;
        std::lock_guard lock(outbox_lock_);
        notified_ = false;
        is_expected_ = !with_requests && !outbox_.ready.empty();
        if (with_requests) {
            std::swap(taken, outbox_);
            last_take_s_.store(monotonic_s());
        } else {
            std::swap(taken.notices, outbox_.notices);
            std::swap(taken.left, outbox_.left);
        }
        for (const auto& one : taken.notices) held_bytes -= int64_t(one.held);
        ++round_;
        if (waits_for_round_.exchange(false)) ring(wake_fd_);
        return taken;
    }

  protected:
    int wake_fd_;
    std::atomic<bool> sleeps_{false}, waits_for_round_{false};
    std::atomic<uint64_t> round_{1};  // how often Python has taken notices
    Published fresh_;  // of the thread alone
    bool waits_to_notify_ = false;
    double awake_until_s_ = 0.0;

    static void silence(int fd) {
        uint64_t count;
        (void)!read(fd, &count, sizeof count);
    }

    bool has_commands() {
        std::lock_guard lock(inbox_lock_);
        return !inbox_.empty();
    }

    std::vector<Command> commands() {
        std::vector<Command> taken;
        std::lock_guard lock(inbox_lock_);
        std::swap(taken, inbox_);
        return taken;
    }

    double notify_at_s() const { return last_take_s_.load() + settings.hold_s.load(); }

    void publish(double now_s) {
        if (!fresh_.ready.empty()) awake_until_s_ = now_s + settings.awake_s.load();
        bool wants = !fresh_.ready.empty() || !fresh_.refused.empty();
        bool is_urgent = !fresh_.notices.empty() || !fresh_.left.empty();
        std::lock_guard lock(outbox_lock_);
        if (!fresh_.left.empty()) drop_left();
        if (wants || is_urgent) {
            for (auto& one : fresh_.ready) outbox_.ready.push_back(std::move(one));
            for (auto& one : fresh_.notices) outbox_.notices.push_back(std::move(one));
            outbox_.left.insert(outbox_.left.end(), fresh_.left.begin(), fresh_.left.end());
            for (auto [number, count] : fresh_.refused) outbox_.refused[number] += count;
            fresh_ = Published{};
        }
        waits_to_notify_ = false;
        if (notified_) return;
        bool has_requests = !outbox_.ready.empty() && !is_expected_;
        bool is_due = has_requests && now_s >= notify_at_s();
        bool is_awaited = waits_for_round_.load();  // even if those who filled it have left meanwhile
        if (is_due || is_awaited || !outbox_.notices.empty() || !outbox_.left.empty()) {  // what was refused can wait
            notified_ = true;
            ring(notify_fd);
        } else {
            waits_to_notify_ = has_requests;
        }
    }

  private:
    std::mutex inbox_lock_, outbox_lock_;
    std::vector<Command> inbox_;
    Published outbox_;
    bool notified_ = false;     // with outbox_lock_, as the next one
    bool is_expected_ = false;  // Python knows of requests, and takes them when it is ready
    std::atomic<double> last_take_s_{0.0};

    // Drop requests and calls that Python has not taken and whose clients have left: it need not hear of either.
    void drop_left() {
        std::unordered_set<uint64_t> left(fresh_.left.begin(), fresh_.left.end()), unheard_of;
        for (auto* ready : {&fresh_.ready, &outbox_.ready})
            std::erase_if(*ready, [&](const Ready& one) { return left.erase(one.token) > 0; });
        for (auto* notices : {&fresh_.notices, &outbox_.notices}) {
            for (const Notice& one : *notices)
                if (one.opens && left.erase(one.token)) unheard_of.insert(one.token);
        }
        for (auto* notices : {&fresh_.notices, &outbox_.notices})
            std::erase_if(*notices, [&](const Notice& one) {
                bool is_dropped = unheard_of.count(one.token);
                if (is_dropped) held_bytes -= int64_t(one.held);
                return is_dropped;
            });
        std::erase_if(fresh_.left, [&](uint64_t token) { return !left.count(token); });
    }

    static void ring(int fd) {
        uint64_t one = 1;
        (void)!write(fd, &one, sizeof one);
    }
};

}  // namespace
