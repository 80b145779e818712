// The models of a tokenizer.json that are not byte-level: BPE over characters (Llama 2, Mistral, Gemma), Unigram and
// WordPiece.
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/tokenizer_json.h"
#include "io/tokenizer_utf8.h"

namespace octet {

using Json = nlohmann::json;

namespace {

using TokenIds = std::unordered_map<std::string_view, int32_t>;

bool flag(const Json& model, const char* key) { return json_present(model, key) && model.at(key).get<bool>(); }

std::vector<uint8_t> special_ids(const TokenizerFile& file, size_t count) {
  std::vector<uint8_t> special(count);
  for (const AddedToken& token : file.added) {
    if (token.special && static_cast<size_t>(token.id) < count) special[static_cast<size_t>(token.id)] = 1;
  }
  return special;
}

TokenIds ids_of(const std::vector<std::string>& tokens) {
  TokenIds ids;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].empty()) ids.emplace(tokens[id], static_cast<int32_t>(id));
  }
  return ids;
}

int32_t named_id(const Json& model, const char* key, const TokenIds& ids, const std::string& where) {
  if (!json_present(model, key)) return -1;
  const auto name = model.at(key).get<std::string>();
  const auto found = ids.find(name);
  check(found != ids.end(), ErrorCode::kCorrupt, "{}: {} \"{}\" is not in the vocabulary", where, key, name);
  return found->second;
}

void read_byte_tokens(const std::vector<std::string>& tokens, UnknownRule& rule) {
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (const int byte = parse_byte_token(tokens[id]); byte >= 0) {
      rule.byte_ids[static_cast<size_t>(byte)] = static_cast<int32_t>(id);
    }
  }
}

std::unique_ptr<SubwordModel> read_bpe(const Json& model, const std::vector<std::string>& tokens,
                                       const TokenizerFile& file, SubwordParts& parts, const std::string& where) {
  CharacterBpe bpe;
  const TokenIds ids = ids_of(tokens);
  const auto special = special_ids(file, tokens.size());
  const auto is_special = [&](int32_t id) { return special[static_cast<size_t>(id)] != 0; };
  bpe.vocab_size = static_cast<int32_t>(tokens.size());
  bpe.unknown.unk_id = named_id(model, "unk_token", ids, where);
  bpe.unknown.fuse = flag(model, "fuse_unk");
  if (flag(model, "byte_fallback")) read_byte_tokens(tokens, bpe.unknown);
  const bool whole = flag(model, "ignore_merges");
  parts.cut_before = ids.contains(kSpaceMark) && !whole ? kSpaceMark : "";
  for (const auto& [text, id] : ids) {
    if (is_special(id)) continue;
    if (static_cast<size_t>(utf8_at(text, 0).length) == text.size()) bpe.characters.emplace(text, id);
    if (whole) bpe.whole_words.emplace(text, id);
  }
  std::vector<std::pair<std::string, std::string>> merges;
  read_merges(model.at("merges"), merges, where);
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const std::string joined = left + right;
    const auto l = ids.find(left), r = ids.find(right), both = ids.find(joined);
    check(l != ids.end() && r != ids.end() && both != ids.end(), ErrorCode::kCorrupt,
          "{}: merge {} (\"{}\" + \"{}\") uses a token that is not in the vocabulary", where, rank, left, right);
    if (is_special(both->second)) continue;  // text must not grow into a special token
    bpe.merges.insert(l->second, r->second, {static_cast<uint32_t>(rank), both->second});
    if (holds_mark_inside(joined, kSpaceMark)) parts.cut_before.clear();
  }
  return make_character_bpe(std::move(bpe));
}

std::unique_ptr<SubwordModel> read_unigram(const Json& model, std::vector<std::string>& tokens,
                                           const TokenizerFile& file, const std::string& where) {
  constexpr double kUnknownPenalty = 10;
  Unigram unigram;
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
    unigram.unknown.unk_id = checked_id(model.at("unk_id"), "unk_id", where);
    check(static_cast<size_t>(unigram.unknown.unk_id) < tokens.size(), ErrorCode::kCorrupt,
          "{}: unk_id {} is outside the vocabulary of {}", where, unigram.unknown.unk_id, tokens.size());
  }
  unigram.unknown.fuse = true;
  if (bytes) read_byte_tokens(tokens, unigram.unknown);
  for (size_t id = 0; id < tokens.size(); ++id) {
    const auto [other, fresh] = seen.emplace(tokens[id], static_cast<int32_t>(id));
    check(fresh, ErrorCode::kCorrupt, "{}: pieces {} and {} are both \"{}\"", where, other->second, id, tokens[id]);
    const bool raw_byte = bytes && parse_byte_token(tokens[id]) >= 0;
    if (tokens[id].empty() || special[id] || raw_byte || static_cast<int32_t>(id) == unigram.unknown.unk_id) continue;
    unigram.trie.insert(tokens[id], static_cast<int32_t>(id));
  }
  unigram.unk_score = *std::min_element(unigram.scores.begin(), unigram.scores.end()) - kUnknownPenalty;
  return make_unigram(std::move(unigram));
}

std::unique_ptr<SubwordModel> read_word_piece(const Json& model, const std::vector<std::string>& tokens,
                                              const TokenizerFile& file, const std::string& where) {
  WordPiece pieces;
  const auto prefix = model.value("continuing_subword_prefix", std::string("##"));
  const TokenIds ids = ids_of(tokens);
  const auto special = special_ids(file, tokens.size());
  pieces.unk_id = named_id(model, "unk_token", ids, where);
  pieces.max_characters = model.value("max_input_chars_per_word", int64_t{100});
  for (const auto& [text, id] : ids) {
    if (special[static_cast<size_t>(id)]) continue;
    pieces.first.insert(text, id);
    if (text.starts_with(prefix) && text.size() > prefix.size())
      pieces.following.insert(text.substr(prefix.size()), id);
  }
  return make_word_piece(std::move(pieces));
}

}  // namespace

std::unique_ptr<Tokenizer> read_subword_model(const Json& model, TokenizerFile file, const std::string& where) {
  const std::string type = model.value("type", std::string("BPE"));
  SubwordParts parts;
  std::vector<std::string> tokens;
  if (type != "Unigram") read_vocabulary(model.at("vocab"), tokens, where);
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
  const auto id_of = [&](const std::string& text) {
    if (text.empty()) return -1;
    for (const AddedToken& token : file.added) {
      if (token.text == text) return token.id;
    }
    const auto found = std::find(tokens.begin(), tokens.end(), text);
    check(found != tokens.end(), ErrorCode::kCorrupt, "{}: the token \"{}\" is not in the vocabulary", where, text);
    return static_cast<int32_t>(found - tokens.begin());
  };
  parts.bos_id = id_of(file.special.bos);
  parts.eos_id = id_of(file.special.eos);
  parts.adds_bos = file.special.adds_bos.value_or(false);
  const auto shown = [&](std::string token) {
    if (file.decoder.names.empty() && !token.empty()) token.insert(0, " ");  // without a decoder, words are put apart
    for (const auto& step : file.decoder.for_tokens) token = step(std::move(token));
    return token;
  };
  for (std::string& token : tokens) token = shown(std::move(token));
  parts.first_space = file.decoder.names.empty() ? FirstSpace::kOne : file.decoder.first_space;
  check(std::find(file.decoder.names.begin(), file.decoder.names.end(), "ByteLevel") == file.decoder.names.end(),
        ErrorCode::kUnsupported, "{}: decoder ByteLevel without a ByteLevel pre-tokenizer", where);
  parts.token_bytes = std::move(tokens);
  for (const AddedToken& token : file.added) {
    const auto id = static_cast<size_t>(token.id);
    if (id >= parts.token_bytes.size()) parts.token_bytes.resize(id + 1);
    const bool plain = token.special || !token.normalized;
    parts.token_bytes[id] = plain ? token.text : shown(file.normalizer.apply(token.text, {}));
  }
  parts.added = std::move(file.added);
  parts.normalizer = std::move(file.normalizer);
  parts.splits = std::move(file.pre_tokenizer.splits);
  parts.metaspace = file.pre_tokenizer.metaspace;
  parts.facts = parts.normalizer.name() + model.dump();
  for (const SplitRule& rule : parts.splits) {
    parts.facts +=
        fmt::format("\n{} {} {} {}", rule.pattern, rule.literal, static_cast<int>(rule.behavior), rule.invert);
  }
  if (parts.metaspace) {
    parts.facts += fmt::format("\n{} {} {}", parts.metaspace->mark, static_cast<int>(parts.metaspace->prepend),
                               parts.metaspace->split);
  }
  parts.files = {{"tokenizer.json", std::move(file.source)}};
  if (!file.config.empty()) parts.files.emplace_back("tokenizer_config.json", std::move(file.config));
  return make_subword_tokenizer(std::move(parts), where);
}

}  // namespace octet
