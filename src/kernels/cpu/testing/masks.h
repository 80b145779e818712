// What attention drops, read back through any kernel of it, and whether it was drawn independently. For tests.
#pragma once

#include <functional>

#include "kernels/cpu/testing/cases.h"

namespace octet::cpu {

struct DropoutProblem {
  const char* name;
  int64_t tokens, heads, kv_heads, dim;
  std::vector<double> starts;  // of segments
  int64_t window = 0, equal_length = 0;
  double dropout = 0.3;
  std::vector<double> rng = {1337, 5, 0};  // seed, step, micro-batch
  int64_t key = 9;
  bool library_mask = false;

  double scale() const;
  int64_t longest() const;
  // fn(head, query, start of its segment, first visible key); the query itself is the last key it sees.
  void for_each_query(const std::function<void(int64_t h, int64_t t, int64_t start, int64_t first)>& fn) const;
};

// A node of attention or attention_grad, in bf16.
BuiltCase build_dropout(const DropoutProblem& problem, Op op);

// mask[(h T + t) T + j] = 1 where key j is kept for query t of head h; 0 also where t does not see j.
using Mask = std::vector<uint8_t>;
// As the IR defines it.
Mask defined_mask(const DropoutProblem& problem);
// As a kernel drops: with queries and keys of zeros every probability of a row is the same, and values that are unit
// vectors put those of `dim` keys into the elements of the result, 0 where dropped. run(case) gives `out`.
Mask read_mask(const DropoutProblem& problem, const std::function<std::vector<double>(const BuiltCase&)>& run);

// How many of `count` pairs are equal.
struct Share {
  double equal = 0, count = 0;
  void add(bool is_equal) { equal += is_equal, ++count; }
  double share() const { return equal / count; }
  // Empty where the share is within so many standard deviations of `want`, else a line that says it is not.
  std::string unlike(const std::string& what, double want, double deviations) const;
};

struct MaskShares {
  Share kept;
  Share heads, segments;             // equal to the head before, to the segment before (of equal lengths)
  std::vector<Share> queries, keys;  // equal to the query, the key so far before: at [distance], 1 .. 63
  Share repeated;                    // equal to the query two before, both in one run of 8 from their segment's start

  // A line for each share (but `repeated`) that independent elements would not have: 5 standard deviations, 7 where an
  // element stands in two pairs.
  std::vector<std::string> unlike_independent(double dropout) const;
};
// first_of_8: counts only queries (each against all) that are among so many first of every 8 of their segment.
MaskShares shares_of(const DropoutProblem& problem, const Mask& mask, int64_t first_of_8 = 8);
// Elements equal in both masks.
Share equal_share(const DropoutProblem& problem, const Mask& a, const Mask& b, int64_t first_of_8 = 8);
// Of two elements that were drawn apart.
inline double chance_equal(double dropout) { return (1 - dropout) * (1 - dropout) + dropout * dropout; }

}  // namespace octet::cpu
