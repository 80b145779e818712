// SentencePiece vocabularies, whatever file holds them (tokenizer.model, GGUF, llama2.c): pieces with scores, the rules
// of normalisation, BPE by best score or unigram. Follows the sentencepiece library to the id; what it cannot do like
// the library it refuses.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/tokenizer.h"
#include "io/tokenizer_normalize.h"

namespace octet {

struct SentencePieceVocabulary {
  enum class Model { kUnigram = 1, kBpe = 2, kWord = 3, kCharacter = 4 };
  // kPadding, in no file, fills ids up: no text becomes it, and it may stand under the text of another piece.
  enum class Type { kPadding = 0, kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
  struct Piece {
    std::string text;  // spaces as U+2581
    float score = 0;
    Type type = Type::kNormal;
  };

  std::vector<Piece> pieces;  // by id
  Model model = Model::kUnigram;
  bool byte_fallback = false;
  std::string charsmap;  // precompiled; "": characters stay as they are
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool keep_invalid = false;  // bytes that are not UTF-8 become byte tokens; else U+FFFD, as the library does
  std::string unk_surface = " \xE2\x81\x87 ";  // what decoding writes for the unknown token
  std::string bos = "<s>", eos = "</s>";       // pieces of these names, where they are control pieces
  bool adds_bos = true;
  std::vector<std::pair<std::string, std::string>> files;  // (name, contents) that save() writes
};

std::unique_ptr<Tokenizer> make_sentencepiece(SentencePieceVocabulary vocabulary, const std::string& where);

// SentencePiece's normaliser: the character map, then white space. User-defined pieces stay as they are.
TextNormalizer::Step sentencepiece_normalizer(const SentencePieceVocabulary& vocabulary, const std::string& where);

}  // namespace octet
