// What all tokenizers share: added tokens in the text, begin and end tokens, decoding, the fingerprint.
#include "io/tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "io/tokenizer_utf8.h"

namespace octet {
namespace {

bool is_word(const Utf8Char& character) { return character.length > 0 && unicode_is_word(character.code); }

// End of the white space before or after `at`, at least `least`.
size_t skip_spaces_before(std::string_view text, size_t at, size_t least) {
  for (;;) {
    const Utf8Char character = utf8_before(text, at);
    const auto length = static_cast<size_t>(character.length);
    if (length == 0 || !unicode_is_space(character.code) || at - length < least) return at;
    at -= length;
  }
}

size_t skip_spaces_after(std::string_view text, size_t at) {
  for (;;) {
    const Utf8Char character = utf8_at(text, at);
    if (character.length == 0 || !unicode_is_space(character.code)) return at;
    at += static_cast<size_t>(character.length);
  }
}

void hash_bytes(uint64_t& hash, std::string_view bytes) {  // FNV-1a, with the length so that fields cannot run together
  for (char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3ull;
  hash = (hash ^ bytes.size()) * 0x100000001B3ull;
}

}  // namespace

std::string shown_with_bytes(std::string_view text) {
  int64_t replaced = 0;
  std::string bytes;
  for (char c : text) bytes += fmt::format(" {:02x}", static_cast<uint8_t>(c));
  return fmt::format("\"{}\" (bytes{})", utf8_replace_invalid(text, &replaced), bytes);
}

int32_t UnknownText::meet(std::string_view text, int32_t unk_id) {
  if (places++ == 0) first = shown_with_bytes(text);
  return policy == Policy::kDrop ? -1 : unk_id;
}

void Tokenizer::finish(const std::string& kind_facts) {
  special_.assign(token_bytes_.size(), 0);
  uint64_t hash = 0xCBF29CE484222325ull;
  hash_bytes(hash, kind_facts);
  for (const std::string& bytes : token_bytes_) hash_bytes(hash, bytes);
  std::stable_sort(added_.begin(), added_.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  for (const AddedToken& token : added_) {
    check(token.id >= 0 && token.id < vocab_size(), ErrorCode::kInternal, "added token {} of {}", token.id,
          vocab_size());
    if (token.special) special_[static_cast<size_t>(token.id)] = 1;
    hash_bytes(hash, fmt::format("{} {} {}{}{}{}", token.id, token.text, token.special, token.lstrip, token.rstrip,
                                 token.single_word));
    const bool later = normalizes_ && token.normalized;
    std::string text = later ? normalize(token.text, {}) : token.text;
    if (text.empty()) continue;
    std::vector<Spelling>& spellings = (later ? normalized_ : raw_)[static_cast<uint8_t>(text[0])];
    spellings.push_back({std::move(text), &token});
  }
  for (SpellingTable* table : {&raw_, &normalized_}) {
    for (auto& list : *table) {
      std::stable_sort(list.begin(), list.end(),
                       [](const Spelling& a, const Spelling& b) { return a.text.size() > b.text.size(); });
    }
  }
  for (int32_t id : {bos_id_, eos_id_}) {
    if (id >= 0) special_[static_cast<size_t>(id)] = 1;
  }
  fingerprint_ = fmt::format("{}-{}-{:016x}", kind(), vocab_size(), hash);
}

const Tokenizer::Spelling* Tokenizer::match_added(const SpellingTable& table, std::string_view text, size_t at,
                                                  bool parse_special) const {
  for (const Spelling& spelling : table[static_cast<uint8_t>(text[at])]) {
    if (spelling.token->special && !parse_special) continue;
    if (text.compare(at, spelling.text.size(), spelling.text) != 0) continue;
    const size_t end = at + spelling.text.size();
    if (spelling.token->single_word && (is_word(utf8_before(text, at)) || is_word(utf8_at(text, end)))) continue;
    return &spelling;
  }
  return nullptr;
}

void Tokenizer::split_added(std::string_view text, const TextPlace& place, const SpellingTable& table,
                            bool parse_special, size_t enough, const OnPiece& on_piece,
                            std::vector<int32_t>& out) const {
  size_t begin = 0;
  const auto flush = [&](size_t end) {
    if (end == begin) return;
    const bool first = begin == 0 && place.first;
    on_piece(text.substr(begin, end - begin), {first, end == text.size() && place.last, first && place.continues});
  };
  const bool any = std::any_of(added_.begin(), added_.end(),
                               [&](const AddedToken& token) { return parse_special || !token.special; });
  for (size_t at = 0; any && at < text.size();) {
    const Spelling* found = match_added(table, text, at, parse_special);
    if (found == nullptr) {
      ++at;
      continue;
    }
    flush(found->token->lstrip ? skip_spaces_before(text, at, begin) : at);
    if (out.size() >= enough) return;
    out.push_back(found->token->id);
    at += found->text.size();
    if (found->token->rstrip) at = skip_spaces_after(text, at);
    begin = at;
  }
  flush(text.size());
}

void Tokenizer::encode_to(std::string_view text, const EncodeOptions& options, std::vector<int32_t>& out) const {
  const size_t enough = options.enough > 0 ? out.size() + static_cast<size_t>(options.enough) : SIZE_MAX;
  if (options.add_bos) {
    check(bos_id_ >= 0, ErrorCode::kInvalidArgument, "this {} vocabulary of {} tokens has no begin (bos) token", kind(),
          vocab_size());
    out.push_back(bos_id_);
  }
  UnknownText uncounted;
  UnknownText& unknown = options.unknown != nullptr ? *options.unknown : uncounted;
  const OnPiece encode_plain = [&](std::string_view piece, const TextPlace& place) {
    encode_piece(piece, place, enough, unknown, out);
  };
  const OnPiece encode_raw = [&](std::string_view piece, const TextPlace& place) {
    split_added(normalize(piece, place), place, normalized_, options.parse_special, enough, encode_plain, out);
  };
  split_added(text, {.continues = !options.text_start}, raw_, options.parse_special, enough,
              normalizes_ ? encode_raw : encode_plain, out);
  if (options.add_eos && out.size() < enough) {
    check(eos_id_ >= 0, ErrorCode::kInvalidArgument, "this {} vocabulary of {} tokens has no end (eos) token", kind(),
          vocab_size());
    out.push_back(eos_id_);
  }
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 8);
  encode_to(text, options, ids);
  return ids;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  check(id >= 0 && id < vocab_size(), ErrorCode::kInvalidArgument, "token {} is outside the vocabulary of {} tokens",
        id, vocab_size());
  return token_bytes_[static_cast<size_t>(id)];
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocab_size() && special_[static_cast<size_t>(id)] != 0;
}

std::string_view Tokenizer::shown_bytes(int32_t id, bool skip_special, bool& at_start) const {
  std::string_view bytes = token_bytes(id);
  if (is_special(id)) return skip_special ? std::string_view() : bytes;
  if (!at_start || first_space_ == FirstSpace::kKept) return bytes;
  if (id == unk_id_) return at_start = false, bytes;
  if (first_space_ == FirstSpace::kWholeToken) {
    bytes.remove_prefix(std::min(bytes.find_first_not_of(' '), bytes.size()));
  } else if (bytes.starts_with(' ')) {
    bytes.remove_prefix(1);
  }
  at_start = first_space_ == FirstSpace::kAll && bytes.empty();
  return bytes;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string out;
  bool at_start = true;
  for (int32_t id : ids) out.append(shown_bytes(id, skip_special, at_start));
  return out;
}

std::string StreamDecoder::push(int32_t id) {
  pending_.append(tokenizer_->shown_bytes(id, skip_special_, at_start_));
  const size_t held = utf8_incomplete_suffix(pending_);
  int64_t replaced = 0;
  std::string ready = utf8_replace_invalid(std::string_view(pending_).substr(0, pending_.size() - held), &replaced);
  pending_.erase(0, pending_.size() - held);
  return ready;
}

std::string StreamDecoder::finish() {
  int64_t replaced = 0;
  std::string ready = utf8_replace_invalid(pending_, &replaced);
  pending_.clear();
  return ready;
}

}  // namespace octet
