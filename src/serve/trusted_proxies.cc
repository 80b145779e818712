#include "serve/trusted_proxies.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/error.h"

namespace octet::serve {
namespace {

// "1.2.3.4:5" and "[::1]:5" without the port, "[::1]" without its brackets.
std::string_view host_part(std::string_view text) {
  if (text.starts_with('[')) return text.substr(1, text.find(']') - 1);
  const size_t colon = text.find(':');
  return colon == text.rfind(':') ? text.substr(0, colon) : text;
}

}  // namespace

bool TrustedProxies::parse(std::string_view text, Address& address) {
  const std::string name(text.substr(0, 64));
  address = {};
  if (inet_pton(AF_INET6, name.c_str(), address.data()) == 1) return true;
  address[10] = address[11] = 0xff;
  return inet_pton(AF_INET, name.c_str(), &address[12]) == 1;
}

TrustedProxies::TrustedProxies(const std::vector<std::string>& list) {
  for (const std::string& text : list) {
    if (text == "unix") {
      unix_ = true;
      continue;
    }
    const size_t slash = std::min(text.find('/'), text.size());
    const std::string host = text.substr(0, slash);
    Network network;
    bool known = parse(host, network.address);
    if (known && slash < text.size()) {
      const int most = host.find(':') == std::string::npos ? 32 : 128;
      int bits = -1;
      const auto [end, error] = std::from_chars(text.data() + slash + 1, text.data() + text.size(), bits);
      known = error == std::errc() && end == text.data() + text.size() && bits >= 0 && bits <= most;
      network.bits = 128 - most + bits;
    }
    check(
        known, ErrorCode::kInvalidArgument,
        "'{}' is not a proxy's address (want one such as 10.0.0.1, a network such as 10.0.0.0/8 or fd00::/8, or unix)",
        text);
    networks_.push_back(network);
  }
}

bool TrustedProxies::trusted(const Address& address) const {
  return std::ranges::any_of(networks_, [&](const Network& network) {
    for (int bit = 0; bit < network.bits; ++bit)
      if (((address[bit / 8] ^ network.address[bit / 8]) >> (7 - bit % 8) & 1) != 0) return false;
    return true;
  });
}

std::string TrustedProxies::client(const std::string& peer, const HttpFields& fields) const {
  Address address;
  if (peer == "unix" ? !unix_ : !parse(host_part(peer), address) || !trusted(address)) return peer;
  std::string list;
  for (const HttpField& field : fields)
    if (find_field({{field.name, "1"}}, "X-Forwarded-For") == "1") list += "," + field.value;
  std::string client = peer;
  while (!list.empty()) {  // the last one was written by the nearest proxy
    const size_t comma = list.rfind(',');
    const std::string_view entry = std::string_view(list).substr(comma + 1);
    const size_t begin = std::min(entry.find_first_not_of(" \t"), entry.size());
    const std::string_view host = host_part(entry.substr(begin, entry.find_last_not_of(" \t") + 1 - begin));
    if (!parse(host, address)) break;
    client = host.find(':') == std::string_view::npos ? std::string(host) : "[" + std::string(host) + "]";
    if (!trusted(address)) break;
    list.resize(comma);
  }
  return client;
}

}  // namespace octet::serve
