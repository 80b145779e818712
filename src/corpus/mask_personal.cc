// See mask_personal.h. Each form is tried at the places where it can begin.
#include "corpus/mask_personal.h"

#include <arpa/inet.h>

#include <algorithm>

#include "base/error.h"

namespace octet {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; }
bool is_word(char c) { return is_digit(c) || is_letter(c) || c == '_' || (c & 0x80); }
bool is_local(char c) {
  return is_digit(c) || is_letter(c) || std::string_view("._%+-").find(c) != std::string_view::npos;
}

struct Range {
  size_t begin = 0, end = 0;  // equal: nothing
};

char at_or_nul(std::string_view text, size_t at) { return at < text.size() ? text[at] : '\0'; }

// The address around the '@' at `at`, not before `least`.
Range email_at(std::string_view text, size_t at, size_t least) {
  size_t begin = at, end = at + 1;
  while (begin > least && is_local(text[begin - 1])) --begin;
  while (begin < at && (text[begin] == '.' || text[begin] == '-')) ++begin;
  while (end < text.size() && (is_digit(text[end]) || is_letter(text[end]) || text[end] == '.' || text[end] == '-'))
    ++end;
  while (end > at && !is_digit(text[end - 1]) && !is_letter(text[end - 1])) --end;
  if (begin == at || end <= at + 1) return {};
  const std::string_view domain = text.substr(at + 1, end - at - 1);
  const size_t dot = domain.rfind('.');
  const bool named = dot != std::string_view::npos && dot > 0 && domain.find("..") == std::string_view::npos &&
                     domain.size() - dot > 2 && std::ranges::all_of(domain.substr(dot + 1), is_letter);
  return named ? Range{begin, end} : Range{};
}

// A public IPv4 address that begins at `at`.
Range ipv4_at(std::string_view text, size_t at) {
  int parts[4];
  size_t end = at;
  for (int i = 0; i < 4; ++i) {
    if (i > 0 && at_or_nul(text, end++) != '.') return {};
    const size_t begin = end;
    int value = 0;
    for (; end < begin + 3 && is_digit(at_or_nul(text, end)); ++end) value = value * 10 + (text[end] - '0');
    if (end == begin || value > 255 || (end - begin > 1 && text[begin] == '0')) return {};
    parts[i] = value;
  }
  const char next = at_or_nul(text, end);
  if (is_word(next) || (next == '.' && is_digit(at_or_nul(text, end + 1)))) return {};
  const int first = parts[0], second = parts[1];
  const bool own = first == 0 || first == 10 || first == 127 || first >= 224 || (first == 192 && second == 168) ||
                   (first == 172 && second >= 16 && second < 32) || (first == 169 && second == 254) ||
                   (first == 192 && second == 0 && parts[2] == 2);  // also those of documents
  return own ? Range{} : Range{at, end};
}

// A global IPv6 address (2000::/3) that begins at `at`.
Range ipv6_at(std::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size() && end < at + 40 &&
         (is_digit(text[end]) || text[end] == ':' || ((text[end] | 32) >= 'a' && (text[end] | 32) <= 'f')))
    ++end;
  if (end > at && text[end - 1] == ':' && !(end > at + 1 && text[end - 2] == ':')) --end;
  if (end - at < 7 || (text[at] != '2' && text[at] != '3') || is_word(at_or_nul(text, end))) return {};
  in6_addr address;
  return inet_pton(AF_INET6, std::string(text.substr(at, end - at)).c_str(), &address) == 1 ? Range{at, end} : Range{};
}

// +49 30 1234567, (212) 555-0123, 1-212-555-0123, 212.555.0123.
Range phone_at(std::string_view text, size_t at) {
  size_t end = at;
  const auto digits = [&](size_t count) {
    for (size_t i = 0; i < count; ++i)
      if (!is_digit(at_or_nul(text, end + i))) return false;
    end += count;
    return true;
  };
  const auto separator = [&] {
    const char c = at_or_nul(text, end);
    return c == ' ' || c == '-' || c == '.' ? ++end : 0;
  };
  const auto whole = [&] { return is_word(at_or_nul(text, end)) ? Range{} : Range{at, end}; };
  if (text[at] == '+') {
    size_t count = 0, last = at;
    for (size_t i = at + 1; i < text.size() && count <= 15; ++i) {
      if (is_digit(text[i]))
        ++count, last = i;
      else if (std::string_view(" -.()/").find(text[i]) == std::string_view::npos || i - last > 2)
        break;
    }
    end = last + 1;
    return count >= 8 && count <= 15 ? whole() : Range{};
  }
  if (text[at] == '1' && !is_digit(at_or_nul(text, at + 1))) ++end, separator();
  if (at_or_nul(text, end) == '(') {
    ++end;
    if (!digits(3) || at_or_nul(text, end++) != ')') return {};
    separator();
  } else if (!digits(3) || !separator()) {
    return {};
  }
  return digits(3) && separator() && digits(4) ? whole() : Range{};
}

}  // namespace

PersonalMasks::PersonalMasks(const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (word == "none" && words.size() == 1) return;
    const size_t equals = std::min(word.find('='), word.size());
    const std::string name = word.substr(0, equals), text = word.substr(std::min(equals + 1, word.size()));
    std::string* const field = name == "email" ? &email : name == "ip" ? &ip : name == "phone" ? &phone : nullptr;
    check(field != nullptr && (equals == word.size() || !text.empty()), ErrorCode::kInvalidArgument,
          "--mask {}: want email, ip, phone, or one with its text, as email=<EMAIL>, or none", word);
    *field = !text.empty() ? text : name == "email" ? "email@example.com" : name == "ip" ? "192.0.2.1" : "555-0100";
  }
}

bool mask_personal(const PersonalMasks& masks, std::string_view text, std::string& out, MaskCounts& counts) {
  out.clear();
  size_t done = 0;
  const auto put = [&](Range range, const std::string& mask, int64_t& count) {
    if (range.begin == range.end) return false;
    if (text.substr(range.begin, range.end - range.begin) == mask) return false;
    out.append(text.substr(done, range.begin - done)) += mask;
    done = range.end;
    ++count;
    return true;
  };
  const bool numbers = !masks.ip.empty() || !masks.phone.empty();
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '@' && !masks.email.empty() && put(email_at(text, at, done), masks.email, counts.emails)) {
      at = done;
      continue;
    }
    const bool begins = numbers && (is_digit(c) || c == '+' || c == '(') &&
                        (at == 0 || (!is_word(text[at - 1]) && text[at - 1] != '.' && text[at - 1] != ':'));
    if (begins && ((!masks.ip.empty() && is_digit(c) &&
                    (put(ipv4_at(text, at), masks.ip, counts.ips) || put(ipv6_at(text, at), masks.ip, counts.ips))) ||
                   (!masks.phone.empty() && put(phone_at(text, at), masks.phone, counts.phones))))
      at = done;
    else
      ++at;
  }
  if (done == 0) return false;
  out.append(text.substr(done));
  return true;
}

}  // namespace octet
