// Prepared corpora: PREFIX.bin (raw tokens) and PREFIX.idx (where each document lies), in Megatron's layout,
// memory-mapped. PREFIX.mask, where there is one, has a byte a token: 0, the token is no target (a prompt, where
// answers are learnt). PREFIX.weights, where there is one, has a little-endian f32 a token: what its loss is multiplied
// by, above 0 of every target.
//
// .idx, little endian: "MMIDIDX\0\0", u64 version 1, u8 dtype (1 u8, 4 i32, 5 i64, 8 u16, ...), u64 sequences,
// u64 documents + 1, i32 lengths[sequences], i64 byte offsets[sequences], i64 first sequence of each document.
// A packed set has a sequence for each document, and as the index's documents rows of whole ones, which training takes
// as they are; that it is one its record says (io/corpus.h). Opening validates the whole index. Readers may share one
// object across threads.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace octet {

enum class TokenType : uint8_t { kU8 = 1, kI8 = 2, kI16 = 3, kI32 = 4, kI64 = 5, kU16 = 8 };
int64_t token_bytes(TokenType type);
// u16 if every id fits, else i32.
inline TokenType token_type_for(int64_t vocab_size) { return vocab_size < 65500 ? TokenType::kU16 : TokenType::kI32; }

// The checked contents of an .idx, as views into its bytes (which must outlive it). `bin_bytes`: the .bin's size.
struct IndexView {
  TokenType type = TokenType::kU16;
  int64_t sequences = 0, documents = 0, tokens = 0;
  const char* lengths = nullptr;                   // i32[sequences], unaligned
  const char* offsets = nullptr;                   // i64[sequences], unaligned
  const char* documents_at = nullptr;              // i64[documents + 1], unaligned
  int64_t sequence_begin(int64_t sequence) const;  // in tokens; sequence == sequences gives `tokens`
  int64_t document_begin(int64_t document) const;  // in tokens; document == documents gives `tokens`
};
IndexView parse_index(std::string_view bytes, int64_t bin_bytes, const std::string& where);

class TokenDataset {
 public:
  // `vocab_size` > 0: read() refuses ids outside [0, vocab_size). `begin_id` >= 0: the token that stands in front of
  // documents, where it is no target. PREFIX may be given with .bin or .idx at its end.
  // `row_length` > 0: the set is packed, its rows have at most so many tokens.
  static std::shared_ptr<const TokenDataset> open(const std::string& prefix, int64_t vocab_size = 0,
                                                  int32_t begin_id = -1, int64_t row_length = 0);

  int64_t tokens() const { return index_.tokens; }
  int64_t documents() const { return is_packed() ? index_.sequences : index_.documents; }
  TokenType type() const { return index_.type; }
  const std::string& prefix() const { return prefix_; }
  int64_t document_begin(int64_t document) const {
    return is_packed() ? index_.sequence_begin(document) : index_.document_begin(document);
  }
  int64_t document_length(int64_t document) const { return document_begin(document + 1) - document_begin(document); }
  int64_t document_at(int64_t token) const;  // the document that holds this token

  bool is_packed() const { return row_length_ > 0; }
  int64_t row_length() const { return row_length_; }
  int64_t rows() const { return index_.documents; }  // of a packed set
  int64_t row_begin(int64_t row) const { return index_.document_begin(row); }

  // Copies tokens [first, first + out.size()) of the whole set.
  void read(int64_t first, std::span<int32_t> out) const;

  bool has_mask() const { return mask_.has_value(); }
  bool all_count() const { return !mask_ && begin_id_ < 0; }
  // Whether tokens [first, first + out.size()) count as targets: begin tokens and what a mask leaves out do not.
  void read_counts(int64_t first, std::span<uint8_t> out) const;
  bool has_weights() const { return weights_.has_value(); }
  // The weights of tokens [first, first + out.size()); 1 where there are none. Throws kCorrupt for one that is not
  // finite or below 0.
  void read_weights(int64_t first, std::span<float> out) const;

  // Of ids, document boundaries and the mask: all of them up to a million, else blocks spread evenly from the first to
  // the last, so that it takes milliseconds whatever the size. The same for the same ids, whatever their type, path or
  // vocabulary.
  uint32_t checksum() const;

 private:
  TokenDataset() = default;
  void check_range(int64_t first, size_t count) const;
  void copy(int64_t first, std::span<int32_t> out) const;  // unchecked
  std::string prefix_;
  IndexView index_;
  MappedFile bin_, idx_;
  std::optional<MappedFile> mask_, weights_;
  int64_t vocab_size_ = 0;
  int32_t begin_id_ = -1;
  int64_t row_length_ = 0;
};

// Writes a PREFIX.bin/.idx pair, and PREFIX.mask if some tokens are no targets, document by document, as temporary
// files until commit() renames them: an aborted run leaves no incomplete file under the final name. Memory does not
// grow with the number of documents.
class DatasetWriter {
 public:
  DatasetWriter(std::string prefix, TokenType type);  // kU16 or kI32

  // Tokens of the current document; call any number of times. `counts`: whether each is a target; empty: all are.
  // `weights`: of each; empty: 1. An id the type cannot hold is an error.
  void append(std::span<const int32_t> ids, std::span<const uint8_t> counts = {}, std::span<const float> weights = {});
  void end_document();  // a document of no tokens is not recorded
  void end_row();       // of a packed set, all of whose documents lie in rows
  // Closes the files and gives them their names: .idx last. Mask and weights of an earlier set of this name are
  // removed.
  void commit();

  int64_t tokens() const { return tokens_; }
  int64_t documents() const { return documents_; }

 private:
  void append_counts(size_t ids, std::span<const uint8_t> counts);
  void append_weights(size_t ids, std::span<const float> weights);
  std::string prefix_;
  TokenType type_;
  FileWriter bin_, lengths_;             // lengths_: of documents, an i32 each, read back for the .idx
  std::unique_ptr<FileWriter> mask_;     // from the first token on that is no target
  std::unique_ptr<FileWriter> weights_;  // from the first on whose weight is not 1
  int64_t tokens_ = 0, documents_ = 0, current_ = 0;
  std::vector<int64_t> row_ends_;  // in documents
};

// Writes the documents of FROM, each of at most `row_length` tokens, as a packed set TO: the longest first, each into
// the row that it leaves the least room in (best fit). Returns the number of rows. Memory: some bytes a document.
int64_t pack_rows(const std::string& from, const std::string& to, int64_t row_length);

// Writes the documents of FROM, each two sequences whose second begins where the mask falls behind targets of the
// first, as a packed set TO with a row of both for each. Returns the number of rows.
int64_t pair_rows(const std::string& from, const std::string& to);

// Cuts one prepared pair into several by token counts (nanoGPT's first 90 % and last 10 %): part i gets `counts[i]`
// tokens. A document that lies across a cut is divided. Reads PREFIX, writes the others; returns documents of each
// part.
std::vector<int64_t> cut_dataset(const std::string& prefix, const std::vector<std::string>& parts,
                                 const std::vector<int64_t>& counts);

// Sampling order.
enum class SampleOrder {
  kShuffled,    // Megatron: documents in shuffled order, concatenated, cut every L tokens, the cuts shuffled; by epoch
  kSequential,  // the set from its beginning, cut every L tokens; the last sample of an epoch may be shorter
  kRandomOffset,  // nanoGPT: each sample begins at a random offset
};

// A sample of a packed set is a row: the order of rows is shuffled, theirs, or rows are drawn at random.
struct SampleOptions {
  int64_t length = 1024;  // L: a sample has L inputs and L targets, L + 1 tokens
  SampleOrder order = SampleOrder::kShuffled;
  uint64_t seed = 0;
};

struct TokenSample {
  std::vector<int32_t> tokens;  // L + 1 (fewer only at the end of a sequential epoch); targets are tokens[1..]
  // Where documents begin inside tokens: always starts with 0. To keep sequences from attending across documents, cut
  // segments here and ignore the target at each segment's last input (it belongs to the next document); that of the
  // last input too, where a document begins at L.
  std::vector<int32_t> segments;
  std::vector<uint8_t> counts;  // whether each of the tokens counts as a target; empty: all do
  std::vector<float> weights;   // of each of the tokens, as a target; empty: 1
  int64_t row = -1;             // of a packed set
};

// Samples by global index, so that a resumed run continues at any index without replaying. A sample is a function of
// (set, options, index) on every machine. Thread safe.
class TokenSampler {
 public:
  // An error when the set has fewer than L + 1 tokens (two for kSequential).
  TokenSampler(std::shared_ptr<const TokenDataset> dataset, SampleOptions options);

  int64_t samples_per_epoch() const { return samples_per_epoch_; }
  int64_t epoch_of(int64_t index) const { return index / samples_per_epoch_; }
  // index >= 0 without bound: epoch index / samples_per_epoch(). Buffers of `out` are reused.
  void get(int64_t index, TokenSample& out) const;
  const SampleOptions& options() const { return options_; }
  const TokenDataset& dataset() const { return *dataset_; }

 private:
  struct Epoch;
  std::shared_ptr<const Epoch> epoch(int64_t number) const;
  std::shared_ptr<const TokenDataset> dataset_;
  SampleOptions options_;
  int64_t samples_per_epoch_ = 0;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Epoch> epochs_[2];  // even and odd: threads around the end of an epoch need both
};

// A keyed permutation of [0, count) in O(1) memory, for shuffling without an array.
class IndexPermutation {
 public:
  IndexPermutation(int64_t count, uint64_t seed, uint64_t stream);
  int64_t operator()(int64_t index) const;

 private:
  uint64_t count_;
  int half_bits_;
  uint64_t keys_[6];
};

}  // namespace octet
