// File helpers, tokenizer.json writing and the choice of reader by file name: all file system access of the
// tokenizers.
#include "io/tokenizer_files.h"

#include <filesystem>

#include "base/error.h"
#include "io/tokenizer_load.h"
#include "io/tokenizer_utf8.h"

namespace octet {

namespace fs = std::filesystem;

void make_folder(const std::string& path) {
  if (path.empty()) return;
  std::error_code error;
  fs::create_directories(path, error);
  check(!error && fs::is_directory(path), ErrorCode::kIo, "cannot make the folder {}: {}", path, error.message());
}

std::string json_quote(std::string_view text) {
  int64_t replaced = 0;
  std::string out = "\"";
  for (char c : utf8_replace_invalid(text, &replaced)) {
    if (c == '"' || c == '\\') {
      out += '\\', out += c;
    } else if (static_cast<uint8_t>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

namespace {

const char* json_bool(bool value) { return value ? "true" : "false"; }

std::string pre_tokenizer_json(const BpeVocabulary& vocabulary) {
  const auto byte_level = [&](bool use_regex) {
    return fmt::format(R"({{"type": "ByteLevel", "add_prefix_space": {}, "trim_offsets": true, "use_regex": {}}})",
                       json_bool(vocabulary.add_prefix_space), json_bool(use_regex));
  };
  if (vocabulary.splits.empty()) return byte_level(false);
  if (vocabulary.splits.size() == 1 && vocabulary.splits[0] == SplitRule{.pattern = kGpt2Pattern}) {
    return byte_level(true);
  }
  static constexpr const char* kBehaviors[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious",
                                               "MergedWithNext"};
  std::string list;
  for (const SplitRule& rule : vocabulary.splits) {
    list += fmt::format(R"({{"type": "Split", "pattern": {{"{}": {}}}, "behavior": "{}", "invert": {}}}, )",
                        rule.literal ? "String" : "Regex", json_quote(rule.pattern),
                        kBehaviors[static_cast<int>(rule.behavior)], json_bool(rule.invert));
  }
  return fmt::format(R"({{"type": "Sequence", "pretokenizers": [{}{}]}})", list, byte_level(false));
}

std::string post_processor_json(const BpeVocabulary& vocabulary) {
  if (!vocabulary.adds_bos || vocabulary.bos.empty()) {
    return R"({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true})";
  }
  int32_t id = 0;
  for (const AddedToken& token : vocabulary.added) {
    if (token.text == vocabulary.bos) id = token.id;
  }
  const std::string bos = json_quote(vocabulary.bos);
  const std::string special = fmt::format(R"({{"SpecialToken": {{"id": {}, "type_id": 0}}}})", bos);
  return fmt::format(
      R"({{"type": "TemplateProcessing", "single": [{0}, {{"Sequence": {{"id": "A", "type_id": 0}}}}], )"
      R"("pair": [{0}, {{"Sequence": {{"id": "A", "type_id": 0}}}}, {0}, {{"Sequence": {{"id": "B", "type_id": 1}}}}], )"
      R"("special_tokens": {{{1}: {{"id": {1}, "ids": [{2}], "tokens": [{1}]}}}}}})",
      special, bos, id);
}

}  // namespace

std::string to_tokenizer_json(const BpeVocabulary& vocabulary) {
  check(vocabulary.normalizer.empty() && vocabulary.splits_before_prefix.empty(), ErrorCode::kInternal,
        "a vocabulary with a normalizer has no source to save");
  std::string out = "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [";
  const char* comma = "\n";
  for (const AddedToken& token : vocabulary.added) {
    out += fmt::format(
        "{}    {{\"id\": {}, \"content\": {}, \"single_word\": {}, \"lstrip\": {}, \"rstrip\": {}, \"normalized\": {}, "
        "\"special\": {}}}",
        comma, token.id, json_quote(token.text), json_bool(token.single_word), json_bool(token.lstrip),
        json_bool(token.rstrip), json_bool(token.normalized), json_bool(token.special));
    comma = ",\n";
  }
  out += fmt::format("\n  ],\n  \"normalizer\": null,\n  \"pre_tokenizer\": {},\n  \"post_processor\": {},\n",
                     pre_tokenizer_json(vocabulary), post_processor_json(vocabulary));
  out += fmt::format(
      "  \"decoder\": {{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": "
      "true}},\n"
      "  \"model\": {{\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n"
      "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n"
      "    \"byte_fallback\": false,\n    \"ignore_merges\": {},\n    \"vocab\": {{",
      json_bool(vocabulary.ignore_merges));
  comma = "\n";
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.tokens[id].empty()) continue;
    out += fmt::format("{}      {}: {}", comma, json_quote(vocabulary.tokens[id]), id);
    comma = ",\n";
  }
  out += "\n    },\n    \"merges\": [";
  comma = "\n";
  for (const auto& [left, right] : vocabulary.merges) {
    out += fmt::format("{}      {}", comma, json_quote(left + " " + right));
    comma = ",\n";
  }
  return out + "\n    ]\n  }\n}\n";
}

void BpeTokenizer::save(const std::string& dir) const {
  make_folder(dir);
  write_file(dir + "/tokenizer.json", vocabulary_.source.empty() ? to_tokenizer_json(vocabulary_) : vocabulary_.source);
  std::string config = "{\n";
  for (const auto& [key, text] : {std::pair("bos_token", vocabulary_.bos), std::pair("eos_token", vocabulary_.eos)}) {
    if (!text.empty()) config += fmt::format("  \"{}\": {},\n", key, json_quote(text));
  }
  config += fmt::format("  \"add_bos_token\": {},\n", json_bool(vocabulary_.adds_bos));
  write_file(dir + "/tokenizer_config.json", config + "  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n");
}

namespace {

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
        "{}: not a known vocabulary file (tokenizer.json, *.model, vocab.json, encoder.json, characters.json, *.gguf, "
        "tok*.bin)",
        where);
  const std::string text = read_file(where);
  if (name == "characters.json") return read_characters_json(text, where);
  return read_tokenizer_json(text, config(), where);
}

}  // namespace

void copy_tokenizer_files(const std::string& from, const std::string& to) {
  for (const char* name :
       {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "vocab.json",
        "merges.txt", "encoder.json", "vocab.bpe", "characters.json", "tokenizer.bin", "generation_config.json"}) {
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
        "tokenizer {}: the folder holds none of tokenizer.json, tokenizer.model, vocab.json + merges.txt, encoder.json "
        "+ vocab.bpe, "
        "characters.json, *.gguf, tok*.bin",
        path);
  return load_file(found);
}

}  // namespace octet
