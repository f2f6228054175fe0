// One gRPC call: what has come of it, and what is still to be sent.

#pragma once

#include <nghttp2/nghttp2.h>

#include <bit>
#include <limits>

#include "express_line.hpp"

namespace {

constexpr size_t PREFIX_BYTES = 5;  // before each message: whether it is compressed, and its size
constexpr size_t LONGEST_KEPT_BYTES = 8192;  // of the headers that matter

// What a notice to Python says about a call.
enum Kind { OPENS = 1, MESSAGE = 2, ENDS = 4, TOO_LARGE = 8, FULL = 16, SENT = 32 };

enum class Stage { READING, WAITING, PYTHON, ANSWERED };

inline size_t message_bytes(const char* prefix) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(prefix);
    return size_t(bytes[1]) << 24 | size_t(bytes[2]) << 16 | size_t(bytes[3]) << 8 | size_t(bytes[4]);
}

inline std::string frame_prefix(size_t size) {
    return {'\0', char(size >> 24), char(size >> 16), char(size >> 8), char(size)};
}

inline std::string double_text(double value) {  // as protocol buffers write it, the lowest byte first
    static_assert(sizeof value == 8 && std::endian::native == std::endian::little);
    return {reinterpret_cast<const char*>(&value), sizeof value};
}

inline std::string varint_text(int64_t value) {  // in ten bytes, however small it is
    std::string text;
    for (int at = 0; at < 9; ++at) text += char((uint64_t(value) >> (7 * at) & 0x7F) | 0x80);
    return text + char(uint64_t(value) >> 63);
}

// -- headers that are sent: a response's, and trailers as names and values that end with zeros

using Headers = std::vector<nghttp2_nv>;
constexpr std::string_view OK_TRAILERS{"grpc-status\0" "0\0", 14};

inline void add_header(Headers& headers, std::string_view name, std::string_view value, uint8_t flags) {
    auto bytes = [](std::string_view text) { return reinterpret_cast<uint8_t*>(const_cast<char*>(text.data())); };
    headers.push_back({bytes(name), bytes(value), name.size(), value.size(), flags});
}

inline Headers response_headers() {
    constexpr uint8_t STAYS = NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE;
    Headers headers;
    headers.reserve(6);
    add_header(headers, ":status", "200", STAYS);
    add_header(headers, "content-type", "application/grpc", STAYS);
    return headers;
}

inline void add_trailers(Headers& headers, std::string_view text) {
    while (!text.empty()) {
        std::string_view name = text.substr(0, text.find('\0'));
        text.remove_prefix(std::min(text.size(), name.size() + 1));
        std::string_view value = text.substr(0, text.find('\0'));
        text.remove_prefix(std::min(text.size(), value.size() + 1));
        add_header(headers, name, value, NGHTTP2_NV_FLAG_NONE);
    }
}

// What an answer with a status looks like; a framed message would begin with a zero.
inline std::string trailers_text(std::string_view status, std::string_view message) {
    std::string text = "\1";
    for (std::string_view one : {std::string_view("grpc-status"), status, std::string_view("grpc-message"), message})
        text.append(one).push_back('\0');
    return text;
}

// What the messages behind a head mean.
class GrpcHead {
  public:
    void learn(const std::string& text, size_t message_bytes, const std::shared_ptr<Known>& known) {
        lengths_[message_bytes].insert(text.size());
        calls_[text] = known;
    }

    // Find what a message means, and where its tensors begin.
    std::shared_ptr<Known> find(const Bytes& message, size_t& raw_at) const {
        auto lengths = lengths_.find(message.size);
        if (lengths == lengths_.end()) return nullptr;
        for (size_t length : lengths->second) {
            auto call = calls_.find(message.view(0, length));  // it holds the size of the message, too
            if (call == calls_.end()) continue;
            bool fits = true;
            for (const Fixed& one : call->second->fixed)
                fits = fits && message.view(length + one.start, one.bytes.size()) == one.bytes;
            raw_at = length;
            if (fits) return call->second;
        }
        return nullptr;
    }

  private:
    ByText<std::shared_ptr<Known>> calls_;                            // by the bytes before the first tensor
    std::unordered_map<size_t, std::unordered_set<size_t>> lengths_;  // of these bytes, by the size of the message
};

struct GrpcCall {
    uint64_t token = 0, connection = 0;
    int32_t id = 0;
    Stage stage = Stage::READING;
    std::string head;  // the headers that matter
    size_t header_bytes = 0, headers = 0;
    double since_s = 0.0, timeout_s = 0.0, deadline_s = std::numeric_limits<double>::infinity();

    Bytes in;
    size_t need = 0;     // bytes of the message that arrives, once its size is known
    size_t granted = 0;  // of what is here, that the client may replace by more
    size_t held = 0;
    bool is_wanted = true, is_deaf = false, has_ended = false;
    bool has_begun = false, has_message = false;  // its headers are here, its first message is
    bool is_odd = false;       // its headers are too long, or repeated

    std::string out, trailers;
    size_t out_at = 0;
    bool has_responded = false, is_final = false;
    double answered_s = 0.0;  // since when there is something to send

    size_t unsent() const { return out.size() - out_at; }
    std::string_view last_headers() const { return trailers.empty() ? OK_TRAILERS : std::string_view(trailers); }

    // Keep a header if the answer can depend on it. A few bytes of a client can repeat one, so none is kept twice.
    void add_header(std::string_view name, std::string_view value) {
        if (name == "grpc-timeout") timeout_s = seconds_of(value);
        constexpr std::string_view KEPT[] = {":method", ":path", "content-type", "grpc-encoding", "authorization"};
        for (size_t at = 0; at < std::size(KEPT); ++at) {
            if (name != KEPT[at]) continue;
            is_odd |= kept_ & (1u << at) || head.size() + name.size() + value.size() > LONGEST_KEPT_BYTES;
            kept_ |= 1u << at;
            if (!is_odd) head.append(name).append(1, '\0').append(value).append(1, '\n');
        }
    }

  private:
    unsigned kept_ = 0;  // which of them are here

    static double seconds_of(std::string_view text) {  // such as 100m; 0 if it is nothing of the kind
        double value = 0.0;
        size_t at = 0;
        for (; at < text.size() && at < 8 && text[at] >= '0' && text[at] <= '9'; ++at) value = 10 * value + text[at] - '0';
        if (!at || at + 1 != text.size()) return 0.0;
        constexpr std::pair<char, double> UNITS[] = {{'H', 3600.0}, {'M', 60.0}, {'S', 1.0},
                                                     {'m', 1e-3},   {'u', 1e-6}, {'n', 1e-9}};
        for (auto [unit, seconds] : UNITS)
            if (unit == text[at]) return seconds * value;
        return 0.0;
    }
};

}  // namespace
