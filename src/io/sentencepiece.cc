// Builds the parts of a tokenizer from a SentencePiece vocabulary: its normaliser, and a model of pieces with scores.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "io/character_map.h"
#include "io/tokenizer_parts.h"
#include "io/tokenizer_utf8.h"

namespace octet {
namespace {

using Type = SentencePieceVocabulary::Type;
using PieceIds = std::unordered_map<std::string_view, int32_t>;

// SentencePiece's normaliser: longest match in the character map, then white space is squeezed, a space put in front
// and written as U+2581. User-defined pieces are not changed.
class Normaliser {
 public:
  Normaliser(const SentencePieceVocabulary& vocabulary, const std::string& where)
      : map_(vocabulary.charsmap, where),
        add_prefix_(vocabulary.add_dummy_prefix),
        squeeze_(vocabulary.remove_extra_whitespaces),
        keep_invalid_(vocabulary.keep_invalid) {
    for (const auto& piece : vocabulary.pieces) {
      if (piece.type == SentencePieceVocabulary::Type::kUserDefined) kept_.insert(piece.text, 0);
    }
  }

  std::string run(std::string_view text, const TextPlace& place) const {
    std::string out;
    std::string_view becomes;
    bool after_space = squeeze_ && place.first && !place.continues;
    while (after_space && !text.empty()) {
      const size_t length = next(text, becomes);
      if (becomes != " ") break;
      text.remove_prefix(length);
    }
    if (text.empty()) return out;
    out.reserve(text.size() * 3 / 2);
    if (add_prefix_ && place.first && !place.continues) out += kSpaceMark;
    while (!text.empty()) {
      text.remove_prefix(next(text, becomes));
      while (after_space && becomes.starts_with(' ')) becomes.remove_prefix(1);
      if (becomes.empty()) continue;
      for (char c : becomes) {
        if (c == ' ') {
          out += kSpaceMark;
        } else {
          out += c;
        }
      }
      after_space = squeeze_ && becomes.ends_with(' ');
    }
    while (squeeze_ && place.last && out.ends_with(kSpaceMark)) out.resize(out.size() - std::strlen(kSpaceMark));
    return out;
  }

 private:
  // What the beginning of `text` becomes; returns how many bytes of it that took.
  size_t next(std::string_view text, std::string_view& becomes) const {
    int32_t id = -1;
    if (const size_t length = kept_.empty() ? 0 : kept_.longest(text, 0, id); length > 0) {
      becomes = text.substr(0, length);
      return length;
    }
    if (const size_t length = map_.longest(text, becomes); length > 0) return length;
    const int length = utf8_at(text, 0).length;
    becomes = length == 0 && !keep_invalid_ ? std::string_view("\xEF\xBF\xBD") : text.substr(0, std::max(length, 1));
    return static_cast<size_t>(std::max(length, 1));
  }

  CharacterMap map_;
  PieceTrie kept_;
  bool add_prefix_, squeeze_, keep_invalid_;
};

// Ids of all pieces except padding; texts must be unique.
PieceIds check_pieces(const SentencePieceVocabulary& vocabulary, const std::string& where) {
  check(!vocabulary.pieces.empty(), ErrorCode::kCorrupt, "{}: no pieces", where);
  PieceIds ids;
  for (size_t id = 0; id < vocabulary.pieces.size(); ++id) {
    const auto& piece = vocabulary.pieces[id];
    check(!piece.text.empty(), ErrorCode::kCorrupt, "{}: piece {} is empty", where, id);
    check(std::isfinite(piece.score), ErrorCode::kCorrupt, "{}: piece {} (\"{}\") has the score {}", where, id,
          piece.text, piece.score);
    if (piece.type == Type::kPadding) continue;
    const auto [other, fresh] = ids.emplace(piece.text, static_cast<int32_t>(id));
    check(fresh, ErrorCode::kCorrupt, "{}: pieces {} and {} are both \"{}\"", where, other->second, id, piece.text);
  }
  return ids;
}

UnknownRule unknown_rule(const SentencePieceVocabulary& vocabulary, const std::string& where) {
  UnknownRule rule;
  rule.fuse = true;
  for (size_t id = 0; id < vocabulary.pieces.size(); ++id) {
    const auto& piece = vocabulary.pieces[id];
    if (piece.type == Type::kUnknown) {
      check(rule.unk_id < 0, ErrorCode::kCorrupt, "{}: pieces {} and {} are both the unknown piece", where, rule.unk_id,
            id);
      rule.unk_id = static_cast<int32_t>(id);
    } else if (piece.type == Type::kByte) {
      const int byte = parse_byte_token(piece.text);
      check(byte >= 0, ErrorCode::kCorrupt, "{}: piece {} (\"{}\") is not a byte (want <0x00> to <0xFF>)", where, id,
            piece.text);
      rule.byte_ids[static_cast<size_t>(byte)] = static_cast<int32_t>(id);
    }
  }
  check(rule.unk_id >= 0, ErrorCode::kCorrupt, "{}: no unknown piece", where);
  if (!vocabulary.byte_fallback) {
    rule.byte_ids = UnknownRule::no_bytes();
  } else {
    const auto missing = std::find(rule.byte_ids.begin(), rule.byte_ids.end(), -1);
    check(missing == rule.byte_ids.end(), ErrorCode::kCorrupt, "{}: byte fallback without a piece for byte 0x{:02x}",
          where, missing - rule.byte_ids.begin());
  }
  return rule;
}

bool is_character(std::string_view text) { return static_cast<size_t>(utf8_at(text, 0).length) == text.size(); }

// Whether text can become this piece: a character, or two neighbours of which each is a character or has a symbol.
bool is_made(std::string_view piece, const std::function<int32_t(std::string_view)>& symbol) {
  const auto known = [&](std::string_view text) { return is_character(text) || symbol(text) >= 0; };
  bool made = is_character(piece);
  for (size_t cut = 1; cut < piece.size() && !made; ++cut)
    made = (static_cast<uint8_t>(piece[cut]) & 0xC0) != 0x80 && known(piece.substr(0, cut)) && known(piece.substr(cut));
  return made;
}

std::unique_ptr<TokenModel> score_bpe(const SentencePieceVocabulary& vocabulary, const std::string& where) {
  auto model = std::make_unique<CharacterBpe>();
  CharacterBpe& bpe = *model;
  bpe.unknown_rule = unknown_rule(vocabulary, where);
  bpe.vocab_size = static_cast<int32_t>(vocabulary.pieces.size());
  PieceIds ids;  // of pieces that merging may start from or produce
  std::vector<float> order;
  for (int32_t id = 0; id < bpe.vocab_size; ++id) {
    const auto& piece = vocabulary.pieces[static_cast<size_t>(id)];
    if (piece.type == Type::kUserDefined) bpe.frozen.insert(piece.text, id);
    if (piece.type != Type::kNormal) continue;
    ids.emplace(piece.text, id);
    order.push_back(piece.score);
    if (is_character(piece.text)) bpe.add_character(piece.text, id);
  }
  for (const auto& [text, id] : ids) {  // characters that only longer pieces have
    for (size_t at = 0; at < text.size();) {
      const auto length = static_cast<size_t>(std::max(1, utf8_at(text, at).length));
      const std::string character(text.substr(at, length));
      const auto extra = bpe.vocab_size + static_cast<int32_t>(bpe.extra_characters.size());
      if (bpe.add_character(character, extra)) bpe.extra_characters.push_back(character);
      at += length;
    }
  }
  std::sort(order.begin(), order.end(), std::greater<>());
  order.erase(std::unique(order.begin(), order.end()), order.end());
  const auto symbol = [&](std::string_view text) {
    const auto found = ids.find(text);
    return found != ids.end() ? found->second : bpe.character_id(text);
  };
  for (const auto& piece : vocabulary.pieces) {
    check(piece.type != Type::kUnused || !is_made(piece.text, symbol), ErrorCode::kUnsupported,
          "{}: piece \"{}\" is marked unused though merging makes it, which is not supported for BPE", where,
          piece.text);
  }
  for (const auto& [text, id] : ids) {
    const float score = vocabulary.pieces[static_cast<size_t>(id)].score;
    const auto rank = std::lower_bound(order.begin(), order.end(), score, std::greater<>()) - order.begin();
    for (size_t cut = 1; cut < text.size(); ++cut) {
      if ((static_cast<uint8_t>(text[cut]) & 0xC0) == 0x80) continue;
      const int32_t left = symbol(text.substr(0, cut)), right = left < 0 ? -1 : symbol(text.substr(cut));
      if (right >= 0) bpe.merges.insert(left, right, {static_cast<uint32_t>(rank), id});
    }
  }
  return model;
}

std::unique_ptr<TokenModel> unigram(const SentencePieceVocabulary& vocabulary, const std::string& where) {
  constexpr double kUnknownPenalty = 10;
  auto model = std::make_unique<Unigram>();
  model->single_precision = true;
  model->unknown_rule = unknown_rule(vocabulary, where);
  double least = 0, most = 0;
  bool any = false;
  for (const auto& piece : vocabulary.pieces) {
    if (piece.type != Type::kNormal) continue;
    least = any ? std::min<double>(least, piece.score) : piece.score;
    most = any ? std::max<double>(most, piece.score) : piece.score;
    any = true;
  }
  model->unk_score = least - kUnknownPenalty;
  model->scores.resize(vocabulary.pieces.size());
  for (size_t id = 0; id < vocabulary.pieces.size(); ++id) {
    const auto& piece = vocabulary.pieces[id];
    if (piece.type != Type::kNormal && piece.type != Type::kUserDefined) continue;
    model->trie.insert(piece.text, static_cast<int32_t>(id));
    // A user-defined piece takes precedence over all others that cover its bytes.
    model->scores[id] = piece.type == Type::kNormal ? static_cast<double>(piece.score)
                                                    : static_cast<double>(piece.text.size()) * most - 0.1;
  }
  return model;
}

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece(SentencePieceVocabulary vocabulary, const std::string& where) {
  using Model = SentencePieceVocabulary::Model;
  const PieceIds ids = check_pieces(vocabulary, where);
  check(vocabulary.model == Model::kBpe || vocabulary.model == Model::kUnigram, ErrorCode::kUnsupported,
        "{}: SentencePiece models of kind {} are not supported (supported: unigram, BPE)", where,
        vocabulary.model == Model::kWord ? "word" : "character");
  const bool bpe = vocabulary.model == Model::kBpe;
  TokenizerParts parts;
  parts.kind = bpe ? "sentencepiece" : "unigram";
  parts.model = bpe ? score_bpe(vocabulary, where) : unigram(vocabulary, where);
  parts.normalizer.add("sentencepiece",
                       [normaliser = std::make_shared<Normaliser>(vocabulary, where)](
                           std::string_view text, const TextPlace& place) { return normaliser->run(text, place); });
  // Unigram's float32 sums depend on their start: only a whole text gives the library's choice between equal scores.
  if (bpe) parts.cut_before = kSpaceMark;
  parts.facts = fmt::format("{} {} {} {} {} {}", vocabulary.byte_fallback, vocabulary.add_dummy_prefix,
                            vocabulary.remove_extra_whitespaces, vocabulary.keep_invalid, vocabulary.charsmap.size(),
                            vocabulary.charsmap);
  for (size_t id = 0; id < vocabulary.pieces.size(); ++id) {
    const auto& piece = vocabulary.pieces[id];
    parts.facts += fmt::format(" {} {}", piece.score, static_cast<int>(piece.type));
    std::string shown = replace_all(piece.text, kSpaceMark, " ");
    if (piece.type == Type::kControl) {
      parts.added.push_back({static_cast<int32_t>(id), piece.text});
      shown = piece.text;
    } else if (piece.type == Type::kByte) {
      shown.assign(1, static_cast<char>(parse_byte_token(piece.text)));
    } else if (piece.type == Type::kUnknown) {
      shown = vocabulary.unk_surface;
      parts.unk_id = static_cast<int32_t>(id);
    } else if (piece.type == Type::kPadding) {
      shown = piece.text;
    } else if (holds_mark_inside(piece.text, kSpaceMark)) {
      parts.cut_before.clear();
    }
    parts.token_bytes.push_back(std::move(shown));
  }
  if (!ids.contains(kSpaceMark)) parts.cut_before.clear();  // runs of unknowns could reach over a cut
  const auto control = [&](const std::string& name) {
    const auto found = ids.find(name);
    const bool is = found != ids.end() && vocabulary.pieces[static_cast<size_t>(found->second)].type == Type::kControl;
    return is ? found->second : -1;
  };
  parts.bos_id = control(vocabulary.bos);
  parts.eos_id = control(vocabulary.eos);
  parts.adds_bos = vocabulary.adds_bos;
  parts.first_space = vocabulary.remove_extra_whitespaces ? FirstSpace::kAll
                      : vocabulary.add_dummy_prefix       ? FirstSpace::kOne
                                                          : FirstSpace::kKept;
  parts.files = [files = std::move(vocabulary.files)] { return files; };
  return std::make_unique<Tokenizer>(std::move(parts), where);
}

}  // namespace octet
