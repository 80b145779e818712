// octet data decontaminate: drops documents that share an n-gram of words (13 by default, as GPT-3 did) with a test
// set, so that a model is not trained on what it will be judged by. Words are those of words.h: case, punctuation and
// white space do not matter.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "corpus/line_job.h"

namespace octet {

struct TestSet {
  std::string name;
  std::vector<std::string> files;  // JSON lines: every string in them; other lines: the line itself
};

struct DecontaminateOptions {
  LineJobOptions lines;
  std::vector<TestSet> tests;
  std::vector<std::string> keys;  // of test sets' objects, whose strings alone are compared; empty: all
  int64_t words = 13;             // of an n-gram
  int64_t matches = 1;            // of different n-grams, from which on a document is dropped
};

struct TestSetFacts {
  std::string name;
  int64_t texts = 0, too_short = 0, ngrams = 0;  // too_short: of fewer words, which nothing is compared with
};

class TestIndex;

// Drops with the reason "contaminated"; a dropped document's line has the "test" and "test_line" of the first n-gram it
// shares and the number of "matches". Counts "test.NAME": documents that share one with it.
class Decontaminate {
 public:
  // Reads the test sets. Throws kInvalidArgument for one without an n-gram.
  explicit Decontaminate(DecontaminateOptions options);
  ~Decontaminate();

  const std::vector<TestSetFacts>& tests() const;
  bool finished() const { return job_.finished(); }
  void run(Shard shard) { job_.run(shard); }
  void finish() { job_.finish(); }
  LineCounts totals() const { return job_.totals(); }
  std::string report() const { return job_.report(); }

 private:
  DecontaminateOptions options_;
  std::unique_ptr<const TestIndex> index_;
  LineJob job_;
};

}  // namespace octet
