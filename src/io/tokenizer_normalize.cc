// Normalisation (tokenizer_steps.h). Character properties and normal forms come from utf8proc.
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "io/tokenizer_steps.h"
#include "io/tokenizer_utf8.h"

namespace octet {
namespace {

utf8proc_category_t category(uint32_t code) { return utf8proc_category(static_cast<utf8proc_int32_t>(code)); }

// Calls `valid` with each maximal stretch of valid UTF-8; other bytes are copied to `out`.
template <typename Valid>
void for_valid(std::string_view text, std::string& out, Valid valid) {
  while (!text.empty()) {
    const size_t good = utf8_valid_prefix(text);
    if (good > 0) valid(text.substr(0, good));
    text.remove_prefix(good);
    while (!text.empty() && utf8_at(text, 0).length == 0) {
      out.push_back(text.front());
      text.remove_prefix(1);
    }
  }
}

// Maps a text character by character: `each` appends the replacement of a character.
template <typename Each>
std::string map_characters(std::string_view text, Each each) {
  std::string out;
  out.reserve(text.size());
  for_valid(text, out, [&](std::string_view valid) {
    for (size_t at = 0; at < valid.size();) {
      const Utf8Char character = utf8_at(valid, at);
      each(character.code, out);
      at += static_cast<size_t>(character.length);
    }
  });
  return out;
}

bool is_control(uint32_t code) {
  if (code == '\t' || code == '\n' || code == '\r') return false;
  switch (category(code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CS: return true;
    default: return false;
  }
}

// CJK Unified Ideographs and their extensions, as BERT's original code lists them.
bool is_ideograph(uint32_t code) {
  const auto within = [&](uint32_t first, uint32_t last) { return code >= first && code <= last; };
  return within(0x4E00, 0x9FFF) || within(0x3400, 0x4DBF) || within(0x20000, 0x2A6DF) || within(0x2A700, 0x2B73F) ||
         within(0x2B740, 0x2B81F) || within(0x2B920, 0x2CEAF) || within(0xF900, 0xFAFF) || within(0x2F800, 0x2FA1F);
}

}  // namespace

void TextNormalizer::add(const std::string& name, Step step) {
  name_ += (name_.empty() ? "" : " ") + name;
  steps_.push_back(std::move(step));
}

std::string TextNormalizer::apply(std::string_view text, const TextPlace& place) const {
  std::string out(text);
  for (const Step& step : steps_) out = step(out, place);
  return out;
}

std::string normal_form(NormalForm form, std::string_view text) {
  int options = UTF8PROC_STABLE;
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  options |= compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::kNfkc || form == NormalForm::kNfkd) options |= UTF8PROC_COMPAT;
  std::string out;
  out.reserve(text.size());
  const auto map = [&](std::string_view part) {
    utf8proc_uint8_t* mapped = nullptr;
    const auto length =
        utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(part.data()), static_cast<utf8proc_ssize_t>(part.size()),
                     &mapped, static_cast<utf8proc_option_t>(options));
    check(length >= 0, ErrorCode::kInternal, "normalising {} bytes: {}", part.size(), utf8proc_errmsg(length));
    out.append(reinterpret_cast<const char*>(mapped), static_cast<size_t>(length));
    std::free(mapped);
  };
  // ASCII characters stay as they are and change nothing before them; only the last of a run may take a mark behind it.
  const auto is_ascii = [](char c) { return static_cast<uint8_t>(c) < 0x80; };
  for_valid(text, out, [&](std::string_view valid) {
    while (!valid.empty()) {
      const auto ascii = static_cast<size_t>(std::find_if_not(valid.begin(), valid.end(), is_ascii) - valid.begin());
      if (ascii == valid.size()) return void(out.append(valid));
      const size_t kept = ascii > 0 ? ascii - 1 : 0;
      out.append(valid.substr(0, kept));
      const auto end = static_cast<size_t>(std::find_if(valid.begin() + ascii, valid.end(), is_ascii) - valid.begin());
      map(valid.substr(kept, end - kept));
      valid.remove_prefix(end);
    }
  });
  return out;
}

std::string lowercase(std::string_view text) {
  return map_characters(text, [](uint32_t code, std::string& out) {
    if (code == 0x130) {  // the only character whose lower case is two
      out += "i\xCC\x87";
    } else {
      utf8_append(out, static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
    }
  });
}

std::string strip_accents(std::string_view text) {
  return map_characters(text, [](uint32_t code, std::string& out) {
    const auto kind = category(code);
    if (kind != UTF8PROC_CATEGORY_MN && kind != UTF8PROC_CATEGORY_MC && kind != UTF8PROC_CATEGORY_ME) {
      utf8_append(out, code);
    }
  });
}

std::string strip_spaces(std::string_view text, bool left, bool right) {
  for (Utf8Char c = utf8_at(text, 0); left && c.length > 0 && unicode_is_space(c.code); c = utf8_at(text, 0)) {
    text.remove_prefix(static_cast<size_t>(c.length));
  }
  const auto last = [&] { return utf8_before(text, text.size()); };
  for (Utf8Char c = last(); right && c.length > 0 && unicode_is_space(c.code); c = last()) {
    text.remove_suffix(static_cast<size_t>(c.length));
  }
  return std::string(text);
}

std::string bert_clean(const BertCleaning& what, std::string_view text) {
  std::string out = map_characters(text, [&](uint32_t code, std::string& to) {
    if (what.clean_text) {
      if (code == 0 || code == 0xFFFD || is_control(code)) return;
      if (unicode_is_space(code)) code = ' ';
    }
    const bool apart = what.handle_chinese_chars && is_ideograph(code);
    if (apart) to += ' ';
    utf8_append(to, code);
    if (apart) to += ' ';
  });
  if (what.strip_accents) {
    out = map_characters(normal_form(NormalForm::kNfd, out), [](uint32_t code, std::string& to) {
      if (category(code) != UTF8PROC_CATEGORY_MN) utf8_append(to, code);
    });
  }
  return what.lowercase ? lowercase(out) : out;
}

void append_replaced(std::string& out, std::string_view text, std::string_view from, std::string_view to) {
  for (size_t at = 0; at < text.size();) {
    const size_t found = std::min(text.find(from, at), text.size());
    out.append(text.substr(at, found - at));
    if (found < text.size()) out += to;
    at = found + from.size();
  }
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  append_replaced(out, text, from, to);
  return out;
}

TextNormalizer::Step replace_step(const std::string& pattern, bool literal, const std::string& content,
                                  const std::string& where) {
  if (literal) {
    check(!pattern.empty(), ErrorCode::kInvalidArgument, "{}: Replace of an empty string", where);
    return [pattern, content](std::string_view text, const TextPlace&) { return replace_all(text, pattern, content); };
  }
  const auto regex = std::make_shared<Regex>(pattern, false, where);
  return [regex, content](std::string_view text, const TextPlace&) {
    RegexScratch scratch;
    std::string out;
    for_valid(text, out, [&](std::string_view valid) {
      Regex::Span found;
      size_t copied = 0;
      for (size_t from = 0; from <= valid.size() && regex->find(valid, from, scratch, found);) {
        out.append(valid.substr(copied, found.begin - copied)).append(content);
        copied = from = found.end;
        if (found.begin == found.end) from += static_cast<size_t>(std::max(1, utf8_at(valid, from).length));
      }
      out.append(valid.substr(copied));
    });
    return out;
  };
}

TextNormalizer::Step prepend_step(const std::string& prefix) {
  return [prefix](std::string_view text, const TextPlace& place) {
    return text.empty() || place.continues ? std::string(text) : prefix + std::string(text);
  };
}

}  // namespace octet
