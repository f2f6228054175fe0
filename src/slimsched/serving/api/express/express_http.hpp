// HTTP/1.1 for requests whose heads are known.
//
// Everything unusual is lent: unknown heads, slow senders, slow readers, too many bytes. So this file knows no HTTP
// beyond the blank line that ends a head. A connection over the limit gets a text that Python wrote before.

#pragma once

#include <cstdio>

#include "express_line.hpp"

namespace {

constexpr size_t FIRST_BYTES = 4096;
constexpr size_t LONGEST_HEAD_BYTES = 16384;  // a longer head is lent
constexpr double PROBE_S = 1.0;               // how often a client that sends no more is asked whether it is there
constexpr double LEAVE_S = 1.0;               // how long a client that was turned away may take to read why
constexpr int MOST_LEAVING = 64;              // clients of this kind; others are closed at once

struct HttpHead {
    std::string text;
    size_t body_bytes = 0, json_bytes = 0;
    bool is_stale = false;
    ByText<std::shared_ptr<Known>> calls;  // by JSON
};

enum class Stage { READING, WAITING, WRITING, LEAVING };

struct HttpConnection : Socket {
    Stage stage = Stage::READING;
    Bytes in;
    std::shared_ptr<HttpHead> head;  // of the request that arrives now, then a guess for the next one
    bool is_head_known = false;
    size_t need = 0;  // bytes of the whole request, once its head is known
    size_t expected = FIRST_BYTES;
    size_t held = 0;
    double ended_s = 0.0;  // since when its client sends no more, or when it was last probed; 0: it still sends
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
                 "HTTP/1.1 200 OK\r\ndate: %s\r\ncontent-type: application/octet-stream\r\n"
                 "content-length: %zu\r\ninference-header-content-length: %zu\r\n\r\n",
                 date_text(), text_bytes + raw_bytes, text_bytes);
        return text;
    }

  private:
    ByText<std::shared_ptr<HttpHead>> heads_;
    std::string full_texts_[3];  // what a connection over a limit is told: in all, and from this address
    int leaving_ = 0;
    mutable time_t dated_s_ = 0;  // of Python's threads, which have its lock
    mutable char date_[40] = "";

    const char* date_text() const {
        time_t now_s = time(nullptr);
        if (now_s != dated_s_) {
            tm parts;
            gmtime_r(&now_s, &parts);
            strftime(date_, sizeof date_, "%a, %d %b %Y %H:%M:%S GMT", &parts);
            dated_s_ = now_s;
        }
        return date_;
    }

    // -- between Python and this thread

    void carry_out(Command& command) override {
        if (command.kind == Command::ADOPT) return adopt(int(command.token), account_of(command.text));
        if (command.kind == Command::FULL) full_texts_[command.token == 2 ? 2 : 1] = std::move(command.text);
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
    void closing(HttpConnection& one) override {
        if (one.stage == Stage::WAITING) tell_left(*one.account, one.token);
        hold(one, 0);
        leaving_ -= one.stage == Stage::LEAVING;
    }
    bool is_idle(const HttpConnection& one) const override { return one.stage == Stage::READING && !one.in.size; }

    void too_many(int fd, Account& account, int why) override {
        const std::string& text = full_texts_[why];
        (void)!send(fd, text.data(), text.size(), MSG_NOSIGNAL);
        if (leaving_ >= MOST_LEAVING) return turn_away(fd, account);
        shutdown(fd, SHUT_WR);
        open_up(fd, account).stage = Stage::LEAVING;
        ++leaving_;
    }

    void react(HttpConnection& one, bool has_room) override {
        if (one.sends_no_more && !one.ended_s) one.ended_s = now_s_;
        if (one.stage == Stage::WRITING && has_room) flush(one);
        else if (one.is_readable) go_on(one);
    }

    void go_on(HttpConnection& one) override {
        if (one.stage == Stage::READING) proceed(one);
        else if (one.stage == Stage::LEAVING) see_off(one);
    }

    void adopt(int fd, Account& account) {
        if (is_draining_) return turn_away(fd, account);
        queue(open_up(fd, account));
    }

    void hold(HttpConnection& one, size_t bytes) { Line::hold(*one.account, one.held, bytes); }

    // The connection goes to Python, with what has arrived of the next request and what is not yet written. Always
    // false: nothing more can be done with it here.
    bool lend(HttpConnection& one) {
        if (set_aside(one)) return false;
        unwatch(one.fd);
        std::string in = one.in.size ? std::string(one.in.data.get(), one.in.size) : std::string();
        std::string out = one.stage == Stage::WRITING ? one.out.substr(one.out_at) : std::string();
        notify(*one.account, {uint64_t(one.fd), std::move(in), std::move(out), one.account->address});
        release(one);
        return false;
    }

    void check(HttpConnection& one) override {
        if (one.stage == Stage::WAITING) return probe(one);
        if (one.stage == Stage::LEAVING) {
            if (now_s_ > one.since_s + LEAVE_S) shut(one);
        } else if (is_idle(one)) {
            if (now_s_ > one.since_s + settings.idle_s.load()) shut(one);
        } else if (now_s_ > one.since_s + PROMPT_S) {
            lend(one);
        }
    }

    // A client that sends no more may still read, or be gone: a provisional answer, which any client must take, is
    // reset by one that is gone. Then nobody works for it any more.
    void probe(HttpConnection& one) {
        if (!one.ended_s || now_s_ < one.ended_s + PROBE_S) return;
        one.ended_s = now_s_;
        constexpr std::string_view PROBE = "HTTP/1.1 100 Continue\r\n\r\n";
        (void)!send(one.fd, PROBE.data(), PROBE.size(), MSG_NOSIGNAL);
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
            ssize_t count = read_some(one, one.in.data.get() + one.in.size, one.in.room - one.in.size);
            if (count < 0) return lost(one);
            if (count && !one.in.size) one.since_s = now_s_;
            one.in.size += size_t(count);
            if (!one.in.size) one.in = Bytes{};  // an idle connection keeps nothing
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
        if (end == std::string_view::npos) return one.in.size < LONGEST_HEAD_BYTES || lend(one);
        auto found = heads_.find(seen.substr(0, end + 4));
        return found == heads_.end() ? lend(one) : begin(one, found->second);
    }

    bool begin(HttpConnection& one, std::shared_ptr<HttpHead> head) {
        one.need = head->text.size() + head->body_bytes;
        one.head = std::move(head);
        hold(one, one.need);
        one.is_head_known = !is_full(*one.account);
        return one.is_head_known || lend(one);  // Python says that there is too much
    }

    // Pass a whole request on, or refuse it; false if the connection was lent.
    bool enter(HttpConnection& one) {
        HttpHead& head = *one.head;
        auto found = head.calls.find(one.in.view(head.text.size(), head.json_bytes));
        if (found == head.calls.end() || head.is_stale) return lend(one);
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
            ssize_t count = send_some(one, std::string_view(one.out).substr(one.out_at));
            if (count < 0) return shut(one);
            if (!count) return;
            one.out_at += size_t(count);
        }
        one.out.clear();
        one.stage = Stage::READING;
        one.since_s = now_s_;
        if (is_draining_) return shut(one);
        if (one.in.size || one.is_readable) queue(one);
    }
};

}  // namespace
