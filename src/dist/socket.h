// TCP sockets: listening, connecting, and what can be said of addresses. Errors name host and port.
#pragma once

#include <chrono>
#include <string>
#include <utility>

namespace octet {

using Clock = std::chrono::steady_clock;

// An open file of the operating system; closed with the object.
class Socket {
 public:
  explicit Socket(int descriptor = -1) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { close(); }
  int descriptor() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }
  void close();

 private:
  int descriptor_;
};

// A socket that listens at `port` (0: one that is free), does not block, and takes IPv4 and IPv6. When `address` is
// this machine's loopback only this machine can connect. Throws kIo.
Socket listen_at(const std::string& address, int port);
int port_of(const Socket& listener);
Socket accept_from(const Socket& listener);  // not open when nobody waits

// Connects to host name or number `address`, trying again until `deadline` where nobody listens yet or the name is not
// known yet. The socket does not block. Throws kIo with the last reason.
Socket connect_to(const std::string& address, int port, Clock::time_point deadline);
std::string host_name();                    // of this machine
std::string peer_of(const Socket& socket);  // "10.0.0.7:40112"

// Waits until `socket` can be read (or written), at most until `deadline`; whether it can.
bool wait_for(const Socket& socket, bool write, Clock::time_point deadline);
int milliseconds_until(Clock::time_point deadline);  // for poll: rounded up, at least 0

}  // namespace octet
