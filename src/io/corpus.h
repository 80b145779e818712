// Prepares corpora: a reader, tokenising workers and one ordered writer over bounded queues, so that memory depends on
// the number of workers and not on the corpus, and the result does not depend on the number of workers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "io/corpus_reader.h"
#include "io/tokenizer.h"

namespace octet {

struct CorpusProgress {
  int64_t disk_bytes = 0, total_disk_bytes = 0;  // input bytes read, and total
  int64_t text_bytes = 0, documents = 0, tokens = 0;
};

// Runs `work(worker, batch)` on every batch of `reader` in `threads` threads, and the closure it returns on the calling
// thread, in batch order. The first failing batch's error is thrown; later batches are abandoned.
using CorpusWork = std::function<std::function<void()>(int worker, const CorpusBatch& batch)>;
void run_over_corpus(CorpusReader& reader, int threads, const CorpusWork& work);

struct PrepareOptions {
  std::vector<std::string> inputs;
  std::string output;          // PREFIX
  std::string tokenizer_path;  // recorded; the tokenizer is also copied to PREFIX_tokenizer/
  TextOptions text;
  UnknownText::Policy unknown = UnknownText::Policy::kToken;  // for text without a token
  bool append_eod = true;        // append the tokenizer's eos, if it has one, to each document
  std::vector<double> split;     // fractions of train, validation [, test]; empty = one set named PREFIX
  bool split_by_tokens = false;  // contiguous parts of the token stream instead of whole documents
  int threads = 0;               // 0 = all cores
  std::function<void(const CorpusProgress&)> progress;  // called about once a megabyte, from the calling thread
};

struct SplitInfo {
  std::string name, prefix;                      // "train", "PREFIX_train"
  int64_t documents = 0, tokens = 0, bytes = 0;  // bytes of text, without end tokens
};

struct PrepareResult {
  std::vector<SplitInfo> splits;
  TextCounts text;
  int64_t prompt_tokens = 0;   // that are no targets
  int64_t unknown_places = 0;  // without a token
  std::string first_unknown;   // with its file, or file:line
  int64_t binary_files_skipped = 0;
  std::string dtype;
};

// Writes PREFIX.bin/.idx (or PREFIX_train.., PREFIX_val.., PREFIX_test..), PREFIX_tokenizer/ and PREFIX.json.
PrepareResult prepare_corpus(const Tokenizer& tokenizer, const PrepareOptions& options);

// Contents of PREFIX.json; `prefix` may be that of a split (PREFIX_train).
struct DatasetInfo {
  std::string tokenizer_path, tokenizer_fingerprint;
  int64_t vocab_size = 0;
  int32_t eos_id = -1;
  std::vector<SplitInfo> splits;
};
DatasetInfo read_dataset_info(const std::string& prefix);

}  // namespace octet
