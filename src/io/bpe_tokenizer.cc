// See bpe_tokenizer.h. Each caller borrows a scratch with its own word cache, so that words are looked up without
// locks.
#include "io/bpe_tokenizer.h"

#include "base/error.h"
#include "io/tokenizer_utf8.h"
#include "io/word_cache.h"

namespace octet {
namespace {

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

struct BpeTokenizer::Scratch {
  SplitScratch split, split_prefixed;
  MergeScratch merge;
  std::vector<int32_t> symbols;
  WordCache cache;
  std::string prefixed;
};

BpeTokenizer::BpeTokenizer(BpeVocabulary vocabulary, const std::string& where)
    : vocabulary_(std::move(vocabulary)),
      before_prefix_(vocabulary_.splits_before_prefix, where),
      splitter_(vocabulary_.splits, where),
      merges_(vocabulary_.merges.size()) {
  normalizes_ = !vocabulary_.normalizer.empty();
  byte_level_ = !normalizes_ && !vocabulary_.add_prefix_space;
  for (const auto* splitter : {&before_prefix_, &splitter_}) {
    for (const SplitRule& rule : splitter->rules()) {
      if (rule.behavior == SplitRule::Behavior::kRemoved) byte_level_ = false;
    }
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
  std::string facts =
      fmt::format("{} {} {}", vocabulary_.ignore_merges, vocabulary_.normalizer.name(), vocabulary_.add_prefix_space);
  for (const auto* splitter : {&before_prefix_, &splitter_}) {
    for (const SplitRule& rule : splitter->rules()) {
      facts += fmt::format("\n{} {} {} {}", rule.pattern, rule.literal, static_cast<int>(rule.behavior), rule.invert);
      if (rule.spelled) facts += " spelled";
      if (splitter == &before_prefix_) facts += " before the prefix";
    }
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

void BpeTokenizer::encode_word(std::string_view word, Scratch& scratch, UnknownText& unknown,
                               std::vector<int32_t>& out) const {
  const int64_t unknown_before = unknown.places;
  WordCache::Place place;
  if (scratch.cache.find(word, out, place)) return;
  std::vector<int32_t>& symbols = scratch.symbols;
  symbols.clear();
  if (const auto whole = whole_words_.find(word); whole != whole_words_.end()) {
    symbols.push_back(whole->second);
  } else {
    for (char c : word) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
      check(id >= 0 || !unknown.refuse(-1), ErrorCode::kInvalidArgument,
            "the vocabulary has no token for byte 0x{:02x}: text holding it cannot be encoded",
            static_cast<uint8_t>(c));
      if (id < 0)
        unknown.meet({&c, 1}, -1);
      else
        symbols.push_back(id);
    }
    apply_merges(merges_, symbols, scratch.merge);
  }
  out.insert(out.end(), symbols.begin(), symbols.end());
  if (unknown.places == unknown_before) scratch.cache.store(place, symbols);  // else it depends on the policy
}

std::string BpeTokenizer::normalize(std::string_view piece, const TextPlace& place) const {
  return vocabulary_.normalizer.apply(piece, place);
}

void BpeTokenizer::encode_piece(std::string_view piece, const TextPlace& place, size_t enough, UnknownText& unknown,
                                std::vector<int32_t>& out) const {
  auto scratch = scratches_.take();
  bool continues = place.continues;
  const auto encode_one = [&](std::string_view word) {
    encode_word(word, *scratch, unknown, out);
    return out.size() < enough;
  };
  before_prefix_.each_piece(piece, scratch->split, [&](std::string_view part) {
    if (vocabulary_.add_prefix_space && !part.starts_with(' ') && !continues) {
      scratch->prefixed.assign(" ").append(part);
      part = scratch->prefixed;
    }
    continues = false;
    return splitter_.each_piece(part, scratch->split_prefixed, encode_one);
  });
  scratches_.give_back(std::move(scratch));
}

}  // namespace octet
