// Tokenizers: text to token ids and back, for every vocabulary format.
//
// The kinds (byte-level BPE, SentencePiece-like, WordPiece, characters) differ only in their parts
// (io/tokenizer_parts.h). Special tokens in text are recognised only if the caller asks: text of a corpus or a user
// cannot inject an end-of-document. Byte-level kinds are lossless on any bytes, valid UTF-8 or not. All const members
// are thread safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

// Policy for text without a token, and its count.
struct UnknownText {
  enum class Policy {
    kToken,  // the unknown token; an error if there is none
    kDrop,
    kError,
  };
  Policy policy = Policy::kToken;
  int64_t places = 0;
  std::string first;     // the first of them, for messages
  bool refused = false;  // encoding ended with this error

  // Whether it is an error for a vocabulary whose unknown token is `unk_id` (-1: none).
  bool refuse(int32_t unk_id) { return refused = policy == Policy::kError || (policy == Policy::kToken && unk_id < 0); }
  // Counts `text`; returns the token for it, -1: it is dropped.
  int32_t meet(std::string_view text, int32_t unk_id);
};
// "\"text\" (bytes 74 65 78 74)", with U+FFFD for what is not UTF-8.
std::string shown_with_bytes(std::string_view text);
// "text" with JSON escapes; bytes that are not UTF-8 become U+FFFD.
std::string json_quote(std::string_view text);

// Bytes [begin, end) of a text.
struct TextRange {
  size_t begin = 0, end = 0;
};

struct EncodeOptions {
  bool parse_special = false;      // recognise special tokens written in the text
  bool add_bos = false;            // prepend the begin token; an error if there is none
  bool add_eos = false;            // append the end token; an error if there is none
  bool text_start = true;          // false: the text continues an earlier call (SentencePiece prepends no space)
  int64_t enough = 0;              // > 0: stop soon after this many ids, a prefix of the whole text's
  UnknownText* unknown = nullptr;  // policy and counters; nullptr: Policy::kToken
  // Added tokens, special or not, are recognised only where they lie in one of these ranges (ascending, apart from each
  // other); all other text is encoded as if it held none. nullptr: anywhere.
  const std::vector<TextRange>* added_in = nullptr;
};

// A token matched in the text before anything else. Ordinary added tokens (special = false) are always matched, as the
// vocabulary's author trained with them, special ones only under EncodeOptions::parse_special; both within
// EncodeOptions::added_in.
struct AddedToken {
  int32_t id = 0;
  std::string text;
  bool special = true;
  bool lstrip = false, rstrip = false;  // also match white space to the left, right
  bool single_word = false;             // only between characters that are not letters, digits or '_'
  bool normalized = false;              // matched after normalisation, in its normalised spelling
};

// Position of a stretch of text without added tokens in the text given to encode.
struct TextPlace {
  bool first = true;       // no text precedes it
  bool last = true;        // no text follows it
  bool continues = false;  // first, and EncodeOptions::text_start is false: no space is prepended
};

// What stands around one text and around a pair, in order; empty: the vocabulary's files say nothing.
struct SequenceTemplate {
  struct Piece {
    int32_t id = -1;  // of a special token; -1: a text
    int text = 0;     // the first or second
    int32_t type = 0;
  };
  std::vector<Piece> single = {}, pair = {};
};

struct TokenizerParts;

class Tokenizer {
 public:
  Tokenizer(TokenizerParts parts, const std::string& where);  // io/tokenizer_parts.h
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  void encode_to(std::string_view text, const EncodeOptions& options, std::vector<int32_t>& out) const;  // appends

  // The exact bytes, possibly ending inside a UTF-8 character. An id outside the vocabulary is an error.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // The bytes one token stands for; empty for ids the vocabulary leaves unused.
  std::string_view token_bytes(int32_t id) const;
  bool is_special(int32_t id) const;

  int64_t vocab_size() const;  // largest id + 1
  int32_t bos_id() const;      // -1: none
  int32_t eos_id() const;      // -1: none; ends documents in prepared corpora
  bool adds_bos() const;       // the model was trained with bos before each text
  bool byte_level() const;     // encoding any byte string is lossless
  const std::vector<AddedToken>& added_tokens() const;
  const SequenceTemplate& sequence_template() const;  // io/sequence_template.h goes by it

  const std::string& kind() const;  // "bpe", "sentencepiece", "unigram", "wordpiece", "characters"
  // Writes files into `dir` (made if absent) that load_tokenizer(dir) reads back to an equal tokenizer.
  void save(const std::string& dir) const;
  // "bpe-50257-<16 hex digits>": equal exactly when two tokenizers give the same ids for the same text.
  const std::string& fingerprint() const { return fingerprint_; }

 private:
  friend class StreamDecoder;
  struct Impl;
  // The text of `id`; `at_start`: whether a leading space is still to be removed; updated.
  std::string_view shown_bytes(int32_t id, bool skip_special, bool& at_start) const;

  std::string fingerprint_;
  std::unique_ptr<const Impl> impl_;
};

// Decodes ids as they are generated; bytes are held back until they complete a UTF-8 character.
class StreamDecoder {
 public:
  // `text_start` false: the ids continue earlier text (SentencePiece's leading space is kept).
  explicit StreamDecoder(const Tokenizer& tokenizer, bool text_start = true, bool skip_special = true)
      : tokenizer_(&tokenizer), at_start_(text_start), skip_special_(skip_special) {}
  std::string push(int32_t id);  // the completed text; invalid UTF-8 becomes U+FFFD
  std::string finish();          // the remaining text, an incomplete character as U+FFFD

 private:
  const Tokenizer* tokenizer_;
  bool at_start_;
  bool skip_special_;
  std::string pending_;
};

// `path`: a folder holding tokenizer.json, tokenizer.model (SentencePiece), vocab.json + merges.txt, encoder.json +
// vocab.bpe, characters.json, one .gguf or a llama2.c tok*.bin / tokenizer.bin; or one of these files itself.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path);
// Copies the tokenizer files and generation_config.json of folder `from` to `to`.
void copy_tokenizer_files(const std::string& from, const std::string& to);
// From the bytes of a tokenizer.json; `where` names them in errors.
std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view json, const std::string& where);

// Distinct characters of `text` (valid UTF-8), sorted by code point: the vocabulary of small character-level runs.
std::unique_ptr<Tokenizer> make_character_tokenizer(std::vector<std::string> characters);

}  // namespace octet
