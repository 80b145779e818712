// SentencePiece vocabularies of any file format (tokenizer.model, GGUF, llama2.c): pieces with scores, normalisation
// rules, BPE by best score or unigram. Produces the same ids as the sentencepiece library; unsupported settings are
// refused.
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
  std::vector<std::pair<std::string, std::string>> files;  // (name, contents) that save() writes
};

std::unique_ptr<Tokenizer> make_sentencepiece(SentencePieceVocabulary vocabulary, const std::string& where);

// SentencePiece's normaliser: the character map, then white space. User-defined pieces are not changed.
TextNormalizer::Step sentencepiece_normalizer(const SentencePieceVocabulary& vocabulary, const std::string& where);

}  // namespace octet
