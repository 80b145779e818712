// octet data dedup: documents that are equal after normalisation, or whose sets of word 5-grams are alike (MinHash),
// form groups; of each the first in the order of the inputs stays. In stages, each a function of the files before it
// that some shards may run apart (docs/corpus.md):
//   signatures  of each input a file: of each document its line, a hash of its words, a key for each band (min_hash.h)
//   pairs       documents that share a band's key: those keys of a shard's range, sorted in parts that fit in memory
//   groups      union-find over all pairs: of each document the first of its group
//   write       of each input the kept lines as they were, and the dropped ones with the reason
//   finish      the report; removes the files of the stages
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "corpus/work_folder.h"
#include "io/corpus.h"

namespace octet {

struct DedupOptions {
  std::vector<std::string> inputs;
  std::string output;  // DIR
  std::string text_key = "text", id_key = "id";
  int bands = 14, rows = 8;
  double verify = 0;                  // > 0: documents that share a band are alike only from this Jaccard similarity on
  int64_t memory = int64_t{4} << 30;  // bytes for sorting and for the groups
  int64_t longest_line = int64_t{256} << 20;  // bytes; longer ones are an error
  bool skip_bad_lines = false;                // drop damaged lines and those without a text instead of stopping
  int threads = 0;                            // 0 = all cores
  // Called about once a megabyte, or a key range, from the calling thread.
  std::function<void(std::string_view stage, const CorpusProgress&)> progress;
};

struct DedupFile {
  std::string input, output;
  int64_t documents = 0, exact = 0, near = 0, bad_lines = 0, bytes = 0;  // exact, near: dropped; bytes: of output
};

class DocumentTable;

class Dedup {
 public:
  // Lists the inputs and opens DIR (WorkFolder).
  explicit Dedup(DedupOptions options);

  bool finished() const { return folder_.finished(); }
  void signatures(Shard shard);  // of inputs I, I + N, ...
  void pairs(Shard shard);       // throws kNotFound where signatures are missing
  void groups();                 // throws kNotFound where pairs are missing
  void write(Shard shard);       // of inputs I, I + N, ...
  void finish();
  std::vector<DedupFile> report() const;  // of a finished job

 private:
  void signatures_of(size_t file);
  void write_file_of(size_t file, const DocumentTable& table);
  std::string signatures_path(size_t file) const;
  DocumentTable documents() const;  // throws kNotFound where signatures are missing
  int64_t columns() const;          // of signatures

  DedupOptions options_;
  std::vector<CorpusFile> files_;
  WorkFolder folder_;
  int threads_;
};

}  // namespace octet
