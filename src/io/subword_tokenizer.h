// The tokenizer around a SubwordModel: normalisation, pre-tokenisation, a cache of words. Readers of tokenizer.json,
// tokenizer.model and GGUF fill in the parts.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/subword_model.h"
#include "io/tokenizer.h"
#include "io/tokenizer_normalize.h"
#include "io/tokenizer_split.h"

namespace octet {

// U+2581, SentencePiece's symbol for a space.
inline constexpr const char* kSpaceMark = "\xE2\x96\x81";

// Hugging Face's Metaspace: replaces spaces by `mark`, prepends one, and splits before marks.
struct Metaspace {
  enum class Prepend { kAlways, kFirst, kNever };  // kFirst: only where the text begins
  std::string mark = kSpaceMark;
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};

struct SubwordParts {
  std::string kind;                      // returned by Tokenizer::kind()
  std::vector<std::string> token_bytes;  // [vocab] as decoding writes them
  std::vector<AddedToken> added;
  int32_t bos_id = -1, eos_id = -1, unk_id = -1;
  bool adds_bos = false;
  TextNormalizer normalizer;
  std::vector<SplitRule> splits;
  std::optional<Metaspace> metaspace;
  std::string
      cut_before;  // no token has this string after another character, so text may be cut before it; "": no cuts
  std::unique_ptr<SubwordModel> model;
  FirstSpace first_space = FirstSpace::kKept;
  std::string facts;                                       // other properties that affect ids, for the fingerprint
  std::vector<std::pair<std::string, std::string>> files;  // (name, contents) that save() writes
};

std::unique_ptr<Tokenizer> make_subword_tokenizer(SubwordParts parts, const std::string& where);

// Whether `piece` has `mark` after another character.
bool holds_mark_inside(std::string_view piece, std::string_view mark);

// "<0x0A>" as tokens of raw bytes are written; -1: not of this form.
int parse_byte_token(std::string_view token);

}  // namespace octet
