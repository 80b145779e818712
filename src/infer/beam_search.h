// Beam search: keeps the likeliest beginnings of a sequence, the beams, and the best finished sequences. Knows tokens
// and their log-probabilities, neither blocks nor tensors; deterministic.
//
// The search is the one of transformers' generate() (num_beams, length_penalty, early_stopping). Of all beams' next
// tokens the `width` best that do not end a sequence go on; one that ends it, among the `width` best of all, is a
// finished text, of which the `width` best are kept. Its score is the sum of its log-probabilities divided by
// length^length_penalty, the end token counted in both. The search is over
//   - at `limit` tokens, where every sequence is finished,
//   - when no beam can go on, or
//   - when `width` sequences are finished and, with early_stopping, at once; without, when the best beam's score at the
//     present length is no better than the worst finished one's; with kNever, at the length that flatters it most:
//     `limit` for a positive length_penalty.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "octet/engine.h"

namespace octet {

struct BeamOptions {
  int64_t width = 1;  // beams
  double length_penalty = 1;
  EarlyStopping early_stopping = EarlyStopping::kNo;
  int64_t limit = 1;                  // tokens of a sequence, its end token included
  std::vector<int32_t> end_ids = {};  // tokens that end a sequence
};

class BeamSearch {
 public:
  // What may follow a beam: its likeliest tokens, width + end_ids.size() at least or all there are. Those whose
  // log-probability is not finite cannot follow.
  struct Row {
    std::vector<TokenLogprob> next;
    std::vector<TokenLogprob> top = {};  // kept with the chosen token, for the sequence's log-probabilities
  };
  // Beam i becomes what beam `parent` was, and this token. As many beams as can keep their own place.
  struct Step {
    int32_t parent = 0, token = 0;
  };
  struct Text {
    double score = 0;
    int32_t stop_id = -1;              // the token that ended it; -1: its length
    std::vector<TokenLogprob> tokens;  // without the end token
    std::vector<std::vector<TokenLogprob>> top;
  };

  explicit BeamSearch(BeamOptions options);

  // A row of each beam (before the first step all are the same, and the first alone counts). Returns a step of each;
  // none: the search is over. Beams that nothing may follow are replaced by copies of others that do not count.
  std::span<const Step> advance(std::span<const Row> rows);
  // The best finished sequences, best first; `width` of them, unless no more could be found.
  std::vector<Text> texts() const;
  int64_t length() const { return length_; }  // tokens of the beams

 private:
  static constexpr double kNoScore = -std::numeric_limits<double>::infinity();  // of a beam that does not count

  struct Beam {
    double score = kNoScore;  // the sum of its log-probabilities
    int32_t node = -1;        // its last token; -1: none yet
  };
  struct Node {  // a token of a sequence, and the one before it
    int32_t parent = -1;
    TokenLogprob token;
    std::vector<TokenLogprob> top;
  };
  struct Candidate {
    double score = 0;
    int32_t beam = 0, place = 0;  // in the beam's row
  };
  struct Finished {
    double score = 0;
    int32_t node = -1, stop_id = -1;
  };

  void gather(std::span<const Row> rows);
  int32_t add_node(const Candidate& candidate, std::span<const Row> rows);
  void finish(const Candidate& candidate, bool ends, std::span<const Row> rows);
  void go_on(std::span<const Row> rows);
  bool over() const;
  double scored(double sum, int64_t length) const;

  const BeamOptions options_;
  int64_t length_ = 0;
  std::vector<Beam> beams_;
  std::vector<Node> nodes_;
  std::vector<Finished> finished_;     // best first
  std::vector<Candidate> candidates_;  // of the present step, best first
  std::vector<Candidate> live_;        // those that go on
  std::vector<Step> steps_;
};

}  // namespace octet
