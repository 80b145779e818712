// Sets of sequences with masked tokens, as BERT is pretrained on: PREFIX.bin/.idx (dataset.h) with a document for each
// sequence, and PREFIX.json beside them. Reading is thread safe; sequences are mapped, not held.
//
// A document: is_next, n, ids[n], types[n], positions[m], labels[m].
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/dataset.h"

namespace octet {

struct BertSequence {
  std::vector<int32_t> ids, types;         // [CLS] a [SEP] b [SEP], masked; 0 or 1 of each token
  std::vector<int32_t> positions, labels;  // of masked tokens, ascending: places in ids; what stood there
  bool is_next = true;                     // whether b follows a
};

struct BertSetInfo {
  int64_t vocab_size = 0;
  std::string tokenizer_path = {};  // a folder; "" where there is none
};

// Throws kInvalidArgument naming `where`, what is wrong and the value: a sequence of fewer than two tokens, ids or
// types outside of their tables, positions that do not ascend within it.
void check_sequence(const BertSequence& sequence, int64_t vocab_size, const std::string& where);

// The set appears under its name with commit().
class BertSetWriter {
 public:
  BertSetWriter(const std::string& prefix, BertSetInfo info);
  void add(const BertSequence& sequence);
  void commit();

 private:
  std::string prefix_;
  BertSetInfo info_;
  DatasetWriter writer_;
  int64_t tokens_ = 0, predictions_ = 0;
};
void write_bert_set(const std::string& prefix, const BertSetInfo& info, std::span<const BertSequence> sequences);

class BertSet {
 public:
  // Throws kNotFound, or kCorrupt where there is a set of another kind.
  explicit BertSet(const std::string& prefix);

  const BertSetInfo& info() const { return info_; }
  int64_t sequences() const { return documents_->documents(); }
  struct Sizes {
    int64_t tokens = 0, predictions = 0;
  };
  Sizes sizes(int64_t sequence) const;
  void get(int64_t sequence, BertSequence& out) const;  // checked
  uint32_t checksum() const { return documents_->checksum(); }

 private:
  std::string prefix_;
  BertSetInfo info_;
  std::shared_ptr<const TokenDataset> documents_;
};

// Sequences dealt to rows by pack_lengths() (bert_example.h): row r has order[begins[r]] to order[begins[r + 1] - 1],
// in the order of the set. A function of the sizes alone.
struct BertRows {
  std::vector<int64_t> order, begins = {0};
  int64_t size() const { return std::ssize(begins) - 1; }
};
struct RowLimits {
  int64_t tokens = 512, sequences = 3, predictions = 80;
};
// Throws kInvalidArgument naming the sequence that no row can hold.
BertRows pack_rows(std::span<const BertSet::Sizes> sizes, const RowLimits& limits, const std::string& where);

}  // namespace octet
