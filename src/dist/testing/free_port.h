// Ports for tests.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <string>

#include "base/error.h"
#include "dist/socket.h"

namespace octet {

// A port that no other test is given while this process lives, which an abstract socket of its name tells them, outside
// the range that connections get theirs from.
inline int free_port() {
  constexpr int kFirst = 29100, kCount = 3600;
  static int next = getpid();
  for (int tries = 0; tries < kCount; ++tries) {
    const int port = kFirst + next++ % kCount;
    const std::string name = "octet_port_" + std::to_string(port);
    sockaddr_un at{.sun_family = AF_UNIX, .sun_path = {}};
    name.copy(at.sun_path + 1, sizeof at.sun_path - 1);
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    const int kept = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    try {
      if (bind(kept, reinterpret_cast<const sockaddr*>(&at), size) == 0) {
        listen_at("127.0.0.1", port);
        return port;
      }
    } catch (const Error&) {
    }
    close(kept);
  }
  fail(ErrorCode::kIo, "no port of {} to {} is free", kFirst, kFirst + kCount);
}

}  // namespace octet
