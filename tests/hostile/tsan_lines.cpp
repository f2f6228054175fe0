// Runs a compiled line in its thread while others use it as Python and clients do; for the thread sanitizer.
//
// `test_compiled_lines.py` builds it once for HTTP and once with -DGRPC. A line is made, used, drained, stopped and
// made again until the time is over. It needs no Python: an owner takes what the line has, answers it, and says now
// and then that all is forgotten; clients send requests that the line knows, and others, leave and reset.

#ifdef GRPC
#include "express_grpc.hpp"
using TestedLine = GrpcLine;
#else
#include "express_http.hpp"
using TestedLine = HttpLine;
#endif

#include <poll.h>

#include <cstdio>
#include <cstdlib>
#include <random>

namespace {

constexpr double LIFE_S = 2.0, DRAIN_S = 0.3;
constexpr int CLIENTS = 3;
constexpr int64_t NUMBER = 7;

using Dice = std::mt19937;
int roll(Dice& dice, int below) { return int(dice() % unsigned(below)); }

std::atomic<bool> is_over{false};
std::atomic<long> ready_seen{0}, notices_seen{0}, left_seen{0}, bytes_received{0};

const std::string TENSOR(2000, 'x');

#ifdef GRPC
const std::string PATH = "/test.Service/Infer";
const std::string TEXT = "what the message means";

std::string frame(int kind, int flags, uint32_t stream, const std::string& body) {
    std::string text{char(body.size() >> 16), char(body.size() >> 8), char(body.size()), char(kind), char(flags)};
    for (int shift = 24; shift >= 0; shift -= 8) text += char(stream >> shift);
    return text + body;
}
std::string field(const std::string& name, const std::string& value) {
    return std::string(1, '\0') + char(name.size()) + name + char(value.size()) + value;
}
std::string head_block() {
    return field(":method", "POST") + field(":scheme", "http") + field(":path", PATH) + field(":authority", "x") +
           field("content-type", "application/grpc");
}
std::string known_head() {
    std::string zero(1, '\0');
    return ":method" + zero + "POST\n:path" + zero + PATH + "\ncontent-type" + zero + "application/grpc\n\n";
}
std::string known_text() { return frame_prefix(TEXT.size() + TENSOR.size()) + TEXT; }
size_t known_bytes() { return PREFIX_BYTES + TEXT.size() + TENSOR.size(); }
std::string answer_text() { return frame_prefix(5) + "fine!"; }
std::string hello() { return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, ""); }

std::string call(Dice& dice, uint32_t stream) {
    std::string message = known_text() + TENSOR;
    if (!roll(dice, 4)) message[8] ^= 1;                    // not known
    if (!roll(dice, 6)) message.resize(message.size() / 2);  // not whole
    std::string text = frame(1, 4, stream, head_block()) + frame(0, roll(dice, 5) ? 1 : 0, stream, message);
    if (!roll(dice, 5)) text += frame(3, 0, stream, {0, 0, 0, char(roll(dice, 2) * 8)});
    if (!roll(dice, 9)) text += frame(6, 0, 0, "12345678");
    return text;
}
#else
std::string known_head() {
    return "POST /infer HTTP/1.1\r\nhost: x\r\ncontent-length: " + std::to_string(4 + TENSOR.size()) + "\r\n\r\n";
}
std::string known_text() { return "{\"\"}"; }
size_t known_bytes() { return known_text().size() + TENSOR.size(); }
std::string answer_text() { return "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nfine!"; }
std::string hello() { return ""; }

std::string call(Dice& dice, uint32_t) {
    std::string text = known_head() + known_text() + TENSOR;
    if (!roll(dice, 6)) text[7] ^= 1;                                       // an unknown head
    if (!roll(dice, 6)) text[known_head().size()] ^= 1;                     // an unknown text
    if (!roll(dice, 8)) text.resize(size_t(roll(dice, int(text.size()))));  // not whole
    return text;
}
#endif

void tell(Mailbox& line, Command command) {
    std::vector<Command> commands;
    commands.push_back(std::move(command));
    line.tell(std::move(commands));
}

Command with_token(Command::Kind kind, uint64_t token, std::string text = {}) {
    Command command{kind};
    command.token = token;
    command.text = std::move(text);
    return command;
}

void teach(Mailbox& line) {
    Command command{Command::LEARN};
    command.known = std::make_shared<Known>();
    command.known->number = NUMBER;
    command.known->parts.push_back({0, TENSOR.size()});
    command.head = known_head(), command.text = known_text(), command.bytes = known_bytes();
    tell(line, std::move(command));
}

// -- what Python does

void deal_with(Mailbox& line, const Notice& notice, Dice& dice) {
#ifdef GRPC
    switch (roll(dice, 5)) {
        case 0: return tell(line, with_token(Command::READ, notice.token));
        case 1: return tell(line, with_token(Command::CANCEL, notice.token));
        case 2: tell(line, with_token(Command::WRITE, notice.token, answer_text())); [[fallthrough]];
        default: tell(line, with_token(Command::ANSWER, notice.token, trailers_text("5", "not known")));
    }
#else
    int fd = int(notice.token);
    (void)!send(fd, answer_text().data(), answer_text().size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    bool comes_back = !notice.kind && roll(dice, 2);
    if (!comes_back) close(fd);
    Command command{comes_back ? Command::ADOPT : Command::GONE};
    command.token = uint64_t(fd);
    command.text = notice.address;
    tell(line, std::move(command));
#endif
}

void own(Mailbox& line, const std::atomic<bool>& ends) {
    Dice dice(1);
    std::vector<uint64_t> later;
    while (!ends) {
        pollfd ready{line.notify_fd, POLLIN, 0};
        poll(&ready, 1, 5);
        Published taken = line.take(roll(dice, 3) > 0);
        ready_seen += long(taken.ready.size()), notices_seen += long(taken.notices.size());
        left_seen += long(taken.left.size());
        std::vector<Command> answers;
        for (uint64_t token : later) answers.push_back(with_token(Command::ANSWER, token, answer_text()));
        later.clear();
        for (const Ready& one : taken.ready) {
            if (one.bytes.size < one.raw_at + TENSOR.size()) abort();
            if (roll(dice, 4)) answers.push_back(with_token(Command::ANSWER, one.token, answer_text()));
            else later.push_back(one.token);
        }
        line.tell(std::move(answers));
        for (const Notice& one : taken.notices) deal_with(line, one, dice);
    }
}

// Other threads of Python read counts, and set limits while the line runs.
void meddle(Mailbox& line, const std::atomic<bool>& ends) {
    Dice dice(2);
    while (!ends) {
        line.settings.connections = 100 + roll(dice, 2000);
        line.settings.connections_per_address = 100 + roll(dice, 2000);
        line.settings.held_bytes = double(int64_t(1) << (16 + roll(dice, 10)));
        line.settings.idle_s = 0.1 + roll(dice, 3);
        line.settings.hold_s = 0.001 * roll(dice, 6);
        line.settings.awake_s = 0.001 * roll(dice, 2);
        if (line.open.load() < 0) abort();
        if (!roll(dice, 10)) tell(line, Command{Command::FORGET}), teach(line);
        if (!roll(dice, 10)) {
            Command command = with_token(Command::CLOSE_FOR, uint64_t(NUMBER), answer_text());
            command.until_s = monotonic_s() + 0.005;
            tell(line, std::move(command));
        }
        usleep(5000);
    }
}

// -- what clients do

int connect_to(int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET, to.sin_port = htons(uint16_t(port)), to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    timeval patience{0, 50000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (!connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to)) return fd;
    close(fd);
    return -1;
}

void be_client(int port, unsigned seed) {
    Dice dice(seed);
    char received[65536];
    while (!is_over) {
        int fd = connect_to(port);
        if (fd < 0) {
            usleep(1000);
            continue;
        }
        std::string text = hello();
        int calls = 1 + roll(dice, 12);
        for (int at = 0; at < calls; ++at) {
            text += call(dice, uint32_t(2 * at + 1));
            if (roll(dice, 3) && at + 1 < calls) continue;  // several at once
            size_t half = roll(dice, 4) ? text.size() : text.size() / 2;
            if (send(fd, text.data(), half, MSG_NOSIGNAL) < 0) break;
            if (half < text.size()) usleep(500);
            if (send(fd, text.data() + half, text.size() - half, MSG_NOSIGNAL) < 0) break;
            text.clear();
            if (!roll(dice, 3)) continue;
            if (ssize_t count = recv(fd, received, sizeof received, 0); count > 0) bytes_received += count;
        }
        if (!roll(dice, 3)) {
            linger reset{1, 0};
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        } else if (!roll(dice, 3)) {
            shutdown(fd, SHUT_WR);
            if (ssize_t count = recv(fd, received, sizeof received, 0); count > 0) bytes_received += count;
        }
        close(fd);
    }
}

void live(int listener) {
    auto line = std::make_unique<TestedLine>(std::vector<int>{listener});
    std::atomic<bool> ends{false};
    line->start();
    teach(*line);
    std::thread owner([&] { own(*line, ends); }), other([&] { meddle(*line, ends); });
    usleep(useconds_t(1e6 * LIFE_S));
    tell(*line, Command{Command::DRAIN});
    usleep(useconds_t(1e6 * DRAIN_S));
    ends = true;
    other.join();
    std::thread stopper([&] { line->stop(); });  // while its owner may still be at it
    owner.join();
    stopper.join();
    Mailbox& mailbox = *line;
    for (const Notice& one : mailbox.take(true).notices) {
#ifndef GRPC
        close(int(one.token));
#else
        (void)one;
#endif
    }
}

}  // namespace

int main(int, char** words) {
    double seconds = words[1] ? atof(words[1]) : 10.0;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET, at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof at;
    if (bind(listener, reinterpret_cast<sockaddr*>(&at), sizeof at) || listen(listener, 128) ||
        getsockname(listener, reinterpret_cast<sockaddr*>(&at), &length))
        return perror("no port to listen at"), 2;
    std::vector<std::thread> clients;
    for (unsigned seed = 0; seed < CLIENTS; ++seed) clients.emplace_back(be_client, ntohs(at.sin_port), seed);
    for (double end_s = monotonic_s() + seconds; monotonic_s() < end_s;) live(listener);
    is_over = true;
    close(listener);
    for (auto& one : clients) one.join();
    printf("ready %ld, notices %ld, left %ld, bytes %ld\n", ready_seen.load(), notices_seen.load(), left_seen.load(),
           bytes_received.load());
    return ready_seen && notices_seen && left_seen && bytes_received ? 0 : 3;
}
