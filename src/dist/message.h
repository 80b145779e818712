// Messages of the control plane, and a socket that sends and receives them without blocking.
//
// On the wire: uint32 length of what follows, uint8 type, then each field as uint32 length and bytes. Numbers are
// fields of decimal digits. Whoever sends more than `limit` bytes at once, or a length that does not fit, is refused
// before memory is taken for it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dist/socket.h"

namespace octet {

enum class MessageType : uint8_t {
  kHello,      // to rank 0: protocol, token, rank, size, host, build
  kWelcome,    // from rank 0, when all ranks have said hello
  kRefused,    // from rank 0: why
  kHeartbeat,  // both ways: step, graph, graphs run so far
  kCall,       // to rank 0: sequence, operation, what this rank gives
  kReply,      // from rank 0: sequence, "last" after which connections may end, what all ranks get
  kGiveUp,     // to rank 0: why this rank cannot go on
  kLost,       // from rank 0: the error of all ranks
  kParcel,     // both ways: receiver (to rank 0) or sender (from it), bytes of the whole, a part of it
};
inline constexpr int kMessageTypes = 9;

struct Message {
  MessageType type = MessageType::kHello;
  std::vector<std::string> fields;

  // Throw kCorrupt when the field is not there, or no number.
  const std::string& field(size_t i) const;
  uint64_t number(size_t i) const;
};

std::string encode(const Message& message);

inline constexpr size_t kLongestHello = 4096;
inline constexpr size_t kLongestMessage = size_t{256} << 20;

// The message at the front of `bytes`; none when it is not whole yet. Throws kCorrupt for bytes that are none. `size`
// is set to the bytes it takes.
std::optional<Message> decode(std::string_view bytes, size_t limit, size_t& size);

class Link {
 public:
  explicit Link(Socket socket = Socket(), size_t limit = kLongestMessage) : socket_(std::move(socket)), limit_(limit) {}

  bool is_open() const { return socket_.is_open(); }
  const Socket& socket() const { return socket_; }
  void close() { socket_.close(); }
  void set_limit(size_t bytes) { limit_ = bytes; }

  void send(const Message& message) { out_ += encode(message); }  // queues it for flush
  bool flushed() const { return sent_ == out_.size(); }
  bool flush();                   // sends what the socket takes now; false when the other side is gone
  bool fill();                    // reads some of what has come; false when nothing more will come
  std::optional<Message> next();  // of what was read; throws kCorrupt
  void end_of_sending();          // the other side reads the end after what was flushed

 private:
  Socket socket_;
  std::string in_, out_;
  size_t taken_ = 0, sent_ = 0;  // of in_, out_
  size_t limit_;
};

}  // namespace octet
