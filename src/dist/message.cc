#include "dist/message.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/error.h"

namespace octet {
namespace {

void append_size(std::string& bytes, size_t size) {
  const auto value = static_cast<uint32_t>(size);
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

uint32_t size_at(std::string_view bytes, size_t at) {
  check(bytes.size() >= at + sizeof(uint32_t), ErrorCode::kCorrupt, "a message is cut short");
  uint32_t value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

bool must_wait() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

const std::string& Message::field(size_t i) const {
  check(i < fields.size(), ErrorCode::kCorrupt, "a message of type {} has {} fields", static_cast<int>(type),
        fields.size());
  return fields[i];
}

uint64_t Message::number(size_t i) const {
  const std::string& text = field(i);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc() && end == text.data() + text.size(), ErrorCode::kCorrupt,
        "field {} of a message of type {} is no number", i, static_cast<int>(type));
  return value;
}

std::string encode(const Message& message) {
  size_t size = 1;
  for (const std::string& field : message.fields) size += sizeof(uint32_t) + field.size();
  check(size <= kLongestMessage, ErrorCode::kInvalidArgument,
        "a message of {} bytes between ranks (at most {}): send it in parts", size, kLongestMessage);
  std::string bytes;
  bytes.reserve(sizeof(uint32_t) + size);
  append_size(bytes, size);
  bytes.push_back(static_cast<char>(message.type));
  for (const std::string& field : message.fields) append_size(bytes, field.size()), bytes += field;
  return bytes;
}

std::optional<Message> decode(std::string_view bytes, size_t limit, size_t& size) {
  if (bytes.size() < sizeof(uint32_t)) return std::nullopt;
  const size_t length = size_at(bytes, 0);
  check(length >= 1 && length <= limit, ErrorCode::kCorrupt, "a message of {} bytes (want 1 to {})", length, limit);
  size = sizeof(uint32_t) + length;
  if (bytes.size() < size) return std::nullopt;
  std::string_view rest = bytes.substr(sizeof(uint32_t), length);
  check(static_cast<uint8_t>(rest[0]) < kMessageTypes, ErrorCode::kCorrupt, "a message of type {}",
        static_cast<uint8_t>(rest[0]));
  Message message{.type = static_cast<MessageType>(rest[0])};
  for (rest.remove_prefix(1); !rest.empty();) {
    const size_t field = size_at(rest, 0);
    rest.remove_prefix(sizeof(uint32_t));
    check(field <= rest.size(), ErrorCode::kCorrupt, "a field of {} bytes in the last {} of a message", field,
          rest.size());
    message.fields.emplace_back(rest.substr(0, field));
    rest.remove_prefix(field);
  }
  return message;
}

bool Link::flush() {
  while (!flushed()) {
    const ssize_t sent = ::send(socket_.descriptor(), out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL);
    if (sent < 0) return must_wait();
    sent_ += static_cast<size_t>(sent);
  }
  out_.clear(), sent_ = 0;
  return true;
}

bool Link::fill() {
  in_.erase(0, std::exchange(taken_, 0));
  std::array<char, 1 << 16> buffer;
  for (int piece = 0; piece < 64; ++piece) {  // then the others have their turn
    const ssize_t got = recv(socket_.descriptor(), buffer.data(), buffer.size(), 0);
    if (got <= 0) return got < 0 && must_wait();
    in_.append(buffer.data(), static_cast<size_t>(got));
  }
  return true;
}

std::optional<Message> Link::next() {
  size_t size = 0;
  auto message = decode(std::string_view(in_).substr(taken_), limit_, size);
  if (message.has_value()) taken_ += size;
  return message;
}

void Link::end_of_sending() { shutdown(socket_.descriptor(), SHUT_WR); }

}  // namespace octet
