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

bool flag(const Json& model, const char* key) { return json_present(model, key) && model.at(key).get<bool>(); }

std::vector<uint8_t> special_ids(const TokenizerFile& file, size_t count) {
  std::vector<uint8_t> special(count);
  for (const AddedToken& token : file.added) {
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
  std::vector<std::pair<std::string, std::string>> merges;
  read_merges(model.at("merges"), merges, where);
  each_merge(merges, ids, where, [&](int32_t left, int32_t right, MergeTable::Merge merge, const std::string& joined) {
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

}  // namespace

std::unique_ptr<Tokenizer> read_subword_model(const Json& model, TokenizerFile file, const std::string& where) {
  const std::string type = model.value("type", std::string("BPE"));
  TokenizerParts parts;
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
  const TokenIds ids = ids_of(tokens);
  parts.bos_id = named_id(file.special.bos, "the token", file.added, ids, where);
  parts.eos_id = named_id(file.special.eos, "the token", file.added, ids, where);
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

}  // namespace octet
