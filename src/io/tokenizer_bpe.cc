// Byte-level BPE: the spelling of bytes in its files, its parts, and the tokenizer.json that is saved.
#include <algorithm>

#include "base/error.h"
#include "io/tokenizer_parts.h"
#include "io/tokenizer_utf8.h"

namespace octet {
namespace {

bool is_plain_byte(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

const char* json_bool(bool value) { return value ? "true" : "false"; }

std::string pre_tokenizer_json(const BpeVocabulary& vocabulary) {
  const auto byte_level = [](bool use_regex) {
    return fmt::format(R"({{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": {}}})",
                       json_bool(use_regex));
  };
  if (vocabulary.splits.empty()) return byte_level(false);
  if (vocabulary.splits.size() == 1 && vocabulary.splits[0] == SplitRule{.pattern = kGpt2Pattern}) {
    return byte_level(true);
  }
  std::string list;
  for (const SplitRule& rule : vocabulary.splits) {
    list += fmt::format(R"({{"type": "Split", "pattern": {{"{}": {}}}, "behavior": "{}", "invert": {}}}, )",
                        rule.literal ? "String" : "Regex", json_quote(rule.pattern),
                        kSplitBehaviors[static_cast<int>(rule.behavior)], json_bool(rule.invert));
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

// Files that save() writes.
NamedFiles bpe_files(const BpeVocabulary& vocabulary, const std::string& source) {
  std::string config = "{\n";
  for (const auto& [key, text] : {std::pair("bos_token", vocabulary.bos), std::pair("eos_token", vocabulary.eos)}) {
    if (!text.empty()) config += fmt::format("  \"{}\": {},\n", key, json_quote(text));
  }
  config += fmt::format("  \"add_bos_token\": {},\n", json_bool(vocabulary.adds_bos));
  return {{"tokenizer.json", source.empty() ? to_tokenizer_json(vocabulary) : source},
          {"tokenizer_config.json", config + "  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n"}};
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

std::string to_tokenizer_json(const BpeVocabulary& vocabulary) {
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

std::unique_ptr<Tokenizer> make_bpe(BpeVocabulary vocabulary, const std::string& where, TokenizerParts parts,
                                    std::string source) {
  parts.kind = "bpe";
  if (source.empty()) parts.added = vocabulary.added, parts.splits = vocabulary.splits;
  parts.adds_bos = vocabulary.adds_bos;
  const std::vector<std::string>& tokens = vocabulary.tokens;
  size_t size = tokens.size();
  for (const AddedToken& token : parts.added) size = std::max(size, static_cast<size_t>(token.id) + 1);
  parts.token_bytes.resize(size);
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!unspell_bytes(tokens[id], parts.token_bytes[id])) parts.token_bytes[id] = tokens[id];
  }
  for (const AddedToken& token : parts.added) parts.token_bytes[static_cast<size_t>(token.id)] = token.text;
  const TokenIds ids = ids_of(tokens);
  parts.bos_id = named_id(vocabulary.bos, "the bos token", parts.added, ids, where);
  parts.eos_id = named_id(vocabulary.eos, "the eos token", parts.added, ids, where);

  auto model = std::make_unique<ByteBpe>();
  for (size_t byte = 0; byte < 256; ++byte) {
    const auto found = ids.find(byte_spellings()[byte]);
    if (found != ids.end()) model->byte_ids[byte] = found->second;
  }
  model->merges = MergeTable(vocabulary.merges.size());
  each_merge(vocabulary.merges, ids, where, [&](int32_t left, int32_t right, MergeTable::Merge merge, const auto&) {
    model->merges.insert(left, right, merge);
  });
  if (vocabulary.ignore_merges) {
    std::vector<bool> special(size);
    for (const AddedToken& token : parts.added) special[static_cast<size_t>(token.id)] = token.special;
    for (size_t id = 0; id < tokens.size(); ++id) {
      const auto number = static_cast<int32_t>(id);
      if (!tokens[id].empty() && !special[id] && number != parts.bos_id && number != parts.eos_id)
        model->whole_words.emplace(parts.token_bytes[id], number);
    }
  }
  const auto removes = [](const SplitRule& rule) { return rule.behavior == SplitRule::Behavior::kRemoved; };
  parts.byte_level =
      parts.normalizer.empty() && !parts.prefix_space && std::ranges::none_of(parts.splits_before_prefix, removes) &&
      std::ranges::none_of(parts.splits, removes) && std::ranges::find(model->byte_ids, -1) == model->byte_ids.end();
  parts.model = std::move(model);
  parts.facts = fmt::format("{} {} {}", vocabulary.ignore_merges, parts.normalizer.name(), parts.prefix_space) +
                facts_of(parts.splits_before_prefix, " before the prefix") + facts_of(parts.splits);
  for (const auto& [left, right] : vocabulary.merges) parts.facts.append("\n").append(left).append(" ").append(right);
  parts.files = [vocabulary = std::move(vocabulary), source = std::move(source)] {
    return bpe_files(vocabulary, source);
  };
  return std::make_unique<Tokenizer>(std::move(parts), where);
}

}  // namespace octet
