// octet data clean: repairs the text of each document, drops documents by language, by published rules and by the score
// of a model, masks personal data. Of each input a file of kept lines, in which only the text is written anew (where it
// changed), and one of dropped ones.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "corpus/classify_text.h"
#include "corpus/text_rules.h"
#include "corpus/work_folder.h"
#include "io/corpus.h"

namespace octet {

struct CleanOptions {
  std::vector<std::string> inputs;
  std::string output;  // DIR
  std::string text_key = "text", id_key = "id";
  bool repair = true;
  std::vector<std::string> languages;  // those that stay, by the model, or by CLD2 where none is named; empty: all
  std::string language_model;          // of fastText
  double language_threshold = 0.65;
  TextRules rules;
  std::string quality_model, quality_label = "__label__hq";  // of fastText; DCLM's names
  double quality_threshold = 0.018112;
  std::vector<std::string> mask = {"email", "ip"};
  int64_t longest_line = int64_t{256} << 20;
  bool skip_bad_lines = false;
  int threads = 0;  // 0 = all cores
  std::function<void(std::string_view file, const CorpusProgress&)> progress;
};

// Counts by name: "documents", "kept", "bytes_in", "bytes_out" (of texts), "dropped.RULE", "repaired.WHAT",
// "masked.WHAT".
using CleanCounts = std::map<std::string, int64_t, std::less<>>;

class Clean {
 public:
  explicit Clean(CleanOptions options);

  bool finished() const { return folder_.finished(); }
  void run(Shard shard);  // inputs I, I + N, ...
  void finish();          // throws kNotFound where an output is missing
  CleanCounts totals() const;
  std::string report() const { return folder_.report(); }  // JSON: counts of each input and of all

 private:
  void clean_file(size_t file);
  std::string counts_path(size_t file) const;

  CleanOptions options_;
  std::vector<CorpusFile> files_;
  WorkFolder folder_;
  std::unique_ptr<TextClassifier> language_, quality_;
};

}  // namespace octet
