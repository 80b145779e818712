#include "serve/page.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>

namespace octet::serve {
namespace {

constexpr std::string_view kPage =
#include "page_text.inc"
    ;

// 'sha256-...' of what stands between the first <tag> and </tag>.
std::string hash_of(const std::string& tag) {
  const size_t begin = kPage.find("<" + tag + ">") + tag.size() + 2, end = kPage.find("</" + tag + ">");
  std::array<unsigned char, 32> digest{};
  EVP_Digest(kPage.data() + begin, end - begin, digest.data(), nullptr, EVP_sha256(), nullptr);
  std::array<unsigned char, 45> text{};  // 44 characters and the end
  EVP_EncodeBlock(text.data(), digest.data(), static_cast<int>(digest.size()));
  return fmt::format("'sha256-{}'", reinterpret_cast<const char*>(text.data()));
}

}  // namespace

std::string_view page_text() { return kPage; }

const HttpFields& page_fields() {
  static const HttpFields kFields = {
      {"Content-Security-Policy",
       fmt::format("default-src 'none'; script-src {}; style-src {}; img-src data:; connect-src 'self'; "
                   "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
                   hash_of("script"), hash_of("style"))},
      {"X-Content-Type-Options", "nosniff"},
      {"Referrer-Policy", "no-referrer"},
      {"Cache-Control", "no-cache"}};
  return kFields;
}

}  // namespace octet::serve
