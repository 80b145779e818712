// Reads Hugging Face tokenizer.json of the byte-level BPE kind, and GPT-2's pair of files. What changes the ids and is
// not understood here is refused by name; nothing is skipped in silence. One of the few files that include nlohmann.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/tokenizer_load.h"

namespace octet {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxVocabulary = 1 << 24;  // a lying id must not make us allocate the machine's memory

Json parse(std::string_view text, const std::string& where) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    fail(ErrorCode::kCorrupt, "{}: not valid JSON: {}", where, error.what());
  }
}

// Wrong types inside the file surface as nlohmann exceptions; they become one clear error.
template <typename Body>
auto guarded(const std::string& where, Body body) {
  try {
    return body();
  } catch (const Json::exception& error) {
    fail(ErrorCode::kCorrupt, "{}: a field is missing or of the wrong type: {}", where, error.what());
  }
}

bool present(const Json& object, const char* key) { return object.contains(key) && !object.at(key).is_null(); }

// nlohmann would turn 1e300 into some integer; ids must be written as integers.
int64_t integer(const Json& value, const std::string& where) {
  check(value.is_number_integer(), ErrorCode::kCorrupt, "{}: {} is not an integer id", where, value.dump());
  return value.get<int64_t>();
}

std::string type_of(const Json& object) { return object.value("type", std::string("(no type)")); }

void place_token(std::vector<std::string>& tokens, const std::string& text, int64_t id, const std::string& where) {
  check(id >= 0 && id < kMaxVocabulary, ErrorCode::kCorrupt, "{}: token \"{}\" has id {} (want 0..{})", where, text, id,
        kMaxVocabulary - 1);
  if (static_cast<size_t>(id) >= tokens.size()) tokens.resize(static_cast<size_t>(id) + 1);
  std::string& slot = tokens[static_cast<size_t>(id)];
  check(slot.empty(), ErrorCode::kCorrupt, "{}: id {} is given to both \"{}\" and \"{}\"", where, id, slot, text);
  slot = text;
}

void read_vocabulary(const Json& vocab, std::vector<std::string>& tokens, const std::string& where) {
  check(vocab.is_object(), ErrorCode::kCorrupt, "{}: the vocabulary is {}, not an object of token: id", where,
        vocab.type_name());
  check(!vocab.empty(), ErrorCode::kCorrupt, "{}: the vocabulary is empty", where);
  tokens.reserve(vocab.size());
  for (const auto& [text, id] : vocab.items()) place_token(tokens, text, integer(id, where), where);
}

Normalizer read_normalizer(const Json& object, const std::string& where) {
  const std::string type = type_of(object);
  if (type == "NFC") return Normalizer::kNfc;
  if (type == "NFD") return Normalizer::kNfd;
  if (type == "NFKC") return Normalizer::kNfkc;
  if (type == "NFKD") return Normalizer::kNfkd;
  if (type == "Sequence") {
    const Json& list = object.at("normalizers");
    if (list.empty()) return Normalizer::kNone;
    if (list.size() == 1) return read_normalizer(list[0], where);
  }
  fail(ErrorCode::kUnsupported, "{}: normalizer {} (known: NFC, NFD, NFKC, NFKD)", where, type);
}

void read_pre_tokenizer(const Json& object, BpeVocabulary& out, bool& byte_level, const std::string& where) {
  const std::string type = type_of(object);
  if (type == "Sequence") {
    for (const Json& each : object.at("pretokenizers")) read_pre_tokenizer(each, out, byte_level, where);
  } else if (type == "ByteLevel") {
    byte_level = true;
    out.add_prefix_space = out.add_prefix_space || object.value("add_prefix_space", true);
    if (object.value("use_regex", true)) out.splits.push_back({.pattern = kGpt2Pattern});
  } else if (type == "Digits") {
    out.splits.push_back({.pattern = object.value("individual_digits", false) ? "\\p{N}" : "\\p{N}+"});
  } else if (type == "Split") {
    SplitRule rule;
    const Json& pattern = object.at("pattern");
    rule.literal = pattern.contains("String");
    rule.pattern = pattern.at(rule.literal ? "String" : "Regex").get<std::string>();
    rule.invert = object.value("invert", false);
    const std::string behavior = object.at("behavior").get<std::string>();
    check(behavior == "Isolated" || behavior == "Removed", ErrorCode::kUnsupported,
          "{}: Split behaviour {} (known: Isolated, Removed)", where, behavior);
    if (behavior == "Removed") rule.behavior = SplitRule::Behavior::kRemoved;
    out.splits.push_back(std::move(rule));
  } else {
    fail(ErrorCode::kUnsupported, "{}: pre-tokenizer {} (known: ByteLevel, Split, Digits, Sequence)", where, type);
  }
}

void read_post_processor(const Json& object, BpeVocabulary& out) {
  if (type_of(object) == "Sequence") {
    for (const Json& each : object.at("processors")) read_post_processor(each, out);
  } else if (type_of(object) == "TemplateProcessing") {
    const Json& single = object.at("single");
    if (!single.empty() && single[0].contains("SpecialToken")) {
      out.bos = single[0].at("SpecialToken").at("id").get<std::string>();
      out.adds_bos = true;
    }
  }
}

void read_added_tokens(const Json& list, BpeVocabulary& out, const std::string& where) {
  for (const Json& each : list) {
    AddedToken token;
    token.text = each.at("content").get<std::string>();
    const int64_t id = integer(each.at("id"), where);
    check(id >= 0 && id < kMaxVocabulary, ErrorCode::kCorrupt, "{}: added token \"{}\" has id {} (want 0..{})", where,
          token.text, id, kMaxVocabulary - 1);
    token.id = static_cast<int32_t>(id);
    token.special = each.value("special", false);
    token.lstrip = each.value("lstrip", false);
    token.rstrip = each.value("rstrip", false);
    token.single_word = each.value("single_word", false);
    token.normalized = each.value("normalized", false);
    out.added.push_back(std::move(token));
  }
}

void read_model(const Json& model, BpeVocabulary& out, const std::string& where) {
  check(model.value("type", std::string("BPE")) == "BPE", ErrorCode::kUnsupported,
        "{}: model type {} (Octet reads byte-level BPE)", where, type_of(model));
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    check(!present(model, key) || model.at(key) == "", ErrorCode::kUnsupported, "{}: {} is \"{}\" (want empty)", where,
          key, present(model, key) ? model.at(key).dump() : "");
  }
  check(!present(model, "byte_fallback") || model.at("byte_fallback") == false, ErrorCode::kUnsupported,
        "{}: byte_fallback is on: a SentencePiece-like vocabulary (Octet reads byte-level BPE from tokenizer.json)",
        where);
  check(!present(model, "dropout") || model.at("dropout") == 0.0, ErrorCode::kUnsupported,
        "{}: BPE dropout makes encoding random; set it to null", where);
  out.ignore_merges = present(model, "ignore_merges") && model.at("ignore_merges").get<bool>();
  read_vocabulary(model.at("vocab"), out.tokens, where);
  const Json& merges = model.at("merges");
  out.merges.reserve(merges.size());
  for (const Json& merge : merges) {
    if (merge.is_string()) {
      const auto text = merge.get<std::string>();
      const size_t space = text.find(' ');
      check(space != std::string::npos && text.find(' ', space + 1) == std::string::npos, ErrorCode::kCorrupt,
            "{}: merge {} is \"{}\" (want two tokens with one space between)", where, out.merges.size(), text);
      out.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    } else {
      check(merge.is_array() && merge.size() == 2, ErrorCode::kCorrupt, "{}: merge {} is not a pair", where,
            out.merges.size());
      out.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    }
  }
}

// tokenizer_config.json gives a token as text or as an object with "content".
std::string named_token(const Json& config, const char* key) {
  if (!present(config, key)) return "";
  const Json& value = config.at(key);
  if (value.is_string()) return value.get<std::string>();
  return value.is_object() ? value.value("content", std::string()) : "";
}

void read_config(std::string_view text, BpeVocabulary& out, const std::string& where) {
  if (text.empty()) return;
  const Json config = parse(text, where);
  if (!config.is_object()) return;
  const auto known = [&](const std::string& token) {
    for (const AddedToken& each : out.added) {
      if (each.text == token) return true;
    }
    return std::find(out.tokens.begin(), out.tokens.end(), token) != out.tokens.end();
  };
  if (const auto bos = named_token(config, "bos_token"); !bos.empty() && known(bos)) out.bos = bos;
  if (const auto eos = named_token(config, "eos_token"); !eos.empty() && known(eos)) out.eos = eos;
  if (present(config, "add_bos_token") && config.at("add_bos_token").is_boolean()) {
    out.adds_bos = config.at("add_bos_token").get<bool>();
  }
}

// Without a config the usual names decide.
void guess_begin_and_end(BpeVocabulary& out) {
  const auto pick = [&](std::string& slot, std::initializer_list<const char*> names) {
    for (const char* name : names) {
      for (const AddedToken& token : out.added) {
        if (slot.empty() && token.text == name) slot = name;
      }
    }
  };
  pick(out.bos, {"<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>", "<|endoftext|>"});
  pick(out.eos, {"<|end_of_text|>", "</s>", "<eos>", "<|endoftext|>"});
}

}  // namespace

std::unique_ptr<Tokenizer> read_tokenizer_json(std::string_view text, std::string_view config,
                                               const std::string& where) {
  return guarded(where, [&] {
    const Json root = parse(text, where);
    check(root.is_object() && root.contains("model"), ErrorCode::kCorrupt,
          "{}: no \"model\": not a tokenizer.json of Hugging Face's form", where);
    BpeVocabulary vocabulary;
    read_model(root.at("model"), vocabulary, where);
    if (present(root, "added_tokens")) read_added_tokens(root.at("added_tokens"), vocabulary, where);
    if (present(root, "normalizer")) vocabulary.normalizer = read_normalizer(root.at("normalizer"), where);
    bool byte_level = false;
    if (present(root, "pre_tokenizer")) {
      read_pre_tokenizer(root.at("pre_tokenizer"), vocabulary, byte_level, where);
    }
    check(byte_level, ErrorCode::kUnsupported,
          "{}: the pre-tokenizer has no ByteLevel step (Octet reads byte-level BPE)", where);
    if (present(root, "post_processor")) read_post_processor(root.at("post_processor"), vocabulary);
    read_config(config, vocabulary, where + " (tokenizer_config.json)");
    guess_begin_and_end(vocabulary);
    return std::unique_ptr<Tokenizer>(std::make_unique<BpeTokenizer>(std::move(vocabulary), where));
  });
}

std::unique_ptr<Tokenizer> read_gpt2_files(std::string_view vocabulary_json, std::string_view merges_text,
                                           const std::string& where) {
  return guarded(where, [&] {
    BpeVocabulary vocabulary;
    read_vocabulary(parse(vocabulary_json, where), vocabulary.tokens, where);
    int64_t line_number = 0;
    while (!merges_text.empty()) {
      const size_t end = std::min(merges_text.find('\n'), merges_text.size());
      std::string_view line = merges_text.substr(0, end);
      merges_text.remove_prefix(std::min(end + 1, merges_text.size()));
      ++line_number;
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      if (line.empty() || (line_number == 1 && line.starts_with("#version"))) continue;
      const size_t space = line.find(' ');
      check(space != std::string_view::npos && line.find(' ', space + 1) == std::string_view::npos, ErrorCode::kCorrupt,
            "{}: merges line {} is \"{}\" (want two tokens with one space between)", where, line_number, line);
      vocabulary.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
    }
    const auto end = std::find(vocabulary.tokens.begin(), vocabulary.tokens.end(), "<|endoftext|>");
    if (end != vocabulary.tokens.end()) {
      const auto id = static_cast<int32_t>(end - vocabulary.tokens.begin());
      vocabulary.added.push_back({.id = id, .text = "<|endoftext|>"});
      vocabulary.bos = vocabulary.eos = "<|endoftext|>";
    }
    vocabulary.splits.push_back({.pattern = kGpt2Pattern});
    return std::unique_ptr<Tokenizer>(std::make_unique<BpeTokenizer>(std::move(vocabulary), where));
  });
}

std::unique_ptr<Tokenizer> read_characters_json(std::string_view text, const std::string& where) {
  return guarded(where, [&] {
    const Json root = parse(text, where);
    check(root.is_object() && root.contains("characters"), ErrorCode::kCorrupt,
          "{}: no \"characters\": not a character vocabulary", where);
    return make_character_tokenizer(root.at("characters").get<std::vector<std::string>>());
  });
}

std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view json, const std::string& where) {
  return read_tokenizer_json(json, "", where);
}

}  // namespace octet
