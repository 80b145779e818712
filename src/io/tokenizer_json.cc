// Reads Hugging Face tokenizer.json, whose models are BPE over bytes or characters (Llama 2, Mistral, Gemma), Unigram
// and WordPiece, and GPT-2's pair of files. Unsupported settings that affect ids are errors that name them; none is
// ignored silently.
#include "io/tokenizer_json.h"

#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "io/tokenizer_utf8.h"

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
    const std::string_view why = error.what();  // behind the library's name of its exception
    fail(ErrorCode::kCorrupt, "{}: a field is missing or of the wrong type: {}", where, why.substr(why.find("] ") + 2));
  }
}

// Ids are bounded: an invalid one must not allocate the machine's memory. nlohmann would turn 1e300
// into some integer; ids must be written as integers.
int32_t checked_id(const Json& value, const std::string& token, const std::string& where) {
  check(value.is_number_integer(), ErrorCode::kCorrupt, "{}: {} is not an integer id", where, value.dump());
  const auto id = value.get<int64_t>();
  check(id >= 0 && id < kMaxVocabulary, ErrorCode::kCorrupt, "{}: token \"{}\" has id {} (want 0..{})", where, token,
        id, kMaxVocabulary - 1);
  return static_cast<int32_t>(id);
}

// {"token": id}, into a list by id; ids no token has stay "".
std::vector<std::string> read_vocabulary(const Json& vocab, const std::string& where) {
  std::vector<std::string> tokens;
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
  return tokens;
}

std::vector<std::pair<std::string, std::string>> read_merges(const Json& merges, const std::string& where) {
  std::vector<std::pair<std::string, std::string>> out;
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
  return out;
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
      for (const AddedToken& token : file.parts.added) {
        if (slot.empty() && token.text == name) slot = name;
      }
    }
  };
  pick(special.bos, {"<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>", "<|endoftext|>"});
  pick(special.eos, {"<|end_of_text|>", "</s>", "<eos>", "<|endoftext|>"});
}

bool flag(const Json& model, const char* key) { return json_present(model, key) && model.at(key).get<bool>(); }

std::unique_ptr<Tokenizer> read_byte_level(const Json& model, TokenizerFile file, const std::string& where) {
  for (const std::string& name : file.decoders) {
    check(name == "ByteLevel" || name == "Fuse" || name == "Sequence", ErrorCode::kUnsupported,
          "{}: decoder {} with a ByteLevel pre-tokenizer (want ByteLevel)", where, name);
  }
  check(!file.parts.metaspace, ErrorCode::kUnsupported, "{}: pre-tokenizer Metaspace with ByteLevel", where);
  check(!json_present(model, "byte_fallback") || model.at("byte_fallback") == false, ErrorCode::kUnsupported,
        "{}: byte_fallback with a ByteLevel pre-tokenizer, which leaves no unknown bytes", where);
  BpeVocabulary vocabulary{.tokens = read_vocabulary(model.at("vocab"), where),
                           .merges = read_merges(model.at("merges"), where),
                           .ignore_merges = flag(model, "ignore_merges"),
                           .bos = file.special.bos,
                           .eos = file.special.eos,
                           .adds_bos = file.special.adds_bos.value_or(false)};
  return make_bpe(std::move(vocabulary), where, std::move(file.parts), std::move(file.source));
}

std::vector<uint8_t> special_ids(const TokenizerFile& file, size_t count) {
  std::vector<uint8_t> special(count);
  for (const AddedToken& token : file.parts.added) {
    if (token.special && static_cast<size_t>(token.id) < count) special[static_cast<size_t>(token.id)] = 1;
  }
  return special;
}

// The token that the model names under `key`; -1: none.
int32_t token_of(const Json& model, const char* key, const TokenIds& ids, const std::string& where) {
  return json_present(model, key) ? named_id(model.at(key).get<std::string>(), key, {}, ids, where) : -1;
}

void read_byte_tokens(const std::vector<std::string>& tokens, UnknownRule& rule) {
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (const int byte = parse_byte_token(tokens[id]); byte >= 0) {
      rule.byte_ids[static_cast<size_t>(byte)] = static_cast<int32_t>(id);
    }
  }
}

std::unique_ptr<TokenModel> read_bpe(const Json& model, const std::vector<std::string>& tokens,
                                     const TokenizerFile& file, TokenizerParts& parts, const std::string& where) {
  auto result = std::make_unique<CharacterBpe>();
  CharacterBpe& bpe = *result;
  const TokenIds ids = ids_of(tokens);
  const auto special = special_ids(file, tokens.size());
  const auto is_special = [&](int32_t id) { return special[static_cast<size_t>(id)] != 0; };
  bpe.vocab_size = static_cast<int32_t>(tokens.size());
  bpe.unknown_rule.unk_id = token_of(model, "unk_token", ids, where);
  bpe.unknown_rule.fuse = flag(model, "fuse_unk");
  if (flag(model, "byte_fallback")) read_byte_tokens(tokens, bpe.unknown_rule);
  const bool whole = flag(model, "ignore_merges");
  parts.cut_before = ids.contains(kSpaceMark) && !whole ? kSpaceMark : "";
  for (const auto& [text, id] : ids) {
    if (is_special(id)) continue;
    if (static_cast<size_t>(utf8_at(text, 0).length) == text.size()) bpe.add_character(text, id);
    if (whole) bpe.whole_words.emplace(text, id);
  }
  each_merge(read_merges(model.at("merges"), where), ids, where,
             [&](int32_t left, int32_t right, MergeTable::Merge merge, const std::string& joined) {
               if (is_special(merge.id)) return;  // text must not grow into a special token
               bpe.merges.insert(left, right, merge);
               if (holds_mark_inside(joined, kSpaceMark)) parts.cut_before.clear();
             });
  return result;
}

std::unique_ptr<TokenModel> read_unigram(const Json& model, std::vector<std::string>& tokens, const TokenizerFile& file,
                                         const std::string& where) {
  constexpr double kUnknownPenalty = 10;
  auto result = std::make_unique<Unigram>();
  Unigram& unigram = *result;
  const Json& vocab = model.at("vocab");
  check(vocab.is_array() && !vocab.empty(), ErrorCode::kCorrupt, "{}: the vocabulary is not a list of [piece, score]",
        where);
  for (const Json& entry : vocab) {
    check(entry.is_array() && entry.size() == 2 && entry[1].is_number(), ErrorCode::kCorrupt,
          "{}: entry {} of the vocabulary is not [piece, score]", where, tokens.size());
    tokens.push_back(entry[0].get<std::string>());
    unigram.scores.push_back(entry[1].get<double>());
    check(std::isfinite(unigram.scores.back()), ErrorCode::kCorrupt, "{}: \"{}\" has the score {}", where,
          tokens.back(), unigram.scores.back());
  }
  TokenIds seen;
  const auto special = special_ids(file, tokens.size());
  const bool bytes = flag(model, "byte_fallback");
  if (json_present(model, "unk_id")) {
    unigram.unknown_rule.unk_id = checked_id(model.at("unk_id"), "unk_id", where);
    check(static_cast<size_t>(unigram.unknown_rule.unk_id) < tokens.size(), ErrorCode::kCorrupt,
          "{}: unk_id {} is outside the vocabulary of {}", where, unigram.unknown_rule.unk_id, tokens.size());
  }
  unigram.unknown_rule.fuse = true;
  if (bytes) read_byte_tokens(tokens, unigram.unknown_rule);
  for (size_t id = 0; id < tokens.size(); ++id) {
    const auto [other, fresh] = seen.emplace(tokens[id], static_cast<int32_t>(id));
    check(fresh, ErrorCode::kCorrupt, "{}: pieces {} and {} are both \"{}\"", where, other->second, id, tokens[id]);
    const bool raw_byte = bytes && parse_byte_token(tokens[id]) >= 0;
    if (tokens[id].empty() || special[id] || raw_byte || static_cast<int32_t>(id) == unigram.unknown_rule.unk_id)
      continue;
    unigram.trie.insert(tokens[id], static_cast<int32_t>(id));
  }
  unigram.unk_score = *std::min_element(unigram.scores.begin(), unigram.scores.end()) - kUnknownPenalty;
  return result;
}

std::unique_ptr<TokenModel> read_word_piece(const Json& model, const std::vector<std::string>& tokens,
                                            const TokenizerFile& file, const std::string& where) {
  auto pieces = std::make_unique<WordPiece>();
  const auto prefix = model.value("continuing_subword_prefix", std::string("##"));
  const TokenIds ids = ids_of(tokens);
  const auto special = special_ids(file, tokens.size());
  pieces->unk_id = token_of(model, "unk_token", ids, where);
  pieces->max_characters = model.value("max_input_chars_per_word", int64_t{100});
  for (const auto& [text, id] : ids) {
    if (special[static_cast<size_t>(id)]) continue;
    pieces->first.insert(text, id);
    if (text.starts_with(prefix) && text.size() > prefix.size())
      pieces->following.insert(std::string_view(text).substr(prefix.size()), id);
  }
  return pieces;
}

// BPE over characters, Unigram and WordPiece.
std::unique_ptr<Tokenizer> read_subword_model(const Json& model, TokenizerFile file, const std::string& where) {
  const std::string type = model.value("type", std::string("BPE"));
  TokenizerParts& parts = file.parts;
  std::vector<std::string> tokens;
  if (type != "Unigram") tokens = read_vocabulary(model.at("vocab"), where);
  if (type == "BPE") {
    parts.kind = "sentencepiece";
    parts.model = read_bpe(model, tokens, file, parts, where);
  } else if (type == "Unigram") {
    parts.kind = "unigram";
    parts.model = read_unigram(model, tokens, file, where);
  } else if (type == "WordPiece") {
    parts.kind = "wordpiece";
    parts.model = read_word_piece(model, tokens, file, where);
  } else {
    fail(ErrorCode::kUnsupported, "{}: model type {} (known: BPE, Unigram, WordPiece)", where, type);
  }
  const TokenIds ids = ids_of(tokens);
  parts.bos_id = named_id(file.special.bos, "the token", file.parts.added, ids, where);
  parts.eos_id = named_id(file.special.eos, "the token", file.parts.added, ids, where);
  parts.adds_bos = file.special.adds_bos.value_or(false);
  const auto shown = [&](std::string token) {
    if (file.decoders.empty() && !token.empty()) token.insert(0, " ");  // without a decoder, words are put apart
    for (const auto& step : file.decoders_of_tokens) token = step(std::move(token));
    return token;
  };
  for (std::string& token : tokens) token = shown(std::move(token));
  if (file.decoders.empty()) parts.first_space = FirstSpace::kOne;
  check(std::find(file.decoders.begin(), file.decoders.end(), "ByteLevel") == file.decoders.end(),
        ErrorCode::kUnsupported, "{}: decoder ByteLevel without a ByteLevel pre-tokenizer", where);
  parts.token_bytes = std::move(tokens);
  for (const AddedToken& token : file.parts.added) {
    const auto id = static_cast<size_t>(token.id);
    if (id >= parts.token_bytes.size()) parts.token_bytes.resize(id + 1);
    const bool plain = token.special || !token.normalized;
    parts.token_bytes[id] = plain ? token.text : shown(parts.normalizer.apply(token.text, {}));
  }
  parts.facts = parts.normalizer.name() + model.dump() + facts_of(parts.splits);
  if (parts.metaspace) {
    parts.facts += fmt::format("\n{} {} {}", parts.metaspace->mark, static_cast<int>(parts.metaspace->prepend),
                               parts.metaspace->split);
  }
  NamedFiles files = {{"tokenizer.json", std::move(file.source)}};
  if (!file.config.empty()) files.emplace_back("tokenizer_config.json", std::move(file.config));
  parts.files = [files = std::move(files)] { return files; };
  return std::make_unique<Tokenizer>(std::move(parts), where);
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
    if (json_present(root, "added_tokens")) file.parts.added = read_added_tokens(root.at("added_tokens"), where);
    if (json_present(root, "normalizer")) read_normalizer(root.at("normalizer"), file.parts.normalizer, where);
    if (json_present(root, "pre_tokenizer")) read_pre_tokenizer(root.at("pre_tokenizer"), file, where);
    if (json_present(root, "decoder")) read_decoder(root.at("decoder"), file, where);
    if (json_present(root, "post_processor")) read_post_processor(root.at("post_processor"), file, where);
    const TokenizerConfig settings = read_tokenizer_config(config, where + " (tokenizer_config.json)");
    settle_begin_and_end(file, settings, [&](const std::string& token) {
      const auto is = [&](const AddedToken& each) { return each.text == token; };
      return std::any_of(file.parts.added.begin(), file.parts.added.end(), is) || has_token(model.at("vocab"), token);
    });
    const std::string type = model.value("type", std::string("BPE"));
    if (type == "BPE") {
      for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
        check(!json_present(model, key) || model.at(key) == "", ErrorCode::kUnsupported, "{}: {} is {} (want empty)",
              where, key, json_present(model, key) ? model.at(key).dump() : "");
      }
      check(!json_present(model, "dropout") || model.at("dropout") == 0.0, ErrorCode::kUnsupported,
            "{}: BPE dropout makes encoding random; set it to null", where);
      if (file.byte_level) return read_byte_level(model, std::move(file), where);
    }
    check(!file.byte_level, ErrorCode::kUnsupported, "{}: pre-tokenizer ByteLevel with a {} model", where, type);
    return read_subword_model(model, std::move(file), where);
  });
}

std::unique_ptr<Tokenizer> read_gpt2_files(std::string_view vocabulary_json, std::string_view merges_text,
                                           const std::string& where) {
  return guarded(where, [&] {
    BpeVocabulary vocabulary;
    vocabulary.tokens = read_vocabulary(parse_json(vocabulary_json, where), where);
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
