// Reads the vocabulary inside a GGUF file (its metadata only; tensors are not touched): byte-level BPE ("gpt2"),
// SentencePiece BPE ("llama") and WordPiece ("bert").
// Layout: "GGUF", u32 version, u64 tensors, u64 pairs, then pairs of (string key, u32 type, value); strings are u64
// length and bytes, arrays u32 element type and u64 count. Every length is checked against what is left of the file.
#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/error.h"
#include "io/tokenizer_parts.h"

namespace octet {
namespace {

class GgufReader {
 public:
  GgufReader(std::string_view bytes, const std::string& where) : bytes_(bytes), where_(where) {}

  template <typename T>
  T number() {
    need(sizeof(T));
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  std::string_view string() {
    const auto length = number<uint64_t>();
    need(length);
    at_ += length;
    return bytes_.substr(at_ - length, length);
  }
  void skip(uint64_t count, uint64_t each) {
    check(each == 0 || count <= (bytes_.size() - at_) / each, ErrorCode::kCorrupt,
          "{}: truncated: an array of {} x {} bytes at byte {} of {}", where_, count, each, at_, bytes_.size());
    at_ += count * each;
  }
  uint64_t left() const { return bytes_.size() - at_; }
  const std::string& where() const { return where_; }

 private:
  void need(uint64_t count) {
    check(count <= bytes_.size() - at_, ErrorCode::kCorrupt, "{}: truncated: {} bytes expected at byte {} of {}",
          where_, count, at_, bytes_.size());
  }
  std::string_view bytes_;
  const std::string& where_;
  uint64_t at_ = 0;
};

enum GgufType : uint32_t { kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kString = 8, kArray = 9 };

uint64_t type_bytes(uint32_t type, const std::string& where) {
  static constexpr uint8_t kBytes[13] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  check(type < 13 && kBytes[type] != 0, ErrorCode::kCorrupt, "{}: unknown GGUF value type {}", where, type);
  return kBytes[type];
}

struct GgufFacts {
  std::map<std::string_view, std::string_view> texts;
  std::map<std::string_view, int64_t> numbers;  // of u32 and bool
  std::vector<std::string_view> tokens, merges;
  std::vector<int32_t> token_types;
  std::vector<float> scores;
  int32_t bos = -1, eos = -1, unknown = -1;
  std::string header;  // of a GGUF file with this metadata and no tensors

  std::string_view text(const char* key) const { return texts.contains(key) ? texts.at(key) : ""; }
  int64_t number(const char* key, int64_t otherwise) const {
    return numbers.contains(key) ? numbers.at(key) : otherwise;
  }
  // The token that `key` or else `other` names; -1: none.
  int32_t id(const char* key, const char* other = "") const {
    const int64_t named = number(key, number(other, -1));
    return named < static_cast<int64_t>(tokens.size()) ? static_cast<int32_t>(named) : -1;
  }
  std::string token(int32_t id, const std::string& otherwise) const {
    return id < 0 ? otherwise : std::string(tokens[static_cast<size_t>(id)]);
  }
  bool adds_bos(bool otherwise) const { return number("tokenizer.ggml.add_bos_token", otherwise) != 0; }
  int32_t type(size_t id) const { return id < token_types.size() ? token_types[id] : 1; }
};

template <typename T>
void read_list(GgufReader& reader, std::string_view key, const char* what, size_t each, std::vector<T>& out) {
  const auto count = reader.number<uint64_t>();
  check(count <= reader.left() / each, ErrorCode::kCorrupt, "{}: array {} of {}{} does not fit in the file",
        reader.where(), key, count, what);
  out.resize(count);
  for (T& value : out) {
    if constexpr (std::is_arithmetic_v<T>) value = reader.number<T>();
    if constexpr (!std::is_arithmetic_v<T>) value = reader.string();
  }
}

void read_pair(GgufReader& reader, GgufFacts& facts) {
  const std::string_view key = reader.string();
  const auto type = reader.number<uint32_t>();
  if (type == kString) {
    facts.texts[key] = reader.string();
  } else if (type == kUint32) {
    facts.numbers[key] = reader.number<uint32_t>();
  } else if (type == kBool) {
    facts.numbers[key] = reader.number<uint8_t>() != 0;
  } else if (type != kArray) {
    reader.skip(1, type_bytes(type, reader.where()));
  } else if (const auto element = reader.number<uint32_t>(); element == kString) {
    std::vector<std::string_view> others;
    auto& list = key == "tokenizer.ggml.tokens" ? facts.tokens : key == "tokenizer.ggml.merges" ? facts.merges : others;
    read_list(reader, key, " strings", 8, list);
  } else if (key == "tokenizer.ggml.token_type" && element == kInt32) {
    read_list(reader, key, "", 4, facts.token_types);
  } else if (key == "tokenizer.ggml.scores" && element == kFloat32) {
    read_list(reader, key, "", 4, facts.scores);
  } else {
    reader.skip(reader.number<uint64_t>(), type_bytes(element, reader.where()));
  }
}

std::unique_ptr<Tokenizer> gguf_bpe(const GgufFacts& facts, const std::string& where) {
  BpeVocabulary vocabulary;
  const std::string_view pre = facts.text("tokenizer.ggml.pre");
  if (pre.empty() || pre == "gpt-2" || pre == "default") {
    vocabulary.splits.push_back({.pattern = kGpt2Pattern});
  } else if (pre == "llama-bpe" || pre == "llama3" || pre == "llama-v3") {
    vocabulary.splits.push_back({.pattern = kLlama3Pattern});
    vocabulary.ignore_merges = true;
  } else {
    fail(ErrorCode::kUnsupported, "{}: pre-tokenizer \"{}\" (known: gpt-2, llama-bpe)", where, pre);
  }
  for (size_t id = 0; id < facts.tokens.size(); ++id) {
    const bool special = facts.type(id) == 3;  // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte
    const std::string text(facts.tokens[id]);
    if (special || facts.type(id) == 4) vocabulary.added.push_back({static_cast<int32_t>(id), text, special});
    vocabulary.tokens.push_back(text);
  }
  for (std::string_view merge : facts.merges) {
    const size_t space = merge.find(' ', 1);
    check(space != std::string_view::npos, ErrorCode::kCorrupt, "{}: merge \"{}\" has no space", where, merge);
    vocabulary.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  vocabulary.bos = facts.token(facts.bos, vocabulary.bos);
  vocabulary.eos = facts.token(facts.eos, vocabulary.eos);
  vocabulary.adds_bos = facts.adds_bos(false);
  return make_bpe(std::move(vocabulary), where);
}

// Vocabularies are filled up to a round size with pieces that repeat the unknown one, or with unused ones ("[PAD151]").
void mark_padding(std::vector<SentencePieceVocabulary::Piece>& pieces) {
  using Type = SentencePieceVocabulary::Type;
  const auto unknown =
      std::find_if(pieces.begin(), pieces.end(), [](const auto& piece) { return piece.type == Type::kUnknown; });
  std::set<std::string_view> seen;
  for (auto piece = pieces.begin(); piece != pieces.end(); ++piece) {
    const bool repeats = !seen.insert(piece->text).second;
    const bool as_unknown = unknown < piece && (piece->type == Type::kUnknown || piece->text == unknown->text);
    if (as_unknown || (repeats && piece->type == Type::kUnused)) piece->type = Type::kPadding;
  }
}

std::unique_ptr<Tokenizer> gguf_sentencepiece(const GgufFacts& facts, const std::string& where) {
  SentencePieceVocabulary vocabulary;
  check(facts.scores.size() == facts.tokens.size(), ErrorCode::kCorrupt, "{}: {} scores for {} tokens", where,
        facts.scores.size(), facts.tokens.size());
  for (size_t id = 0; id < facts.tokens.size(); ++id) {
    check(facts.type(id) >= 1 && facts.type(id) <= 6, ErrorCode::kCorrupt, "{}: token {} has the type {} (known: 1..6)",
          where, id, facts.type(id));
    vocabulary.pieces.push_back(
        {std::string(facts.tokens[id]), facts.scores[id], static_cast<SentencePieceVocabulary::Type>(facts.type(id))});
  }
  mark_padding(vocabulary.pieces);
  vocabulary.model = SentencePieceVocabulary::Model::kBpe;
  vocabulary.byte_fallback = true;
  vocabulary.add_dummy_prefix = facts.number("tokenizer.ggml.add_space_prefix", 1) != 0;
  vocabulary.remove_extra_whitespaces = facts.number("tokenizer.ggml.remove_extra_whitespaces", 0) != 0;
  vocabulary.bos = facts.token(facts.bos, vocabulary.bos);
  vocabulary.eos = facts.token(facts.eos, vocabulary.eos);
  vocabulary.adds_bos = facts.adds_bos(true);
  vocabulary.files = {{"vocabulary.gguf", facts.header}};
  return make_sentencepiece(std::move(vocabulary), where);
}

// Pieces that begin a word carry U+2581 in front, the others (BERT's "##") nothing; "[CLS]" and its like stand as they
// are.
std::unique_ptr<Tokenizer> gguf_word_piece(const GgufFacts& facts, const std::string& where) {
  TokenizerParts parts;
  auto pieces = std::make_unique<WordPiece>();
  for (size_t index = 0; index < facts.tokens.size(); ++index) {
    const auto id = static_cast<int32_t>(index);
    std::string_view text = facts.tokens[index];
    const bool named = text.starts_with('[') && text.ends_with(']') && text.size() > 2;
    const bool special = facts.type(index) == 3 || id == facts.bos || id == facts.eos || id == facts.unknown;
    const bool begins = text.starts_with(kSpaceMark);
    if (begins) text.remove_prefix(std::string_view(kSpaceMark).size());
    parts.token_bytes.push_back((begins ? " " : "") + std::string(text));
    if (special) parts.added.push_back({id, std::string(text)});
    if (special || named || text.empty()) continue;
    (begins ? pieces->first : pieces->following).insert(text, id);
  }
  pieces->unk_id = facts.unknown;
  parts.kind = "wordpiece";
  parts.model = std::move(pieces);
  parts.normalizer.add("bert", [](std::string_view text, const TextPlace&) { return bert_clean({}, text); });
  parts.splits = {{.pattern = "\\s", .behavior = SplitRule::Behavior::kRemoved}, {.pattern = kPunctuationPattern}};
  parts.bos_id = facts.bos;
  parts.eos_id = facts.eos;
  parts.adds_bos = facts.adds_bos(true);
  parts.first_space = FirstSpace::kOne;
  parts.facts = "bert";
  parts.files = [header = facts.header] { return NamedFiles{{"vocabulary.gguf", header}}; };
  return std::make_unique<Tokenizer>(std::move(parts), where);
}

}  // namespace

std::unique_ptr<Tokenizer> read_gguf(std::string_view bytes, const std::string& where) {
  GgufReader reader(bytes, where);
  check(bytes.starts_with("GGUF"), ErrorCode::kCorrupt, "{}: does not begin with GGUF", where);
  reader.skip(4, 1);
  const auto version = reader.number<uint32_t>();
  check(version == 2 || version == 3, ErrorCode::kUnsupported, "{}: GGUF version {} (known: 2, 3)", where, version);
  reader.skip(8, 1);
  GgufFacts facts;
  for (auto pairs = reader.number<uint64_t>(); pairs > 0; --pairs) read_pair(reader, facts);
  check(!facts.tokens.empty(), ErrorCode::kCorrupt, "{}: no tokenizer.ggml.tokens", where);
  facts.header = bytes.substr(0, bytes.size() - reader.left());
  std::fill_n(facts.header.begin() + 8, 8, '\0');  // the count of tensors
  facts.bos = facts.id("tokenizer.ggml.bos_token_id", "tokenizer.ggml.cls_token_id");
  facts.eos = facts.id("tokenizer.ggml.eos_token_id", "tokenizer.ggml.seperator_token_id");
  facts.unknown = facts.id("tokenizer.ggml.unknown_token_id");
  const std::string_view model = facts.text("tokenizer.ggml.model");
  if (model == "gpt2") return gguf_bpe(facts, where);
  if (model == "llama") return gguf_sentencepiece(facts, where);
  if (model == "bert") return gguf_word_piece(facts, where);
  fail(ErrorCode::kUnsupported, "{}: vocabulary kind \"{}\" (known: gpt2, llama, bert)", where, model);
}

}  // namespace octet
