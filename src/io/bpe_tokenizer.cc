// See bpe_tokenizer.h. Most words of a text have been seen before, so each caller borrows a scratch with a
// direct-mapped cache of short words, one 64-byte line each: no clearing, no growth, no locks on the way of a word.
#include "io/bpe_tokenizer.h"

#include <utf8proc.h>

#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "io/tokenizer_utf8.h"

namespace octet {
namespace {

constexpr size_t kCacheSlots = 1 << 15;  // 2 MiB a scratch: the level-2 cache of today's cores
constexpr size_t kCachedBytes = 23;
constexpr size_t kCachedTokens = 9;

struct alignas(64) CachedWord {
  std::array<uint64_t, 3> key{};  // the word's bytes, zero-padded; the last byte is its length, 0 = empty slot
  int32_t count = 0;
  std::array<int32_t, kCachedTokens> ids{};
};
static_assert(sizeof(CachedWord) == 64);

bool is_plain_byte(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

}  // namespace

const std::array<std::string, 256>& byte_spellings() {
  static const std::array<std::string, 256> table = [] {
    std::array<std::string, 256> spellings;
    uint32_t next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      utf8_append(spellings[byte], is_plain_byte(byte) ? static_cast<uint32_t>(byte) : next++);
    }
    return spellings;
  }();
  return table;
}

std::string spell_bytes(std::string_view bytes) {
  std::string out;
  for (char byte : bytes) out += byte_spellings()[static_cast<uint8_t>(byte)];
  return out;
}

bool unspell_bytes(std::string_view text, std::string& bytes) {
  static const std::array<int, 324> table = [] {
    std::array<int, 324> codes;
    codes.fill(-1);
    for (int byte = 0; byte < 256; ++byte) codes[utf8_at(byte_spellings()[byte], 0).code] = byte;
    return codes;
  }();
  bytes.clear();
  for (size_t at = 0; at < text.size();) {
    const Utf8Char character = utf8_at(text, at);
    if (character.length == 0 || character.code >= table.size() || table[character.code] < 0) return false;
    bytes.push_back(static_cast<char>(table[character.code]));
    at += static_cast<size_t>(character.length);
  }
  return true;
}

std::string normalize_text(Normalizer form, std::string_view text) {
  if (form == Normalizer::kNone) return std::string(text);
  int options = UTF8PROC_STABLE;
  const bool compose = form == Normalizer::kNfc || form == Normalizer::kNfkc;
  options |= compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == Normalizer::kNfkc || form == Normalizer::kNfkd) options |= UTF8PROC_COMPAT;
  std::string out;
  while (!text.empty()) {
    const size_t good = utf8_valid_prefix(text);
    if (good > 0) {
      utf8proc_uint8_t* mapped = nullptr;
      const auto length =
          utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(good),
                       &mapped, static_cast<utf8proc_option_t>(options));
      check(length >= 0, ErrorCode::kInternal, "normalising {} bytes: {}", good, utf8proc_errmsg(length));
      out.append(reinterpret_cast<const char*>(mapped), static_cast<size_t>(length));
      std::free(mapped);
      text.remove_prefix(good);
    }
    while (!text.empty() && utf8_at(text, 0).length == 0) {
      out.push_back(text.front());
      text.remove_prefix(1);
    }
  }
  return out;
}

struct BpeTokenizer::Scratch {
  SplitScratch split;
  MergeScratch merge;
  std::vector<int32_t> symbols;
  std::vector<CachedWord> cache = std::vector<CachedWord>(kCacheSlots);
};

BpeTokenizer::BpeTokenizer(BpeVocabulary vocabulary, const std::string& where)
    : vocabulary_(std::move(vocabulary)), splitter_(vocabulary_.splits, where), merges_(vocabulary_.merges.size()) {
  byte_level_ = vocabulary_.normalizer == Normalizer::kNone && !vocabulary_.add_prefix_space;
  for (const SplitRule& rule : vocabulary_.splits) {
    if (rule.behavior == SplitRule::Behavior::kRemoved && !rule.invert) byte_level_ = false;
  }
  size_t size = vocabulary_.tokens.size();
  for (const AddedToken& token : vocabulary_.added) size = std::max(size, static_cast<size_t>(token.id) + 1);
  token_bytes_.resize(size);
  std::unordered_map<std::string_view, int32_t> by_spelling;
  by_spelling.reserve(vocabulary_.tokens.size());
  for (size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
    const std::string& spelling = vocabulary_.tokens[id];
    if (spelling.empty()) continue;
    by_spelling.emplace(spelling, static_cast<int32_t>(id));
    if (!unspell_bytes(spelling, token_bytes_[id])) token_bytes_[id] = spelling;
  }
  for (const AddedToken& token : vocabulary_.added) token_bytes_[static_cast<size_t>(token.id)] = token.text;
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = by_spelling.find(byte_spellings()[byte]);
    byte_ids_[byte] = found == by_spelling.end() ? -1 : found->second;
    if (byte_ids_[byte] < 0) byte_level_ = false;
  }
  std::string joined;
  for (size_t rank = 0; rank < vocabulary_.merges.size(); ++rank) {
    const auto& [left, right] = vocabulary_.merges[rank];
    joined = left + right;
    const auto l = by_spelling.find(left), r = by_spelling.find(right), both = by_spelling.find(joined);
    check(l != by_spelling.end() && r != by_spelling.end() && both != by_spelling.end(), ErrorCode::kCorrupt,
          "{}: merge {} (\"{}\" + \"{}\") uses a token that is not in the vocabulary", where, rank, left, right);
    merges_.insert(l->second, r->second, {static_cast<uint32_t>(rank), both->second});
  }
  added_ = vocabulary_.added;
  const auto id_of = [&](const std::string& text, const char* role) {
    if (text.empty()) return -1;
    for (const AddedToken& token : added_) {
      if (token.text == text) return token.id;
    }
    const auto found = by_spelling.find(text);
    check(found != by_spelling.end(), ErrorCode::kCorrupt, "{}: the {} token \"{}\" is not in the vocabulary", where,
          role, text);
    return found->second;
  };
  bos_id_ = id_of(vocabulary_.bos, "bos");
  eos_id_ = id_of(vocabulary_.eos, "eos");
  adds_bos_ = vocabulary_.adds_bos && bos_id_ >= 0;
  std::string facts = fmt::format("{} {} {}", vocabulary_.ignore_merges, static_cast<int>(vocabulary_.normalizer),
                                  vocabulary_.add_prefix_space);
  for (const SplitRule& rule : vocabulary_.splits) {
    facts += fmt::format("\n{} {} {} {}", rule.pattern, rule.literal, static_cast<int>(rule.behavior), rule.invert);
  }
  for (const auto& [left, right] : vocabulary_.merges) facts.append("\n").append(left).append(" ").append(right);
  finish(facts);
  if (vocabulary_.ignore_merges) {
    for (size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
      if (!vocabulary_.tokens[id].empty() && !is_special(static_cast<int32_t>(id))) {
        whole_words_.emplace(token_bytes_[id], static_cast<int32_t>(id));
      }
    }
  }
}

BpeTokenizer::~BpeTokenizer() = default;

std::unique_ptr<BpeTokenizer::Scratch> BpeTokenizer::take_scratch() const {
  {
    std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      auto scratch = std::move(idle_.back());
      idle_.pop_back();
      return scratch;
    }
  }
  return std::make_unique<Scratch>();
}

void BpeTokenizer::encode_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const {
  CachedWord* slot = nullptr;
  std::array<uint64_t, 3> key{};
  if (word.size() <= kCachedBytes) {
    std::memcpy(key.data(), word.data(), word.size());
    key[2] |= static_cast<uint64_t>(word.size()) << 56;
    uint64_t hash = (key[0] ^ key[1] * 0x9E3779B97F4A7C15ull ^ key[2] * 0xC2B2AE3D27D4EB4Full);
    hash = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93ull;
    slot = &scratch.cache[hash >> 32 & (kCacheSlots - 1)];
    if (slot->key == key) {
      out.insert(out.end(), slot->ids.data(), slot->ids.data() + slot->count);
      return;
    }
  }
  std::vector<int32_t>& symbols = scratch.symbols;
  symbols.clear();
  if (const auto whole = whole_words_.find(word); whole != whole_words_.end()) {
    symbols.push_back(whole->second);
  } else {
    for (char c : word) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
      check(id >= 0, ErrorCode::kInvalidArgument,
            "the vocabulary has no token for byte 0x{:02x}: text holding it cannot be encoded",
            static_cast<uint8_t>(c));
      symbols.push_back(id);
    }
    apply_merges(merges_, symbols, scratch.merge);
  }
  out.insert(out.end(), symbols.begin(), symbols.end());
  if (slot != nullptr && symbols.size() <= kCachedTokens) {
    slot->key = key;
    slot->count = static_cast<int32_t>(symbols.size());
    std::copy(symbols.begin(), symbols.end(), slot->ids.begin());
  }
}

void BpeTokenizer::encode_piece(std::string_view piece, bool /*text_start*/, std::vector<int32_t>& out) const {
  auto scratch = take_scratch();
  std::string changed;
  if (vocabulary_.normalizer != Normalizer::kNone) {
    changed = normalize_text(vocabulary_.normalizer, piece);
    piece = changed;
  }
  if (vocabulary_.add_prefix_space && !piece.empty() && piece.front() != ' ') {
    changed = " " + std::string(piece);
    piece = changed;
  }
  for (std::string_view word : splitter_.split(piece, scratch->split)) encode_word(word, *scratch, out);
  std::lock_guard lock(mutex_);
  idle_.push_back(std::move(scratch));
}

}  // namespace octet
