// octet data clean: repairs the text of each document, drops documents by language, by published rules and by the score
// of a model, masks personal data.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "corpus/classify_text.h"
#include "corpus/line_job.h"
#include "corpus/text_rules.h"

namespace octet {

struct CleanOptions {
  LineJobOptions lines;
  bool repair = true;
  std::vector<std::string> languages;  // those that stay, by the model, or by CLD2 where none is named; empty: all
  std::string language_model;          // of fastText
  double language_threshold = 0.65;
  TextRules rules;
  std::string quality_model, quality_label = "__label__hq";  // of fastText; DCLM's names
  double quality_threshold = 0.018112;
  std::vector<std::string> mask = {"email", "ip"};
};

// With the counts "repaired.WHAT" and "masked.WHAT".
class Clean {
 public:
  explicit Clean(CleanOptions options);

  bool finished() const { return job_.finished(); }
  void run(Shard shard) { job_.run(shard); }
  void finish() { job_.finish(); }
  LineCounts totals() const { return job_.totals(); }
  std::string report() const { return job_.report(); }

 private:
  CleanOptions options_;
  std::unique_ptr<TextClassifier> language_, quality_;
  LineJob job_;
};

}  // namespace octet
