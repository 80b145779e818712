#include "serve/keys.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include <array>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace octet::serve {
namespace {

using Digest = std::array<unsigned char, 32>;

Digest sha256(std::string_view text) {
  Digest digest{};
  EVP_Digest(text.data(), text.size(), digest.data(), nullptr, EVP_sha256(), nullptr);
  return digest;
}

std::string hex(const Digest& digest) {
  std::string text;
  for (unsigned char byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace

std::vector<ApiKey> read_keys(const std::string& path) {
  std::vector<ApiKey> keys;
  std::set<std::string> names, hashes;
  std::istringstream lines(read_file(path));
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string where = fmt::format("{} line {}", path, ++number);
    if (line.find_first_not_of(" \t\r") == std::string::npos || line[0] == '#') continue;
    const nlohmann::json entry = parse_json(line, where, /*unique_keys=*/true);
    ApiKey key{.name = json_get<std::string>(entry, "name", where),
               .hash = json_get<std::string>(entry, "sha256", where)};
    for (const auto& item : entry.items()) {
      const std::string& field = item.key();
      if (field == "name" || field == "sha256") continue;
      const auto limit = [&] {
        const auto count = json_get<int64_t>(entry, field.c_str(), where);
        check(count >= 0, ErrorCode::kInvalidArgument, "{}: {} is {} (want a whole number; 0 is no limit)", where,
              field, count);
        return count;
      };
      if (field == "requests_per_minute") {
        key.limits.requests_per_minute = limit();
      } else if (field == "tokens_per_minute") {
        key.limits.tokens_per_minute = limit();
      } else if (field == "texts") {
        key.limits.texts = limit();
      } else if (field == "priority") {
        key.limits.priority = json_get<int32_t>(entry, "priority", where);
      } else if (field == "admin") {
        key.admin = json_get<bool>(entry, "admin", where);
      } else if (field == "models") {
        key.models = json_get<std::vector<std::string>>(entry, "models", where);
        check(!key.models.empty(), ErrorCode::kInvalidArgument, "{}: models is empty (leave it out for all)", where);
      } else {
        fail(ErrorCode::kInvalidArgument,
             "{}: unknown field {} (want name, sha256, requests_per_minute, tokens_per_minute, texts, priority, admin "
             "or "
             "models)",
             where, field);
      }
    }
    check(key.hash.size() == 64 && key.hash.find_first_not_of("0123456789abcdef") == std::string::npos,
          ErrorCode::kInvalidArgument, "{}: sha256 is not a hash in 64 lower-case hex digits", where);
    check(names.insert(key.name).second && hashes.insert(key.hash).second, ErrorCode::kInvalidArgument,
          "{}: an earlier line has the same name or hash", where);
    keys.push_back(std::move(key));
  }
  check(!keys.empty(), ErrorCode::kInvalidArgument, "{} contains no key, so that every request would be refused", path);
  return keys;
}

std::string make_key() {
  std::array<unsigned char, 32> bits{};
  check(RAND_bytes(bits.data(), bits.size()) == 1, ErrorCode::kIo, "the system gives no random numbers");
  std::string text(44, '\0');
  EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()), bits.data(), bits.size());
  text.resize(43);  // without the '=' behind
  for (char& c : text) c = c == '+' ? '-' : c == '/' ? '_' : c;
  return "octet-" + text;
}

std::string key_line(const std::string& name, std::string_view key) {
  return nlohmann::ordered_json{{"name", name}, {"sha256", hex(sha256(key))}}.dump();
}

int64_t find_key(const std::vector<ApiKey>& keys, std::string_view authorization) {
  constexpr std::string_view kScheme = "Bearer ";
  if (authorization.starts_with(kScheme)) authorization.remove_prefix(kScheme.size());
  const std::string hash = hex(sha256(authorization));
  int64_t found = -1;
  for (size_t i = 0; i < keys.size(); ++i)
    if (CRYPTO_memcmp(hash.data(), keys[i].hash.data(), hash.size()) == 0) found = static_cast<int64_t>(i);
  return found;
}

}  // namespace octet::serve
