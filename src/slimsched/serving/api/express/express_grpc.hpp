// gRPC over HTTP/2 for calls whose heads are known; nghttp2 reads and writes the frames.
//
// A connection carries many calls, so none is lent: the thread keeps all connections, and gives every call that it
// does not know to Python, message by message. It knows no rule but how much may be here and for how long.

#pragma once

#include "express_grpc_call.hpp"
#include "express_line.hpp"

extern "C" {  // since nghttp2 1.57, and in older ones that were repaired
void nghttp2_option_set_stream_reset_rate_limit(nghttp2_option*, uint64_t, uint64_t) __attribute__((weak));
}

namespace {

constexpr uint32_t CALL_WINDOW = 512 << 10, CONNECTION_WINDOW = 16 << 20, FRAME_BYTES = 128 << 10;
constexpr size_t READ_BYTES = 256 << 10, WRITE_BYTES = 128 << 10;
constexpr size_t FIRST_READ_BYTES = 4 << 10, LEAST_READ_BYTES = 2 << 10;
constexpr int MANY_FRAMES = 64;           // in what was read at once: less is read the next time
constexpr size_t FIRST_ROOM = 256 << 10;  // what a message gets before its bytes have come
constexpr int READS = 4;                  // of one connection before others have their turn
constexpr int MOST_CONTINUATIONS = 8;
constexpr int64_t UNREAD_CALLS = 2;       // answers that may wait to be read, for each call that may be under way
constexpr uint32_t SMALL_BYTES = 256;     // a part of a message that is hardly worth its frame
constexpr double EARNED_FRAMES = 4.0;     // small frames that each message, either way, lets its client send
constexpr int64_t FEW_CALLS = 256;        // that are over, and not worth tidying up
constexpr double LINGER_S = 1.0;          // how long a client may take to close a connection that has ended

struct GrpcConnection : Socket {
    class GrpcLine* line = nullptr;
    nghttp2_session* session = nullptr;
    size_t calls = 0;
    size_t read_bytes = FIRST_READ_BYTES;
    std::string out;  // what the system did not take yet
    double blocked_s = 0.0, head_s = 0.0, ended_s = 0.0, leaves_s = 0.0;  // since when; 0: it is not
    double pinged_s = 0.0;                                                // when it last was
    int continuations = 0, frames = 0;
    bool has_settings = false, has_said_goodbye = false, is_broken = false;
    Cut broken_by = FRAMES;
    Allowance odd_frames{2000.0, 200.0};

    void break_if(bool is_bad, Cut why) {
        if (is_bad && !is_broken) is_broken = true, broken_by = why;
    }
    // It moved a message, or has read one: small frames are a part of that.
    void earn() { odd_frames.left = std::min(odd_frames.most, odd_frames.left + EARNED_FRAMES); }
};

class GrpcLine : public Line<GrpcConnection> {
  public:
    explicit GrpcLine(std::vector<int> listeners) : Line(std::move(listeners)), buffer_(new uint8_t[READ_BYTES]) {
        nghttp2_option_new(&option_);
        nghttp2_option_set_no_auto_window_update(option_, 1);
        nghttp2_option_set_no_closed_streams(option_, 1);
        if (nghttp2_option_set_stream_reset_rate_limit)  // ours is less strict, and counts only calls under way
            nghttp2_option_set_stream_reset_rate_limit(option_, 1 << 20, 1 << 20);
        for (int type = NGHTTP2_CONTINUATION + 1; type <= 255; ++type)  // unknown frames are counted, too
            nghttp2_option_set_user_recv_extension_type(option_, uint8_t(type));
        nghttp2_session_callbacks_new(&callbacks_);
        nghttp2_session_callbacks_set_unpack_extension_callback(callbacks_, on_unknown_frame);
        nghttp2_session_callbacks_set_on_begin_frame_callback(callbacks_, on_begin_frame);
        nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks_, on_begin_headers);
        nghttp2_session_callbacks_set_on_header_callback(callbacks_, on_header);
        nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks_, on_frame_recv);
        nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks_, on_data);
        nghttp2_session_callbacks_set_on_frame_send_callback(callbacks_, on_frame_send);
        nghttp2_session_callbacks_set_on_stream_close_callback(callbacks_, on_stream_close);
    }
    ~GrpcLine() override {
        nghttp2_option_del(option_);
        nghttp2_session_callbacks_del(callbacks_);
    }

    std::string network_text(double network_ms) const override { return double_text(network_ms); }
    std::string number_text(int64_t number) const override { return varint_text(number); }
    std::string opening(size_t text_bytes, size_t raw_bytes) const override {
        return frame_prefix(text_bytes + raw_bytes);
    }

  private:
    nghttp2_option* option_ = nullptr;
    nghttp2_session_callbacks* callbacks_ = nullptr;
    std::unique_ptr<uint8_t[]> buffer_;
    std::string scratch_;
    ByText<GrpcHead> heads_;
    Table<GrpcCall> calls_;
    int64_t unread_bytes_ = 0;  // of answers that are not sent
    size_t answered_ = 0;       // calls that have an answer, which need not be sent
    int64_t busy_ = 0;          // calls under way, with their messages
    int64_t unsent_ = 0;        // calls whose messages have not come

    // -- between Python and this thread

    void carry_out(Command& command) override {
        GrpcCall* call = calls_.find(command.token);
        if (!call || call->stage == Stage::ANSWERED) return;
        GrpcConnection& connection = connection_of(*call);
        switch (command.kind) {
            case Command::ANSWER: answer(*call, command.text); break;
            case Command::WRITE: write(*call, command.text); break;
            case Command::READ:
                call->is_wanted = true;
                advance(*call);
                break;
            case Command::CANCEL: cancel(*call); break;
            default: return;
        }
        queue(connection);
        if (is_unread() && flush(connection)) make_read();
    }

    void learn(Command& command) override { heads_[command.head].learn(command.text, command.bytes, command.known); }
    void forget() override { heads_.clear(); }

    void notify(GrpcCall& call, int kind, Bytes message = {}) {
        std::string head, text(message.data.get(), message.size);
        if (call.stage == Stage::READING) {
            kind |= OPENS;
            call.stage = Stage::PYTHON;
            head = std::move(call.head);
            hold(call, call.in.size);
        }
        size_t held = text.size() + head.size();
        held_bytes += int64_t(held);
        Account& account = account_of(call);
        Line::notify(account, {call.token, std::move(head), std::move(text), account.address, kind, held, bool(kind & OPENS)});
    }

    // -- connections

    void opened(GrpcConnection& one) override {
        one.line = this;
        nghttp2_session_server_new2(&one.session, callbacks_, &one, option_);
        nghttp2_settings_entry offered[] = {
            {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, uint32_t(limit_of(settings.calls) + 3) / 4},
            {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, CALL_WINDOW},
            {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, FRAME_BYTES},
            {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, uint32_t(limit_of(settings.head_bytes))},
            {NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1},
        };
        nghttp2_submit_settings(one.session, NGHTTP2_FLAG_NONE, offered, std::size(offered));
        nghttp2_session_set_local_window_size(one.session, NGHTTP2_FLAG_NONE, 0, CONNECTION_WINDOW);
        queue(one);
    }

    void closing(GrpcConnection& one) override {
        if (one.calls)
            calls_.each([&](GrpcCall& call) {
                if (call.connection == one.token) let_go(call), end(call);
            });
        nghttp2_session_del(one.session);
    }

    bool is_idle(const GrpcConnection& one) const override { return !one.calls && !one.ended_s; }

    void too_many(int fd, Account& account, int) override { turn_away(fd, account); }

    void react(GrpcConnection& one, bool has_room) override {
        if (has_room) one.blocked_s = 0.0;
        queue(one);
    }

    void go_on(GrpcConnection& one) override {
        if (one.ended_s) return see_off(one);
        if (receive(one)) flush(one);
    }

    void check(GrpcConnection& one) override {
        if (one.ended_s) {
            if (now_s_ > one.ended_s + LINGER_S) shut(one);
            return;
        }
        double head_s = settings.head_s.load();
        bool is_read = !one.is_readable;  // else what it sent may wait here
        bool is_silent = is_read && !one.has_settings && now_s_ > one.since_s + head_s;
        bool is_slow = is_read && one.head_s && now_s_ > one.head_s + head_s;
        bool is_deaf = one.blocked_s && now_s_ > one.blocked_s + settings.sending_s.load();
        if (is_silent || is_slow || is_deaf) return shut(one);
        if (one.leaves_s) {
            if (!one.calls && is_read && now_s_ > one.leaves_s + LINGER_S) say_goodbye(one);
            return;
        }
        bool is_idle = !one.calls && now_s_ > std::max(one.since_s, one.pinged_s) + settings.idle_s.load();
        if (!one.calls && is_draining_) say_goodbye(one);
        else if (is_draining_ && !one.has_said_goodbye) refuse_more(one);
        else if (is_idle && !one.has_said_goodbye) let_leave(one);
    }

    void let_leave(GrpcConnection& one) {  // a call that is on its way is still taken
        one.leaves_s = now_s_;
        nghttp2_submit_shutdown_notice(one.session);
        queue(one);
    }

    void drain(GrpcConnection& one) override {
        one.leaves_s = 0.0;
        if (!one.calls) return say_goodbye(one);
        nghttp2_submit_shutdown_notice(one.session);  // calls that are on their way are still taken for a while
        queue(one);
    }

    void refuse_more(GrpcConnection& one) {
        one.has_said_goodbye = true;
        int32_t last = nghttp2_session_get_last_proc_stream_id(one.session);
        nghttp2_submit_goaway(one.session, NGHTTP2_FLAG_NONE, last, NGHTTP2_NO_ERROR, nullptr, 0);
        queue(one);
    }

    void say_goodbye(GrpcConnection& one) {
        one.has_said_goodbye = true;
        nghttp2_session_terminate_session(one.session, NGHTTP2_NO_ERROR);
        queue(one);
    }

    void look() override {
        double sending_s = settings.sending_s.load();
        calls_.each([&](GrpcCall& call) {
            GrpcConnection& connection = connection_of(call);
            if (now_s_ > call.deadline_s && call.stage != Stage::ANSWERED) {
                let_go(call);
                answer(call, trailers_text("4", "the deadline that the client gave has passed"));
                queue(connection);
            } else if (call.stage == Stage::READING && now_s_ > call.since_s + PROMPT_S) {
                if (has_room(*connection.account)) notify(call, 0);
            } else if (call.answered_s && now_s_ > call.answered_s + sending_s) {
                shut(connection);  // its client does not read
            }
        });
        make_read();
    }

    bool is_unread() const {
        bool is_many = int64_t(answered_) > UNREAD_CALLS * limit_of(settings.calls);
        return is_many || unread_bytes_ > limit_of(settings.unread_bytes);
    }

    // Too many answers are here: the client that has not read for longest goes.
    void make_read() {
        while (is_unread()) {
            GrpcCall* slowest = nullptr;
            calls_.each([&](GrpcCall& call) {
                bool is_behind = call.answered_s && call.answered_s < now_s_;
                if (is_behind && (!slowest || call.answered_s < slowest->answered_s)) slowest = &call;
            });
            if (!slowest) return;
            shut(connection_of(*slowest));
        }
    }

    // Read what has come; false if the connection is gone.
    bool receive(GrpcConnection& one) {
        for (int turn = 0; one.is_readable && !one.blocked_s; ++turn) {
            if (turn == READS) {
                queue(one);
                break;
            }
            if (set_aside(one)) break;
            ssize_t count = read_some(one, buffer_.get(), one.read_bytes);
            if (!count) break;
            if (count < 0) return lost(one);
            one.frames = 0;
            ssize_t taken = nghttp2_session_mem_recv(one.session, buffer_.get(), size_t(count));
            if (taken < 0 || one.is_broken) {  // it does not speak HTTP/2, or makes work for nothing
                cut(one, one.is_broken ? one.broken_by : FRAMES);
                return false;
            }
            bool is_dense = one.frames > MANY_FRAMES;  // its bytes make much work, and others wait
            one.read_bytes = is_dense ? std::max(LEAST_READ_BYTES, one.read_bytes / 4) : 4 * one.read_bytes;
            one.read_bytes = std::min(READ_BYTES, one.read_bytes);
        }
        return true;
    }

    // Write what is ready; false if the connection is gone.
    bool flush(GrpcConnection& one) {
        while (!one.blocked_s) {
            std::string_view rest = one.out;
            if (rest.empty()) {
                if (!gather(one)) return false;
                rest = scratch_;
            }
            if (rest.empty()) break;
            ssize_t count = send_some(one, rest);
            if (count < 0) return lost(one);
            if (!count) one.blocked_s = now_s_;
            one.out = std::string(rest.substr(size_t(count)));
        }
        bool is_over = !nghttp2_session_want_read(one.session) && !nghttp2_session_want_write(one.session);
        if (!is_over || !one.out.empty() || one.ended_s) return true;
        one.ended_s = now_s_;  // closing while the client still sends would reset it
        shutdown(one.fd, SHUT_WR);
        queue(one);
        return true;
    }

    // Put the next frames into the scratch; false if the connection is gone.
    bool gather(GrpcConnection& one) {
        scratch_.clear();
        while (scratch_.size() < WRITE_BYTES) {
            const uint8_t* data;
            ssize_t count = nghttp2_session_mem_send(one.session, &data);
            if (count < 0) return lost(one);
            if (!count) break;
            scratch_.append(reinterpret_cast<const char*>(data), size_t(count));
        }
        return true;
    }

    // -- one call: read a message, wait for its answer, write it

    GrpcConnection& connection_of(const GrpcCall& call) { return *connections_.find(call.connection); }
    Account& account_of(const GrpcCall& call) { return *connection_of(call).account; }

    void hold(GrpcCall& call, size_t bytes) { Line::hold(account_of(call), call.held, bytes); }

    // Nobody waits for it any more: tell whoever works for it.
    void let_go(GrpcCall& call) {
        if (call.stage == Stage::WAITING || call.stage == Stage::PYTHON) tell_left(account_of(call), call.token);
    }

    void end(GrpcCall& call) {
        GrpcConnection& connection = connection_of(call);
        hold(call, 0);
        count(call, -1);
        unread_bytes_ -= int64_t(call.unsent());
        answered_ -= call.stage == Stage::ANSWERED;
        if (!--connection.calls) connection.since_s = now_s_;
        calls_.remove(call);
    }

    // Count a call that is not answered: with its message it is under way, without one it only takes a place.
    void count(const GrpcCall& call, int change) {
        if (call.stage == Stage::ANSWERED || !call.has_begun) return;
        Account& account = account_of(call);
        (call.has_message ? busy_ : unsent_) += change;
        (call.has_message ? account.calls : account.unsent_calls) += change;
    }

    // A client that opens calls and sends nothing loses the oldest of them to those that come.
    void make_place(Account& newcomer) {
        int64_t most = limit_of(settings.calls);
        Account* account = &newcomer;
        if (newcomer.unsent_calls <= newcomer.share(most)) {
            if (unsent_ <= most) return;
            each_account([&](Account& one) { account = one.unsent_calls > account->unsent_calls ? &one : account; });
        }
        while (!account->unsent.empty()) {
            GrpcCall* oldest = calls_.find(account->unsent.front());
            account->unsent.pop_front();
            if (!oldest || oldest->has_message || oldest->stage == Stage::ANSWERED) continue;
            ++cuts[UNSENT];
            let_go(*oldest);
            queue(connection_of(*oldest));
            return answer(*oldest, trailers_text("8", "too many calls wait for their messages; try again"));
        }
    }

    // The first message has come: the call is under way. False if there are too many.
    bool enter(GrpcCall& call) {
        if (call.has_message) return true;
        count(call, -1);
        call.has_message = true;
        count(call, 1);
        int64_t most = limit_of(settings.calls);
        if (busy_ <= most && account_of(call).calls <= account_of(call).share(most)) return true;
        let_go(call);
        answer(call, trailers_text("8", "too many calls are under way; try again"));
        return false;
    }

    void take(GrpcCall& call, const char* data, size_t count) {
        if (call.is_deaf) return;
        call.in.append(data, count);
        hold(call, call.in.size + call.head.size());
        if (is_full(account_of(call))) return refuse(call, FULL);
        advance(call);
    }

    // Python says what is wrong with the message.
    void refuse(GrpcCall& call, int why) {
        ++cuts[BYTES];
        call.is_deaf = true;
        call.in = Bytes{};
        hold(call, 0);
        notify(call, why);
    }

    // Do what can be done with the bytes that have come.
    void advance(GrpcCall& call) {
        if (!call.is_wanted || call.is_deaf) return;
        if (!call.need && call.in.size >= PREFIX_BYTES) {
            size_t size = message_bytes(call.in.data.get());
            if (size > size_t(limit_of(settings.message_bytes))) return refuse(call, TOO_LARGE);
            call.need = PREFIX_BYTES + size;
            call.in.reserve(std::min(call.need, call.in.size + FIRST_ROOM));
        }
        size_t due = std::min(call.in.size, call.need);
        if (due > call.granted) {
            nghttp2_session_consume_stream(connection_of(call).session, call.id, due - call.granted);
            call.granted = due;
        }
        if (call.need && call.in.size >= call.need) complete(call);
        else if (call.has_ended && enter(call)) call.is_wanted = false, notify(call, ENDS);
    }

    void complete(GrpcCall& call) {
        connection_of(call).earn();
        if (!enter(call)) return;
        Bytes rest = call.in.split(call.need), message = std::move(call.in);
        call.in = std::move(rest);
        call.need = call.granted = 0;
        call.is_wanted = false;
        size_t raw_at = 0;
        std::shared_ptr<Known> known;
        if (call.stage == Stage::READING)
            if (auto found = heads_.find(call.head); found != heads_.end()) known = found->second.find(message, raw_at);
        if (!known) {
            hold(call, call.in.size);
            return notify(call, MESSAGE, std::move(message));
        }
        call.is_deaf = true;
        call.in = Bytes{};
        if (now_s_ < known->closed_until_s) {
            fresh_.refused[known->number] += 1;
            return answer(call, known->refusal);
        }
        hold(call, message.size);
        call.stage = Stage::WAITING;
        fresh_.ready.push_back({call.token, std::move(known), now_s_, std::move(call.head), std::move(message), raw_at});
    }

    void finish(GrpcCall& call) {  // nothing that still comes of it matters
        count(call, -1);
        call.stage = Stage::ANSWERED, ++answered_;
        call.is_deaf = true;
    }

    // Answer a call for good: with a framed message, or with the trailers of a refusal.
    void answer(GrpcCall& call, const std::string& text) {
        finish(call);
        call.is_final = true;
        call.in = Bytes{};
        call.head = std::string();
        hold(call, 0);
        if (text[0] != '\0') call.trailers = text.substr(1);
        write(call, text[0] == '\0' ? std::string_view(text) : std::string_view());
    }

    void write(GrpcCall& call, std::string_view text) {
        call.out.append(text);
        unread_bytes_ += int64_t(text.size());
        if (!call.answered_s) call.answered_s = now_s_;
        nghttp2_session* session = connection_of(call).session;
        if (call.has_responded) {
            nghttp2_session_resume_data(session, call.id);
            return;
        }
        call.has_responded = true;
        Headers headers = response_headers();
        nghttp2_data_provider source{{.ptr = &call}, read_out};
        bool is_short = call.is_final && call.out.empty();
        if (is_short) add_trailers(headers, call.last_headers());
        nghttp2_submit_response(session, call.id, headers.data(), headers.size(), is_short ? nullptr : &source);
    }

    void cancel(GrpcCall& call) {
        finish(call);
        nghttp2_submit_rst_stream(connection_of(call).session, NGHTTP2_FLAG_NONE, call.id, NGHTTP2_CANCEL);
    }

    // -- called by nghttp2

    static GrpcConnection& own(void* data) { return *static_cast<GrpcConnection*>(data); }
    static GrpcCall* call_of(nghttp2_session* session, int32_t id) {
        return static_cast<GrpcCall*>(nghttp2_session_get_stream_user_data(session, id));
    }

    static int on_begin_frame(nghttp2_session* session, const nghttp2_frame_hd* frame, void* data) {
        GrpcConnection& one = own(data);
        double now_s = one.line->now_s_;
        bool is_small = frame->length < SMALL_BYTES && !(frame->flags & NGHTTP2_FLAG_END_STREAM);
        ++one.frames;
        switch (frame->type) {
            case NGHTTP2_HEADERS: one.continuations = 0; break;
            case NGHTTP2_CONTINUATION: one.break_if(++one.continuations > MOST_CONTINUATIONS, HEADS); break;
            case NGHTTP2_DATA: one.break_if(is_small && !one.odd_frames.take(now_s), FRAMES); break;
            case NGHTTP2_RST_STREAM:  // counted where it ends a call
                one.break_if(!call_of(session, frame->stream_id) && !one.odd_frames.take(now_s), FRAMES);
                break;
            default: one.break_if(!one.odd_frames.take(now_s), FRAMES);
        }
        if (frame->type == NGHTTP2_PING) one.pinged_s = now_s;
        return one.is_broken ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
    }

    static int on_unknown_frame(nghttp2_session*, void**, const nghttp2_frame_hd*, void*) { return NGHTTP2_ERR_CANCEL; }

    static int on_begin_headers(nghttp2_session* session, const nghttp2_frame* frame, void* data) {
        GrpcConnection& one = own(data);
        one.head_s = one.line->now_s_;
        if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
        GrpcCall& call = one.line->calls_.add();
        call.connection = one.token, call.id = frame->hd.stream_id;
        call.since_s = one.line->now_s_;
        ++one.calls;
        nghttp2_session_set_stream_user_data(session, call.id, &call);
        return 0;
    }

    static int on_header(nghttp2_session* session, const nghttp2_frame* frame, const uint8_t* name, size_t name_bytes,
                         const uint8_t* value, size_t value_bytes, uint8_t, void* data) {
        if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
        GrpcLine& line = *own(data).line;
        GrpcCall* call = call_of(session, frame->hd.stream_id);
        if (!call) return 0;
        call->header_bytes += name_bytes + value_bytes + 32;
        bool is_long = int64_t(call->header_bytes) > limit_of(line.settings.head_bytes);
        if (is_long || int64_t(++call->headers) > limit_of(line.settings.headers))
            return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
        call->add_header({reinterpret_cast<const char*>(name), name_bytes},
                         {reinterpret_cast<const char*>(value), value_bytes});
        return 0;
    }

    static int on_frame_recv(nghttp2_session* session, const nghttp2_frame* frame, void* data) {
        GrpcConnection& one = own(data);
        GrpcLine& line = *one.line;
        if (frame->hd.type == NGHTTP2_SETTINGS) one.has_settings = true;
        if (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA) return 0;
        GrpcCall* call = call_of(session, frame->hd.stream_id);
        if (frame->hd.type == NGHTTP2_HEADERS) {
            one.head_s = 0.0;
            if (call && frame->headers.cat == NGHTTP2_HCAT_REQUEST) line.begin(*call);
        }
        if (call && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM)) {
            call->has_ended = true;
            line.advance(*call);
        }
        return 0;
    }

    void begin(GrpcCall& call) {
        if (call.timeout_s) call.deadline_s = now_s_ + call.timeout_s;
        if (call.is_odd) {
            ++cuts[HEADS];
            connection_of(call).break_if(!account_of(call).resets.take(now_s_), HEADS);
            return answer(call, trailers_text("3", "the headers are too long, or one of them is repeated"));
        }
        call.head += '\n';
        Account& account = account_of(call);
        call.has_begun = true;
        count(call, 1);
        hold(call, call.head.size());
        account.unsent.push_back(call.token);
        if (int64_t(account.unsent.size()) > 2 * account.unsent_calls + FEW_CALLS)
            std::erase_if(account.unsent, [this](uint64_t token) {
                GrpcCall* one = calls_.find(token);
                return !one || one->has_message || one->stage == Stage::ANSWERED;
            });
        make_place(account);
    }

    static int on_data(nghttp2_session* session, uint8_t, int32_t id, const uint8_t* bytes, size_t count, void* data) {
        nghttp2_session_consume_connection(session, count);
        if (GrpcCall* call = call_of(session, id)) own(data).line->take(*call, reinterpret_cast<const char*>(bytes), count);
        return 0;
    }

    static ssize_t read_out(nghttp2_session* session, int32_t id, uint8_t* to, size_t room, uint32_t* flags,
                            nghttp2_data_source* source, void* data) {
        GrpcLine& line = *own(data).line;
        GrpcCall& call = *static_cast<GrpcCall*>(source->ptr);
        size_t count = std::min(room, call.unsent());
        memcpy(to, call.out.data() + call.out_at, count);
        call.out_at += count;
        line.unread_bytes_ -= int64_t(count);
        if (call.unsent()) return ssize_t(count);
        call.out = std::string(), call.out_at = 0;
        call.answered_s = 0.0;
        if (call.is_final) {
            *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
            Headers headers;
            add_trailers(headers, call.last_headers());
            nghttp2_submit_trailer(session, id, headers.data(), headers.size());
            return ssize_t(count);
        }
        if (!count) return NGHTTP2_ERR_DEFERRED;
        line.notify(call, SENT);
        return ssize_t(count);
    }

    static int on_frame_send(nghttp2_session* session, const nghttp2_frame* frame, void* data) {
        if (frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA) own(data).earn();
        bool ends = frame->hd.type == NGHTTP2_HEADERS && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM);
        if (ends && !nghttp2_session_get_stream_remote_close(session, frame->hd.stream_id))  // it need not send more
            nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id, NGHTTP2_NO_ERROR);
        return 0;
    }

    static int on_stream_close(nghttp2_session* session, int32_t id, uint32_t, void* data) {
        GrpcConnection& one = own(data);
        GrpcCall* call = call_of(session, id);
        if (!call) return 0;
        one.head_s = 0.0;
        if (call->stage != Stage::ANSWERED)  // reset by its client, with whatever code
            one.break_if(!one.account->resets.take(one.line->now_s_), RESETS);
        one.line->let_go(*call);
        one.line->end(*call);
        return 0;
    }
};

}  // namespace
