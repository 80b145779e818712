// For tests: a client of one connection, which sends and reads what it likes.
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <string>
#include <string_view>

namespace octet::serve {

// A peer: sends bytes, reads until the other end closes or enough is there.
class Peer {
 public:
  explicit Peer(int port) {
    socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in at{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0;
  }
  explicit Peer(const std::string& path) {
    socket_ = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un at{.sun_family = AF_UNIX};
    path.copy(at.sun_path, sizeof(at.sun_path) - 1);
    connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0;
  }
  ~Peer() { ::close(socket_); }
  Peer(const Peer&) = delete;

  bool connected() const { return connected_; }
  int socket() const { return socket_; }
  Peer& send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) break;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return *this;
  }
  Peer& half_close() {
    ::shutdown(socket_, SHUT_WR);
    return *this;
  }
  // Until `enough` is in what came, or the other end has closed.
  std::string read(std::string_view enough = "\xff") {
    while (text_.find(enough) == std::string::npos && more()) {
    }
    return text_;
  }
  // Whether the other end closes; false: it is silent for 20 s.
  bool ends() {
    while (more()) {
    }
    return ended_;
  }
  const std::string& text() const { return text_; }
  void reset() { text_.clear(); }

 private:
  bool more() {
    char block[4096];
    pollfd poll{.fd = socket_, .events = POLLIN};
    if (::poll(&poll, 1, 20'000) <= 0) return false;
    const ssize_t count = ::recv(socket_, block, sizeof(block), 0);
    if (count > 0) text_.append(block, static_cast<size_t>(count));
    ended_ = count <= 0;
    return count > 0;
  }
  int socket_ = -1;
  bool connected_ = false, ended_ = false;
  std::string text_;
};

}  // namespace octet::serve
