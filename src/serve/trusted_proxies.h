// Whom a connection speaks for: proxies name their clients in X-Forwarded-For, and anyone may write that field, so it
// is believed of listed ones alone.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http.h"

namespace octet::serve {

class TrustedProxies {
 public:
  TrustedProxies() = default;
  // Addresses, networks ("10.0.0.0/8", "fd00::/8") or "unix". Throws kInvalidArgument for others.
  explicit TrustedProxies(const std::vector<std::string>& list);

  // The last address of the field that is no trusted proxy's, in the form of HttpRequest::peer; else `peer`.
  std::string client(const std::string& peer, const HttpFields& fields) const;

 private:
  using Address = std::array<uint8_t, 16>;  // IPv4 as ::ffff:a.b.c.d
  struct Network {
    Address address = {};
    int bits = 128;
  };
  static bool parse(std::string_view text, Address& address);
  bool trusted(const Address& address) const;

  std::vector<Network> networks_;
  bool unix_ = false;
};

}  // namespace octet::serve
