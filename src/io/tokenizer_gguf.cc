// Reads the byte-level BPE vocabulary inside a GGUF file (its metadata only; tensors are not touched).
// Layout: "GGUF", u32 version, u64 tensors, u64 pairs, then pairs of (string key, u32 type, value); strings are u64
// length and bytes, arrays u32 element type and u64 count. Every length is checked against what is left of the file.
#include <cstring>
#include <map>

#include "base/error.h"
#include "io/tokenizer_load.h"

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
    check(count <= bytes_.size() - at_, ErrorCode::kCorrupt, "{}: truncated: {} bytes wanted at byte {} of {}", where_,
          count, at_, bytes_.size());
  }
  std::string_view bytes_;
  const std::string& where_;
  uint64_t at_ = 0;
};

enum GgufType : uint32_t { kInt32 = 5, kUint32 = 4, kBool = 7, kString = 8, kArray = 9 };

uint64_t type_bytes(uint32_t type, const std::string& where) {
  static constexpr uint8_t kBytes[13] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  check(type < 13 && kBytes[type] != 0, ErrorCode::kCorrupt, "{}: unknown GGUF value type {}", where, type);
  return kBytes[type];
}

struct GgufFacts {
  std::string_view model, pre;
  std::vector<std::string_view> tokens, merges;
  std::vector<int32_t> token_types;
  int64_t bos = -1, eos = -1;
  bool add_bos = false;
};

void read_pair(GgufReader& reader, GgufFacts& facts) {
  const std::string_view key = reader.string();
  const auto type = reader.number<uint32_t>();
  if (type == kString) {
    const std::string_view value = reader.string();
    if (key == "tokenizer.ggml.model") facts.model = value;
    if (key == "tokenizer.ggml.pre") facts.pre = value;
  } else if (type == kArray) {
    const auto element = reader.number<uint32_t>();
    const auto count = reader.number<uint64_t>();
    if (element == kString) {
      check(count <= reader.left() / 8, ErrorCode::kCorrupt, "{}: array {} of {} strings does not fit in the file",
            reader.where(), key, count);
      std::vector<std::string_view> list(count);
      for (auto& value : list) value = reader.string();
      if (key == "tokenizer.ggml.tokens") facts.tokens = std::move(list);
      if (key == "tokenizer.ggml.merges") facts.merges = std::move(list);
    } else if (key == "tokenizer.ggml.token_type" && element == kInt32) {
      check(count <= reader.left() / 4, ErrorCode::kCorrupt, "{}: array {} of {} does not fit in the file",
            reader.where(), key, count);
      facts.token_types.resize(count);
      for (auto& value : facts.token_types) value = reader.number<int32_t>();
    } else {
      reader.skip(count, type_bytes(element, reader.where()));
    }
  } else if (type == kUint32) {
    const auto value = reader.number<uint32_t>();
    if (key == "tokenizer.ggml.bos_token_id") facts.bos = value;
    if (key == "tokenizer.ggml.eos_token_id") facts.eos = value;
  } else if (type == kBool) {
    const auto value = reader.number<uint8_t>();
    if (key == "tokenizer.ggml.add_bos_token") facts.add_bos = value != 0;
  } else {
    reader.skip(1, type_bytes(type, reader.where()));
  }
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
  check(facts.model == "gpt2", ErrorCode::kUnsupported, "{}: vocabulary kind \"{}\" (Octet reads \"gpt2\" from GGUF)",
        where, facts.model);
  check(!facts.tokens.empty(), ErrorCode::kCorrupt, "{}: no tokenizer.ggml.tokens", where);
  BpeVocabulary vocabulary;
  if (facts.pre.empty() || facts.pre == "gpt-2" || facts.pre == "default") {
    vocabulary.splits.push_back({.pattern = kGpt2Pattern});
  } else if (facts.pre == "llama-bpe" || facts.pre == "llama3" || facts.pre == "llama-v3") {
    vocabulary.splits.push_back({.pattern = kLlama3Pattern});
    vocabulary.ignore_merges = true;
  } else {
    fail(ErrorCode::kUnsupported, "{}: pre-tokenizer \"{}\" (known: gpt-2, llama-bpe)", where, facts.pre);
  }
  const auto in_range = [&](int64_t id) { return id >= 0 && id < static_cast<int64_t>(facts.tokens.size()); };
  for (size_t id = 0; id < facts.tokens.size(); ++id) {
    const int32_t type = id < facts.token_types.size() ? facts.token_types[id] : 1;
    const bool special = type == 3;  // 1 normal, 3 control, 4 user-defined, 5 unused
    const std::string text(facts.tokens[id]);
    if (special || type == 4) vocabulary.added.push_back({static_cast<int32_t>(id), text, special});
    vocabulary.tokens.push_back(text);
  }
  for (std::string_view merge : facts.merges) {
    const size_t space = merge.find(' ', 1);
    check(space != std::string_view::npos, ErrorCode::kCorrupt, "{}: merge \"{}\" has no space", where, merge);
    vocabulary.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  if (in_range(facts.bos)) vocabulary.bos = facts.tokens[static_cast<size_t>(facts.bos)];
  if (in_range(facts.eos)) vocabulary.eos = facts.tokens[static_cast<size_t>(facts.eos)];
  vocabulary.adds_bos = facts.add_bos;
  return std::make_unique<BpeTokenizer>(std::move(vocabulary), where);
}

}  // namespace octet
