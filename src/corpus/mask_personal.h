// Masks of personal data: e-mail addresses, public IP addresses and telephone numbers become fixed texts. By their form
// alone: a version number of four parts is an IP address here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

struct PersonalMasks {
  // Empty: left as it is.
  std::string email, ip, phone;
  // "email", "ip", "phone", each with its usual text, or "email=TEXT". Throws kInvalidArgument for others.
  explicit PersonalMasks(const std::vector<std::string>& words);
};

struct MaskCounts {
  int64_t emails = 0, ips = 0, phones = 0;
};

// Writes the text with its masks to `out` and returns true; false where there is nothing to mask.
bool mask_personal(const PersonalMasks& masks, std::string_view text, std::string& out, MaskCounts& counts);

}  // namespace octet
