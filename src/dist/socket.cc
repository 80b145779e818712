#include "dist/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <thread>

#include "base/error.h"

namespace octet {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// All addresses of a host; null with `why` when there are none.
Addresses resolve(const char* host, int port, int flags, std::string& why) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_UNSPEC, hints.ai_socktype = SOCK_STREAM, hints.ai_flags = flags;
  const int error = getaddrinfo(host, std::to_string(port).c_str(), &hints, &found);
  if (error != 0) why = gai_strerror(error), found = nullptr;
  return {found, freeaddrinfo};
}

Socket open_socket(const addrinfo& at) {
  return Socket(socket(at.ai_family, at.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at.ai_protocol));
}

void set_option(const Socket& socket, int level, int option, int value) {
  setsockopt(socket.descriptor(), level, option, &value, sizeof value);
}

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  close();
  descriptor_ = std::exchange(other.descriptor_, -1);
  return *this;
}

void Socket::close() {
  if (is_open()) ::close(std::exchange(descriptor_, -1));
}

Socket listen_at(const std::string& address, int port) {
  std::string why;
  const Addresses all = resolve(is_loopback(address) ? address.c_str() : nullptr, port, AI_PASSIVE, why);
  // One IPv6 socket serves both kinds of address, where the machine has IPv6.
  for (const int family : {AF_INET6, AF_INET}) {
    for (const addrinfo* at = all.get(); at != nullptr; at = at->ai_next) {
      if (at->ai_family != family) continue;
      Socket listener = open_socket(*at);
      if (listener.is_open()) {
        set_option(listener, SOL_SOCKET, SO_REUSEADDR, 1);
        if (family == AF_INET6) set_option(listener, IPPROTO_IPV6, IPV6_V6ONLY, 0);
        if (bind(listener.descriptor(), at->ai_addr, at->ai_addrlen) == 0 && listen(listener.descriptor(), 1024) == 0)
          return listener;
      }
      why = std::strerror(errno);
    }
  }
  fail(ErrorCode::kIo, "rank 0 cannot listen at port {}: {}; set MASTER_PORT to another one for all ranks", port, why);
}

int port_of(const Socket& listener) {
  sockaddr_storage at{};
  socklen_t size = sizeof at;
  getsockname(listener.descriptor(), reinterpret_cast<sockaddr*>(&at), &size);
  return ntohs(at.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(at).sin6_port
                                        : reinterpret_cast<sockaddr_in&>(at).sin_port);
}

Socket accept_from(const Socket& listener) {
  Socket socket(accept4(listener.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.is_open()) set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  return socket;
}

Socket connect_to(const std::string& address, int port, Clock::time_point deadline) {
  std::string why = "no time was left";
  while (Clock::now() < deadline) {
    const Addresses all = resolve(address.c_str(), port, 0, why);
    for (const addrinfo* at = all.get(); at != nullptr; at = at->ai_next) {
      Socket socket = open_socket(*at);
      if (!socket.is_open()) continue;
      int error = connect(socket.descriptor(), at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
      if (error == EINPROGRESS) {
        // Packets may go unanswered for minutes: then the next address has its turn.
        error = ETIMEDOUT;
        socklen_t size = sizeof error;
        if (wait_for(socket, true, std::min(deadline, Clock::now() + std::chrono::seconds(5))))
          getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &size);
      }
      if (error == 0) {
        set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
        return socket;
      }
      why = std::strerror(error);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  fail(ErrorCode::kIo, "cannot reach rank 0 at {} port {}: {}; is it running, and may this machine connect to it?",
       address, port, why);
}

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string peer_of(const Socket& socket) {
  sockaddr_storage at{};
  socklen_t size = sizeof at;
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (getpeername(socket.descriptor(), reinterpret_cast<sockaddr*>(&at), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&at), size, host.data(), host.size(), port.data(), port.size(),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "unknown";
  return fmt::format("{}:{}", host.data(), port.data());
}

bool wait_for(const Socket& socket, bool write, Clock::time_point deadline) {
  pollfd poll_for{.fd = socket.descriptor(), .events = static_cast<short>(write ? POLLOUT : POLLIN)};
  return poll(&poll_for, 1, milliseconds_until(deadline)) > 0;
}

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

}  // namespace octet
