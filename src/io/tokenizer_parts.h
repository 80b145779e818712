// What a tokenizer is made of, and the vocabularies of file formats that become such parts. The readers take bytes
// already read and a name for errors, so that fuzzers and tests need no files.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "io/tokenizer.h"
#include "io/tokenizer_model.h"
#include "io/tokenizer_steps.h"

namespace octet {

// Hugging Face's Metaspace: replaces spaces by `mark`, prepends one, and splits before marks.
struct Metaspace {
  enum class Prepend { kAlways, kFirst, kNever };  // kFirst: only where the text begins
  std::string mark = kSpaceMark;
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};

// How decoding removes the space that encoding prepended.
enum class FirstSpace {
  kKept,
  kOne,         // removes one space of the first token
  kWholeToken,  // removes all leading spaces of the first token
  kAll,         // removes one space of each token until text has been written
};

using NamedFiles = std::vector<std::pair<std::string, std::string>>;  // (name, contents)

// Text is normalised, split by splits_before_prefix, gets a prefix_space in front of each piece, is split by `splits`,
// marked by `metaspace`, cut, and encoded by the model.
struct TokenizerParts {
  std::string kind;                      // returned by Tokenizer::kind()
  std::vector<std::string> token_bytes;  // [vocab] as decoding writes them
  std::vector<AddedToken> added;
  int32_t bos_id = -1, eos_id = -1;
  int32_t unk_id = -1;      // decodes to its bytes at any position
  bool adds_bos = false;    // only with a bos_id
  bool byte_level = false;  // encoding any byte string is lossless
  SequenceTemplate sequence;
  TextNormalizer normalizer;
  std::vector<SplitRule> splits_before_prefix, splits;  // before: only for unusual orders of steps
  bool prefix_space = false;
  std::optional<Metaspace> metaspace;
  // No token has this string after another character, so text may be cut before it; "": no cuts.
  std::string cut_before;
  std::unique_ptr<const TokenModel> model;
  FirstSpace first_space = FirstSpace::kKept;
  std::string facts;                  // other properties that affect ids, for the fingerprint
  std::function<NamedFiles()> files;  // that save() writes
};

// Byte-level BPE as GPT-2, Llama 3 and most open models use it. Kept in the file's own spelling (bytes written as
// printable characters), so that saving reproduces the file's tokens.
struct BpeVocabulary {
  std::vector<std::string> tokens;                          // by id, GPT-2 spelling; "" = not a BPE token
  std::vector<std::pair<std::string, std::string>> merges;  // best first, same spelling
  std::vector<AddedToken> added;
  std::vector<SplitRule> splits;
  bool ignore_merges = false;  // a piece that is a token is not built by merging
  std::string bos, eos;        // texts of added tokens; "" = none
  bool adds_bos = false;
};
// `source`: the tokenizer.json it was read from, with its `parts`; else those of the vocabulary are taken.
std::unique_ptr<Tokenizer> make_bpe(BpeVocabulary vocabulary, const std::string& where, TokenizerParts parts = {},
                                    std::string source = "");
// The text of a tokenizer.json that Hugging Face's tokenizers library reads to the same encoder.
std::string to_tokenizer_json(const BpeVocabulary& vocabulary);

// Pieces with scores, normalisation rules, BPE by best score or unigram: tokenizer.model, GGUF, llama2.c. Produces the
// same ids as the sentencepiece library; unsupported settings are refused.
struct SentencePieceVocabulary {
  enum class Model { kUnigram = 1, kBpe = 2, kWord = 3, kCharacter = 4 };
  // kPadding is in no file and fills unused ids: no text encodes to it, and its text may equal another piece's.
  enum class Type { kPadding = 0, kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
  struct Piece {
    std::string text;  // spaces as U+2581
    float score = 0;
    Type type = Type::kNormal;
  };

  std::vector<Piece> pieces;  // by id
  Model model = Model::kUnigram;
  bool byte_fallback = false;
  std::string charsmap;  // precompiled; "": no normalisation of characters
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool keep_invalid = false;                   // invalid UTF-8 becomes byte tokens; else U+FFFD, as in the library
  std::string unk_surface = " \xE2\x81\x87 ";  // text of the unknown token in decoding
  std::string bos = "<s>", eos = "</s>";       // pieces of these names, where they are control pieces
  bool adds_bos = true;
  NamedFiles files;
};
std::unique_ptr<Tokenizer> make_sentencepiece(SentencePieceVocabulary vocabulary, const std::string& where);

// `config` is tokenizer_config.json beside it ("" = absent): names of the begin and end tokens, whether bos is added.
std::unique_ptr<Tokenizer> read_tokenizer_json(std::string_view json, std::string_view config,
                                               const std::string& where);
std::unique_ptr<Tokenizer> read_sentencepiece(std::string_view bytes, std::string_view config,
                                              const std::string& where);
std::unique_ptr<Tokenizer> read_gpt2_files(std::string_view vocabulary_json, std::string_view merges_text,
                                           const std::string& where);
std::unique_ptr<Tokenizer> read_characters_json(std::string_view json, const std::string& where);
std::unique_ptr<Tokenizer> read_gguf(std::string_view bytes, const std::string& where);
std::unique_ptr<Tokenizer> read_llama2c(std::string_view bytes, const std::string& where);

// What readers share.

// Whether `piece` has `mark` after another character.
bool holds_mark_inside(std::string_view piece, std::string_view mark);
// "<0x0A>" as tokens of raw bytes are written; -1: not of this form.
int parse_byte_token(std::string_view token);
// Of tokens by id, "" left out.
TokenIds ids_of(const std::vector<std::string>& tokens);
// The id of an added or another token; -1 for "", an error that names `role` if there is none.
int32_t named_id(const std::string& text, const char* role, const std::vector<AddedToken>& added, const TokenIds& ids,
                 const std::string& where);
// Calls on_merge(left, right, rank, id, text) for each of the merges, best first.
using OnMerge = std::function<void(int32_t, int32_t, MergeTable::Merge, const std::string&)>;
void each_merge(const std::vector<std::pair<std::string, std::string>>& merges, const TokenIds& ids,
                const std::string& where, const OnMerge& on_merge);
// For the fingerprint.
std::string facts_of(const std::vector<SplitRule>& rules, const char* place = "");

}  // namespace octet
