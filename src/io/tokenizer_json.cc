// Reads Hugging Face tokenizer.json and GPT-2's pair of files. Unsupported settings that affect ids are errors that
// name them; none is ignored silently.
#include "io/tokenizer_json.h"

#include "base/error.h"
#include "base/json.h"

namespace octet {

using Json = nlohmann::json;

namespace {

constexpr int64_t kMaxVocabulary = 1 << 24;

// Wrong types inside the file surface as nlohmann exceptions; they become one clear error.
template <typename Body>
auto guarded(const std::string& where, Body body) {
  try {
    return body();
  } catch (const Json::exception& error) {
    fail(ErrorCode::kCorrupt, "{}: a field is missing or of the wrong type: {}", where, error.what());
  }
}

std::vector<AddedToken> read_added_tokens(const Json& list, const std::string& where) {
  std::vector<AddedToken> added;
  for (const Json& each : list) {
    AddedToken token;
    token.text = each.at("content").get<std::string>();
    token.id = checked_id(each.at("id"), token.text, where);
    token.special = each.value("special", false);
    token.lstrip = each.value("lstrip", false);
    token.rstrip = each.value("rstrip", false);
    token.single_word = each.value("single_word", false);
    token.normalized = each.value("normalized", false);
    added.push_back(std::move(token));
  }
  return added;
}

// tokenizer_config.json gives a token as text or as an object with "content".
std::string named_token(const Json& config, const char* key) {
  if (!json_present(config, key)) return "";
  const Json& value = config.at(key);
  if (value.is_string()) return value.get<std::string>();
  return value.is_object() ? value.value("content", std::string()) : "";
}

// The config's tokens win over the post-processor's where the vocabulary has them; else the usual names decide. The
// post-processor alone decides whether bos is prepended; add_bos_token of the config is ignored.
template <typename Known>
void settle_begin_and_end(TokenizerFile& file, const TokenizerConfig& config, Known known) {
  TokenizerConfig& special = file.special;
  if (!config.bos.empty() && known(config.bos)) special.bos = config.bos;
  if (!config.eos.empty() && known(config.eos)) special.eos = config.eos;
  const auto pick = [&](std::string& slot, std::initializer_list<const char*> names) {
    for (const char* name : names) {
      for (const AddedToken& token : file.added) {
        if (slot.empty() && token.text == name) slot = name;
      }
    }
  };
  pick(special.bos, {"<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>", "<|endoftext|>"});
  pick(special.eos, {"<|end_of_text|>", "</s>", "<eos>", "<|endoftext|>"});
}

std::unique_ptr<Tokenizer> read_byte_level(const Json& model, TokenizerFile file, const std::string& where) {
  for (const std::string& name : file.decoder.names) {
    check(name == "ByteLevel" || name == "Fuse" || name == "Sequence", ErrorCode::kUnsupported,
          "{}: decoder {} with a ByteLevel pre-tokenizer (want ByteLevel)", where, name);
  }
  check(!file.pre_tokenizer.metaspace, ErrorCode::kUnsupported, "{}: pre-tokenizer Metaspace with ByteLevel", where);
  check(!json_present(model, "byte_fallback") || model.at("byte_fallback") == false, ErrorCode::kUnsupported,
        "{}: byte_fallback with a ByteLevel pre-tokenizer, which leaves no unknown bytes", where);
  BpeVocabulary vocabulary{
      .added = std::move(file.added),
      .normalizer = std::move(file.normalizer),
      .prefix_space = file.pre_tokenizer.prefix_space,
      .splits_before_prefix = std::move(file.pre_tokenizer.before_prefix),
      .splits = std::move(file.pre_tokenizer.splits),
      .ignore_merges = json_present(model, "ignore_merges") && model.at("ignore_merges").get<bool>(),
      .bos = file.special.bos,
      .eos = file.special.eos,
      .adds_bos = file.special.adds_bos.value_or(false),
      .source = std::move(file.source)};
  read_vocabulary(model.at("vocab"), vocabulary.tokens, where);
  read_merges(model.at("merges"), vocabulary.merges, where);
  return make_bpe(std::move(vocabulary), where);
}

bool has_token(const Json& vocab, const std::string& token) {
  if (vocab.is_object()) return vocab.contains(token);
  for (const Json& entry : vocab) {
    if (entry.is_array() && !entry.empty() && entry[0] == token) return true;
  }
  return false;
}

}  // namespace

std::string json_type(const Json& object) { return object.value("type", std::string("(no type)")); }

bool json_present(const Json& object, const char* key) { return object.contains(key) && !object.at(key).is_null(); }

// nlohmann would turn 1e300 into some integer; ids must be written as integers.
int32_t checked_id(const Json& value, const std::string& token, const std::string& where) {
  check(value.is_number_integer(), ErrorCode::kCorrupt, "{}: {} is not an integer id", where, value.dump());
  const auto id = value.get<int64_t>();
  check(id >= 0 && id < kMaxVocabulary, ErrorCode::kCorrupt, "{}: token \"{}\" has id {} (want 0..{})", where, token,
        id, kMaxVocabulary - 1);
  return static_cast<int32_t>(id);
}

void read_vocabulary(const Json& vocab, std::vector<std::string>& tokens, const std::string& where) {
  check(vocab.is_object(), ErrorCode::kCorrupt, "{}: the vocabulary is {}, not an object of token: id", where,
        vocab.type_name());
  check(!vocab.empty(), ErrorCode::kCorrupt, "{}: the vocabulary is empty", where);
  tokens.reserve(vocab.size());
  for (const auto& [text, value] : vocab.items()) {
    const auto id = static_cast<size_t>(checked_id(value, text, where));
    if (id >= tokens.size()) tokens.resize(id + 1);
    check(tokens[id].empty(), ErrorCode::kCorrupt, "{}: id {} is given to both \"{}\" and \"{}\"", where, id,
          tokens[id], text);
    tokens[id] = text;
  }
}

void read_merges(const Json& merges, std::vector<std::pair<std::string, std::string>>& out, const std::string& where) {
  out.reserve(merges.size());
  for (const Json& merge : merges) {
    if (merge.is_string()) {
      const auto text = merge.get<std::string>();
      const size_t space = text.find(' ');
      check(space != std::string::npos && text.find(' ', space + 1) == std::string::npos, ErrorCode::kCorrupt,
            "{}: merge {} is \"{}\" (want two tokens with one space between)", where, out.size(), text);
      out.emplace_back(text.substr(0, space), text.substr(space + 1));
    } else {
      check(merge.is_array() && merge.size() == 2, ErrorCode::kCorrupt, "{}: merge {} is not a pair", where,
            out.size());
      out.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    }
  }
}

TokenizerConfig read_tokenizer_config(std::string_view text, const std::string& where) {
  TokenizerConfig out;
  if (text.empty()) return out;
  return guarded(where, [&] {
    const Json config = parse_json(text, where);
    if (!config.is_object()) return out;
    out.bos = named_token(config, "bos_token");
    out.eos = named_token(config, "eos_token");
    if (json_present(config, "add_bos_token") && config.at("add_bos_token").is_boolean()) {
      out.adds_bos = config.at("add_bos_token").get<bool>();
    }
    return out;
  });
}

std::unique_ptr<Tokenizer> read_tokenizer_json(std::string_view text, std::string_view config,
                                               const std::string& where) {
  return guarded(where, [&] {
    const Json root = parse_json(text, where);
    check(root.is_object() && root.contains("model"), ErrorCode::kCorrupt,
          "{}: no \"model\": not a tokenizer.json of Hugging Face's form", where);
    const Json& model = root.at("model");
    TokenizerFile file;
    file.source = text;
    file.config = config;
    if (json_present(root, "added_tokens")) file.added = read_added_tokens(root.at("added_tokens"), where);
    if (json_present(root, "normalizer")) read_normalizer(root.at("normalizer"), file.normalizer, where);
    if (json_present(root, "pre_tokenizer")) read_pre_tokenizer(root.at("pre_tokenizer"), file.pre_tokenizer, where);
    if (json_present(root, "decoder")) read_decoder(root.at("decoder"), file.decoder, where);
    if (json_present(root, "post_processor")) read_post_processor(root.at("post_processor"), file.special, where);
    const TokenizerConfig settings = read_tokenizer_config(config, where + " (tokenizer_config.json)");
    settle_begin_and_end(file, settings, [&](const std::string& token) {
      const auto is = [&](const AddedToken& each) { return each.text == token; };
      return std::any_of(file.added.begin(), file.added.end(), is) || has_token(model.at("vocab"), token);
    });
    const std::string type = model.value("type", std::string("BPE"));
    if (type == "BPE") {
      for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
        check(!json_present(model, key) || model.at(key) == "", ErrorCode::kUnsupported, "{}: {} is {} (want empty)",
              where, key, json_present(model, key) ? model.at(key).dump() : "");
      }
      check(!json_present(model, "dropout") || model.at("dropout") == 0.0, ErrorCode::kUnsupported,
            "{}: BPE dropout makes encoding random; set it to null", where);
      if (file.pre_tokenizer.byte_level) return read_byte_level(model, std::move(file), where);
    }
    check(!file.pre_tokenizer.byte_level, ErrorCode::kUnsupported, "{}: pre-tokenizer ByteLevel with a {} model", where,
          type);
    return read_subword_model(model, std::move(file), where);
  });
}

std::unique_ptr<Tokenizer> read_gpt2_files(std::string_view vocabulary_json, std::string_view merges_text,
                                           const std::string& where) {
  return guarded(where, [&] {
    BpeVocabulary vocabulary;
    read_vocabulary(parse_json(vocabulary_json, where), vocabulary.tokens, where);
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
    return make_bpe(std::move(vocabulary), where);
  });
}

std::unique_ptr<Tokenizer> read_characters_json(std::string_view text, const std::string& where) {
  return guarded(where, [&] {
    const Json root = parse_json(text, where);
    check(root.is_object() && root.contains("characters"), ErrorCode::kCorrupt,
          "{}: no \"characters\": not a character vocabulary", where);
    return make_character_tokenizer(root.at("characters").get<std::vector<std::string>>());
  });
}

std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view json, const std::string& where) {
  return read_tokenizer_json(json, "", where);
}

}  // namespace octet
