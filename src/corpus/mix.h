// octet data mix: a mixture of sets of documents by weights. A set's share is made of whole passes over its documents
// and, of the last pass, of documents drawn by a hash of seed, set and place. In stages, each a function of the files
// before it that some shards may run apart (docs/corpus.md):
//   count   of each input the size of every document: 1, tokens or bytes
//   plan    of each set how many whole passes, and the hash below which a document is in the last one
//   write   of each input its documents, line by line as they were, pass behind pass
//   finish  the report; removes the files of the stages
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "corpus/work_folder.h"
#include "io/corpus.h"

namespace octet {

class Tokenizer;

enum class MixUnit : uint8_t { kDocuments, kTokens, kBytes };
const char* mix_unit_name(MixUnit unit);

struct MixSet {
  std::string name;
  std::vector<std::string> files;  // JSON lines, folders, globs
  double weight = 0;               // of all sets' sum
};

struct MixOptions {
  std::vector<MixSet> sets;
  std::string output;  // DIR
  std::string text_key = "text";
  MixUnit unit = MixUnit::kDocuments;
  std::string tokenizer;  // of kTokens
  int64_t size = 0;       // of the mixture, in the unit; 0: the most that repeats no document
  uint64_t seed = 1;
  int64_t longest_line = int64_t{256} << 20;
  bool skip_bad_lines = false;
  int threads = 0;  // 0 = all cores
  std::function<void(std::string_view stage, const CorpusProgress&)> progress;
};

class Mix {
 public:
  // Lists the inputs and opens DIR (WorkFolder). Throws kInvalidArgument for weights that are no shares, a unit without
  // its tokenizer.
  explicit Mix(MixOptions options);
  ~Mix();

  bool finished() const { return folder_.finished(); }
  void count(Shard shard);  // inputs I, I + N, ...
  void plan();              // throws kNotFound where counts are missing
  void write(Shard shard);  // inputs I, I + N, ...; throws kNotFound where the plan is missing
  void finish();
  // JSON: "unit", "size", "bad_lines"; "sets", each with weight, share, documents, size, taken_documents, taken_size,
  // epochs; "files", each with set, input, output.
  std::string report() const { return folder_.report(); }

 private:
  using Take = std::function<void(std::string_view line, int64_t size)>;
  void each_document(size_t file, bool measured, const std::string& stage, int64_t* bad_lines, const Take& take);
  uint64_t key_of(size_t file, int64_t document) const;
  std::string counts_path(size_t file) const;
  std::vector<uint32_t> counts_of(size_t file) const;

  MixOptions options_;
  std::vector<size_t> sets_, places_;  // of each file: its set, and its place there
  std::vector<CorpusFile> files_;
  WorkFolder folder_;
  std::unique_ptr<const Tokenizer> tokenizer_;  // where it is needed
};

}  // namespace octet
