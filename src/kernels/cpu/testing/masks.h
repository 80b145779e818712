// Attention's dropout masks, read back through any attention kernel, and tests of their independence. For tests.
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
  int64_t bits = 32;

  double scale() const;
  int64_t longest() const;
  // fn(head, query, start of its segment, first visible key); the query itself is the last key it sees.
  void for_each_query(const std::function<void(int64_t h, int64_t t, int64_t start, int64_t first)>& fn) const;
};

// A node of attention or attention_grad, in bf16.
BuiltCase build_dropout(const DropoutProblem& problem, Op op);

// mask[(h T + t) T + j] = 1 where key j is kept for query t of head h; 0 also where t does not see j.
using Mask = std::vector<uint8_t>;
// The mask defined by the IR.
Mask defined_mask(const DropoutProblem& problem);
// The mask of a kernel: zero queries and keys make all probabilities of a row equal, and values that are unit vectors
// return those of `dim` keys in the elements of the result, 0 if dropped. run(case) returns `out`.
Mask read_mask(const DropoutProblem& problem, const std::function<std::vector<double>(const BuiltCase&)>& run);

// Number of equal pairs of `count`.
struct Share {
  double equal = 0, count = 0;
  void add(bool is_equal) { equal += is_equal, ++count; }
  double share() const { return equal / count; }
  // Empty if the share is within this many standard deviations of `want`, else a message.
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
// first_of_8: counts only queries among this many first of every 8 of their segment, each against all.
MaskShares shares_of(const DropoutProblem& problem, const Mask& mask, int64_t first_of_8 = 8);
// Elements equal in both masks.
Share equal_share(const DropoutProblem& problem, const Mask& a, const Mask& b, int64_t first_of_8 = 8);
// Expected share for two independent elements.
inline double chance_equal(double dropout) { return (1 - dropout) * (1 - dropout) + dropout * dropout; }

}  // namespace octet::cpu
