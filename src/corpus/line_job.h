// A job over JSON lines that keeps each document, perhaps with another text, or drops it for a reason, alone: of each
// input a file of kept lines, in which only the text is written anew (where it changed), and one of dropped documents.
// Inputs are worked through apart from one another, by shards, and appear whole (WorkFolder).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "corpus/work_folder.h"
#include "io/corpus.h"

namespace octet {

struct LineJobOptions {
  std::vector<std::string> inputs;
  std::string output;  // DIR
  std::string text_key = "text", id_key = "id";
  int64_t longest_line = int64_t{256} << 20;
  bool skip_bad_lines = false;
  int threads = 0;  // 0 = all cores
  std::function<void(std::string_view file, const CorpusProgress&)> progress;
};

// Counts by name: "documents", "kept", "bytes_in", "bytes_out" (of texts), "dropped.REASON", and a filter's own.
using LineCounts = std::map<std::string, int64_t, std::less<>>;

// One for each worker.
class DocumentFilter {
 public:
  struct Verdict {
    std::string_view reason = {};  // of words; empty: the document is kept
    std::string fields = {};       // of a dropped one, further members of its line: `, "score": 1`
  };
  virtual ~DocumentFilter() = default;
  // `text` may be replaced by another, which lives until the next call.
  virtual Verdict judge(std::string_view& text, LineCounts& counts) = 0;
};

class LineJob {
 public:
  // `job`: JSON of all that changes what a filter does; options are added.
  LineJob(LineJobOptions options, const std::string& job, std::function<std::unique_ptr<DocumentFilter>()> filter);

  bool finished() const { return folder_.finished(); }
  void run(Shard shard);  // inputs I, I + N, ...
  void finish();          // throws kNotFound where an output is missing
  LineCounts totals() const;
  std::string report() const { return folder_.report(); }  // JSON: counts of each input and of all

 private:
  void run_file(size_t file);
  std::string counts_path(size_t file) const;

  LineJobOptions options_;
  std::function<std::unique_ptr<DocumentFilter>()> filter_;
  std::vector<CorpusFile> files_;
  WorkFolder folder_;
};

}  // namespace octet
