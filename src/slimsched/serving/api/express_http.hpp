// HTTP/1.1 for requests whose heads are known.
//
// Everything unusual is lent: unknown heads, slow senders, slow readers, too many bytes or connections. So this
// file knows no HTTP beyond the blank line that ends a head.

#pragma once

#include <cstdio>

#include "express_line.hpp"

namespace {

constexpr size_t FIRST_BYTES = 4096;
constexpr size_t LONGEST_HEAD_BYTES = 16384;  // a longer head is lent
constexpr int TURN = 16;                      // requests of one connection before others have their turn

struct HttpHead {
    std::string text;
    size_t body_bytes = 0, json_bytes = 0;
    bool is_stale = false;
    ByText<std::shared_ptr<Known>> calls;  // by JSON
};

enum class Stage { READING, WAITING, WRITING };

struct HttpConnection : Socket {
    Stage stage = Stage::READING;
    Bytes in;
    std::shared_ptr<HttpHead> head;  // of the request that arrives now, then a guess for the next one
    bool is_head_known = false;
    size_t need = 0;  // bytes of the whole request, once its head is known
    size_t expected = FIRST_BYTES;
    size_t held = 0;
    std::string out;
    size_t out_at = 0;
};

class HttpLine : public Line<HttpConnection> {
  public:
    using Line::Line;

    std::string network_text(double network_ms) const override {
        char text[32];
        snprintf(text, sizeof text, "%.6f", network_ms);
        return text;
    }
    std::string number_text(int64_t number) const override { return std::to_string(number); }
    std::string opening(size_t text_bytes, size_t raw_bytes) const override {
        char text[256];
        snprintf(text, sizeof text,
                 "HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: %zu\r\n"
                 "inference-header-content-length: %zu\r\n\r\n",
                 text_bytes + raw_bytes, text_bytes);
        return text;
    }

  private:
    ByText<std::shared_ptr<HttpHead>> heads_;

    // -- between Python and this thread

    void carry_out(Command& command) override {
        if (command.kind == Command::ADOPT) return adopt(command.fd, std::move(command.text));
        if (command.kind != Command::ANSWER) return;
        HttpConnection* one = connections_.find(command.token);
        if (one && one->stage == Stage::WAITING) answer(*one, std::move(command.text));
    }

    void learn(Command& command) override {
        auto& head = heads_[command.head];
        size_t json_bytes = command.text.size();
        if (!head || head->body_bytes != command.bytes || head->json_bytes != json_bytes) {
            head = std::make_shared<HttpHead>();
            head->text = command.head, head->body_bytes = command.bytes, head->json_bytes = json_bytes;
        }
        head->calls[command.text] = command.known;
    }

    void forget() override {
        for (auto& one : heads_) one.second->is_stale = true;
        heads_.clear();
    }

    // -- connections

    void opened(HttpConnection&) override {}
    void closing(HttpConnection& one) override { hold(one, 0); }
    bool is_idle(const HttpConnection& one) const override { return one.stage == Stage::READING && !one.in.size; }

    void too_many(int fd, std::string address, int why) override { lend(fd, "", "", std::move(address), why); }

    void react(HttpConnection& one, uint32_t events) override {
        uint64_t token = one.token;
        bool has_left = events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP);
        if (has_left && one.stage != Stage::READING) return drop(one);
        if (has_left || (events & EPOLLIN)) one.is_readable = true;
        if (one.stage == Stage::WRITING && (events & EPOLLOUT)) flush(one);
        else if (one.stage == Stage::READING && one.is_readable) proceed(one);
        if (has_left && connections_.find(token)) drop(one);
    }

    void go_on(HttpConnection& one) override {
        if (one.stage == Stage::READING) proceed(one);
    }

    void adopt(int fd, std::string address) {
        if (is_draining_) {
            close(fd);
            return count_out(address);
        }
        queue(open_up(fd, std::move(address)));
    }

    void hold(HttpConnection& one, size_t bytes) {
        held_bytes += int64_t(bytes) - int64_t(one.held);
        one.held = bytes;
    }

    void drop(HttpConnection& one) {  // the client has left
        if (one.stage == Stage::WAITING) fresh_.left.push_back(one.token);
        shut(one);
    }

    void lend(HttpConnection& one) {
        unwatch(one.fd);
        std::string in = one.in.size ? std::string(one.in.data.get(), one.in.size) : std::string();
        std::string out = one.stage == Stage::WRITING ? one.out.substr(one.out_at) : std::string();
        lend(one.fd, std::move(in), std::move(out), one.address, 0);
        release(one);
    }

    // The connection goes to Python, with what has arrived of the next request and what is not yet written.
    void lend(int fd, std::string in, std::string out, std::string address, int why) {
        fresh_.notices.push_back({uint64_t(fd), std::move(in), std::move(out), std::move(address), why});
    }

    void check(HttpConnection& one) override {
        if (one.stage == Stage::WAITING) return;
        if (is_idle(one)) {
            if (now_s_ > one.since_s + limits.idle_s.load()) shut(one);
        } else if (now_s_ > one.since_s + PROMPT_S) {
            lend(one);
        }
    }

    void drain(HttpConnection& one) override {
        if (one.stage != Stage::READING) return;
        if (is_idle(one)) shut(one);
        else lend(one);
    }

    // -- one connection: read a request, wait for its answer, write it

    void proceed(HttpConnection& one) {
        for (int turn = 0; turn < TURN; ++turn) {
            if (!read_request(one)) return;                          // more must come, or the connection is gone
            if (!enter(one) || one.stage != Stage::READING) return;  // lent, waiting or writing
        }
        queue(one);
    }

    // Whether a whole request with a known head is here.
    bool read_request(HttpConnection& one) {
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
    bool recognise(HttpConnection& one) {
        auto guess = one.head;
        if (guess && !guess->is_stale && one.in.size >= guess->text.size() &&
            one.in.view(0, guess->text.size()) == guess->text)
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

    bool begin(HttpConnection& one, std::shared_ptr<HttpHead> head) {
        one.need = head->text.size() + head->body_bytes;
        one.head = std::move(head);
        one.is_head_known = true;
        hold(one, one.need);
        if (held_bytes.load() <= limits.held_bytes.load()) return true;
        lend(one);  // Python says that there is too much
        return false;
    }

    // Pass a whole request on, or refuse it; false if the connection was lent.
    bool enter(HttpConnection& one) {
        HttpHead& head = *one.head;
        auto found = head.calls.find(one.in.view(head.text.size(), head.json_bytes));
        if (found == head.calls.end() || head.is_stale) {
            lend(one);
            return false;
        }
        const auto& known = found->second;
        if (now_s_ < known->closed_until_s) {
            fresh_.refused[known->number] += 1;
            one.in = one.in.split(one.need);
            one.expected = one.need;
            uint64_t token = one.token;
            answer(one, known->refusal);
            return connections_.find(token) == &one;
        }
        Bytes rest = one.in.split(one.need);
        fresh_.ready.push_back({one.token, known, now_s_, "", std::move(one.in), head.text.size() + head.json_bytes});
        one.in = std::move(rest);
        one.expected = one.need;
        one.stage = Stage::WAITING;
        return true;
    }

    void answer(HttpConnection& one, std::string text) {
        one.out = std::move(text);
        one.out_at = 0;
        one.stage = Stage::WRITING;
        one.is_head_known = false;
        one.since_s = now_s_;
        hold(one, 0);
        flush(one);
    }

    void flush(HttpConnection& one) {
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
