// The choice of a reader by file name, the small formats, and what readers share.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "io/tokenizer_parts.h"
#include "io/tokenizer_utf8.h"

namespace octet {

namespace fs = std::filesystem;

bool holds_mark_inside(std::string_view piece, std::string_view mark) {
  while (piece.starts_with(mark)) piece.remove_prefix(mark.size());
  return piece.find(mark) != std::string_view::npos;
}

int parse_byte_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = 0;
  for (char c : token.substr(3, 2)) {
    const bool digit = c >= '0' && c <= '9', letter = c >= 'A' && c <= 'F';
    if (!digit && !letter) return -1;
    value = value * 16 + (digit ? c - '0' : c - 'A' + 10);
  }
  return value;
}

TokenIds ids_of(const std::vector<std::string>& tokens) {
  TokenIds ids;
  ids.reserve(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].empty()) ids.emplace(tokens[id], static_cast<int32_t>(id));
  }
  return ids;
}

int32_t named_id(const std::string& text, const char* role, const std::vector<AddedToken>& added, const TokenIds& ids,
                 const std::string& where) {
  if (text.empty()) return -1;
  for (const AddedToken& token : added) {
    if (token.text == text) return token.id;
  }
  const auto found = ids.find(text);
  check(found != ids.end(), ErrorCode::kCorrupt, "{}: {} \"{}\" is not in the vocabulary", where, role, text);
  return found->second;
}

void each_merge(const std::vector<std::pair<std::string, std::string>>& merges, const TokenIds& ids,
                const std::string& where, const OnMerge& on_merge) {
  std::string joined;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    joined.assign(left).append(right);
    const auto l = ids.find(left), r = ids.find(right), both = ids.find(joined);
    check(l != ids.end() && r != ids.end() && both != ids.end(), ErrorCode::kCorrupt,
          "{}: merge {} (\"{}\" + \"{}\") uses a token that is not in the vocabulary", where, rank, left, right);
    on_merge(l->second, r->second, {static_cast<uint32_t>(rank), both->second}, joined);
  }
}

std::string facts_of(const std::vector<SplitRule>& rules, const char* place) {
  std::string facts;
  for (const SplitRule& rule : rules) {
    facts += fmt::format("\n{} {} {} {}{}{}", rule.pattern, rule.literal, static_cast<int>(rule.behavior), rule.invert,
                         rule.spelled ? " spelled" : "", place);
  }
  return facts;
}

std::unique_ptr<Tokenizer> make_character_tokenizer(std::vector<std::string> characters) {
  check(!characters.empty(), ErrorCode::kInvalidArgument, "a character vocabulary needs at least one character");
  auto model = std::make_unique<Characters>();
  std::string json;
  for (size_t id = 0; id < characters.size(); ++id) {
    const Utf8Char character = utf8_at(characters[id], 0);
    check(character.length > 0 && static_cast<size_t>(character.length) == characters[id].size(), ErrorCode::kCorrupt,
          "character vocabulary: entry {} (\"{}\") is not one character", id, characters[id]);
    check(model->ids.emplace(character.code, static_cast<int32_t>(id)).second, ErrorCode::kCorrupt,
          "character vocabulary: U+{:04X} is listed twice", character.code);
    json += (id ? ", " : "") + json_quote(characters[id]);
  }
  TokenizerParts parts;
  parts.kind = "characters";
  parts.token_bytes = std::move(characters);
  parts.model = std::move(model);
  parts.files = [json] { return NamedFiles{{"characters.json", "{\n  \"characters\": [" + json + "]\n}\n"}}; };
  return std::make_unique<Tokenizer>(std::move(parts), "characters");
}

// The SentencePiece-like vocabularies of llama2.c (tok512.bin, tokenizer.bin): i32 longest token, then for each token a
// float32 score, i32 length and its bytes. Ids 0, 1, 2 are <unk>, <s>, </s>; 3..258 stand for the raw bytes. Text gets
// a space in front, starts as characters (bytes where the vocabulary lacks one) and joins the best-scored pair first.
std::unique_ptr<Tokenizer> read_llama2c(std::string_view bytes, const std::string& where) {
  using Type = SentencePieceVocabulary::Type;
  constexpr size_t kFirstByteId = 3, kFirstPieceId = kFirstByteId + 256;
  SentencePieceVocabulary vocabulary;
  auto& pieces = vocabulary.pieces;
  int32_t longest = 0;
  check(bytes.size() >= 4, ErrorCode::kCorrupt, "{}: {} bytes are too few for a llama2.c vocabulary", where,
        bytes.size());
  std::memcpy(&longest, bytes.data(), 4);
  for (size_t at = 4; at < bytes.size();) {
    float score = 0;
    int32_t length = -1;
    if (bytes.size() - at >= 8) {
      std::memcpy(&score, bytes.data() + at, 4);
      std::memcpy(&length, bytes.data() + at + 4, 4);
    }
    check(
        length >= 0 && length <= longest && static_cast<size_t>(length) <= bytes.size() - at - 8 && !std::isnan(score),
        ErrorCode::kCorrupt,
        "{}: token {} at byte {} of {} is damaged (length {}, longest {}, score {}); a llama2.c model has no "
        "vocabulary: name its tokenizer file",
        where, pieces.size(), at, bytes.size(), length, longest, score);
    pieces.push_back({replace_all(bytes.substr(at + 8, static_cast<size_t>(length)), " ", kSpaceMark), score});
    at += 8 + static_cast<size_t>(length);
  }
  check(pieces.size() >= kFirstPieceId && pieces[kFirstByteId].text == "<0x00>", ErrorCode::kCorrupt,
        "{}: not a llama2.c vocabulary: {} tokens, no byte tokens <0x00>.. from id {}", where, pieces.size(),
        kFirstByteId);
  pieces[0] = {"<unk>", 0, Type::kUnknown};
  pieces[1] = {"<s>", 0, Type::kControl};
  pieces[2] = {"</s>", 0, Type::kControl};
  for (size_t id = kFirstByteId; id < kFirstPieceId; ++id) pieces[id].type = Type::kByte;
  vocabulary.model = SentencePieceVocabulary::Model::kBpe;
  vocabulary.byte_fallback = vocabulary.keep_invalid = true;
  vocabulary.remove_extra_whitespaces = false;
  vocabulary.unk_surface = "<unk>";
  vocabulary.files = {{"tokenizer.bin", std::string(bytes)}};
  return make_sentencepiece(std::move(vocabulary), where);
}

namespace {

// What sentence-transformers does to a text before it is tokenized.
bool lowers_case(const std::string& path) {
  const nlohmann::json config = parse_json(read_file(path), path);
  return config.is_object() && config.value("do_lower_case", nlohmann::json()) == true;
}

std::unique_ptr<Tokenizer> load_file(const fs::path& path) {
  const std::string name = path.filename().string(), where = path.string();
  const auto beside = [&](const char* other) { return (path.parent_path() / other).string(); };
  if (name.ends_with(".gguf")) return read_gguf(read_file(where), where);
  const auto config = [&] {
    const std::string file = beside("tokenizer_config.json");
    return fs::exists(file) ? read_file(file) : "";
  };
  if (name.ends_with(".model")) return read_sentencepiece(read_file(where), config(), where);
  if (name.ends_with(".bin")) return read_llama2c(read_file(where), where);
  if (name == "encoder.json") return read_gpt2_files(read_file(where), read_file(beside("vocab.bpe")), where);
  if (name == "vocab.bpe") return load_file(beside("encoder.json"));
  if (name == "vocab.json") return read_gpt2_files(read_file(where), read_file(beside("merges.txt")), where);
  if (name == "merges.txt") return load_file(beside("vocab.json"));
  check(name.ends_with(".json"), ErrorCode::kUnsupported,
        "{}: unknown kind of vocabulary file (want tokenizer.json, *.model, vocab.json, encoder.json, characters.json, "
        "*.gguf or tok*.bin)",
        where);
  std::string text = read_file(where);
  if (name == "characters.json") return read_characters_json(text, where);
  if (const std::string file = beside("sentence_bert_config.json"); path_exists(file) && lowers_case(file)) {
    nlohmann::json json = parse_json(text, where);
    nlohmann::json steps = {{{"type", "Lowercase"}}};
    if (json.is_object() && json.value("normalizer", nlohmann::json()).is_object()) steps.push_back(json["normalizer"]);
    if (json.is_object()) json["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
    text = json.dump();
  }
  return read_tokenizer_json(text, config(), where);
}

}  // namespace

void copy_tokenizer_files(const std::string& from, const std::string& to) {
  for (const char* name : {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
                           "vocab.json", "merges.txt", "encoder.json", "vocab.bpe", "characters.json", "tokenizer.bin",
                           "generation_config.json", "chat_template.jinja"}) {
    const std::string path = from + "/" + name;
    if (path_exists(path)) write_file(to + "/" + name, read_file(path));
  }
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path) {
  std::error_code error;
  check(fs::exists(path, error), ErrorCode::kNotFound, "tokenizer {}: no such file or folder", path);
  if (!fs::is_directory(path, error)) return load_file(path);
  for (const char* name :
       {"tokenizer.json", "tokenizer.model", "vocab.json", "encoder.json", "characters.json", "tokenizer.bin"}) {
    if (fs::exists(fs::path(path) / name, error)) return load_file(fs::path(path) / name);
  }
  fs::path found;
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".gguf") && !(name.starts_with("tok") && name.ends_with(".bin"))) continue;
    check(found.empty(), ErrorCode::kInvalidArgument, "tokenizer {}: both {} and {}: name one of them", path,
          found.filename().string(), name);
    found = entry.path();
  }
  check(!found.empty(), ErrorCode::kNotFound,
        "tokenizer {}: the folder contains none of tokenizer.json, tokenizer.model, vocab.json + merges.txt, "
        "encoder.json + vocab.bpe, characters.json, *.gguf, tok*.bin",
        path);
  return load_file(found);
}

}  // namespace octet
