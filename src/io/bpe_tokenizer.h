// Byte-level BPE as GPT-2, Llama 3 and most open models use it: pieces by regular expressions, bytes as first symbols,
// merges by rank. The vocabulary is kept in the file's own spelling (bytes written as printable characters), so saving
// reproduces the file's tokens.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/bpe.h"
#include "io/scratch_pool.h"
#include "io/tokenizer.h"
#include "io/tokenizer_normalize.h"
#include "io/tokenizer_split.h"

namespace octet {

struct BpeVocabulary {
  std::vector<std::string> tokens;                          // by id, GPT-2 spelling; "" = not a BPE token
  std::vector<std::pair<std::string, std::string>> merges;  // best first, same spelling
  std::vector<AddedToken> added;
  TextNormalizer normalizer;
  bool add_prefix_space = false;                // before each piece produced by splits_before_prefix
  std::vector<SplitRule> splits_before_prefix;  // only for unusual orders of steps
  std::vector<SplitRule> splits;
  bool ignore_merges = false;  // a piece that is a token is not built by merging
  std::string bos, eos;        // texts of added tokens; "" = none
  bool adds_bos = false;
  std::string source;  // the tokenizer.json it was read from, which save() writes; "": save() writes its own
};

// GPT-2's spelling of bytes: 0x21..0x7E, 0xA1..0xAC, 0xAE..0xFF map to themselves, the others to U+0100 onwards.
const std::array<std::string, 256>& byte_spellings();
std::string spell_bytes(std::string_view bytes);
// False when a character of `text` is not the spelling of a byte.
bool unspell_bytes(std::string_view text, std::string& bytes);

class BpeTokenizer : public Tokenizer {
 public:
  BpeTokenizer(BpeVocabulary vocabulary, const std::string& where);
  ~BpeTokenizer() override;

  std::string kind() const override { return "bpe"; }
  void save(const std::string& dir) const override;
  const BpeVocabulary& vocabulary() const { return vocabulary_; }

 protected:
  void encode_piece(std::string_view piece, const TextPlace& place, size_t enough, UnknownText& unknown,
                    std::vector<int32_t>& out) const override;
  std::string normalize(std::string_view piece, const TextPlace& place) const override;

 private:
  struct Scratch;
  void encode_word(std::string_view word, Scratch& scratch, UnknownText& unknown, std::vector<int32_t>& out) const;

  BpeVocabulary vocabulary_;
  Splitter before_prefix_, splitter_;
  MergeTable merges_;
  std::array<int32_t, 256> byte_ids_;
  std::unordered_map<std::string_view, int32_t> whole_words_;  // only with ignore_merges; views of token_bytes_
  mutable ScratchPool<Scratch> scratches_;                     // word caches and match buffers
};

// The text of a tokenizer.json that Hugging Face's tokenizers library reads to the same encoder; for vocabularies
// without a normalizer and without splits_before_prefix, as produced by training, GGUF and GPT-2's files.
std::string to_tokenizer_json(const BpeVocabulary& vocabulary);

}  // namespace octet
