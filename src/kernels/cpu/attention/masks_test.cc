// The masks of the IR: elements of attention's dropout are independent, and the fast kernels drop by them.
#include "kernels/cpu/testing/masks.h"

#include <gtest/gtest.h>

#include "kernels/cpu/testing/conformance.h"

namespace octet::cpu {
namespace {

DropoutProblem two_segments(double dropout, int64_t bits = 32) {
  DropoutProblem p{"two_segments", 512, 4, 4, 128, {0, 256, 512}, 0, 256, dropout};
  p.bits = bits;
  return p;
}

TEST(AttentionMasks, ElementsAreIndependent) {
  for (const int64_t bits : {32, 8}) {
    for (const double dropout : {0.1, 0.5}) {
      const DropoutProblem p = two_segments(dropout, bits);
      const double dropped = bits == 32 ? dropout : std::round(256 * dropout) / 256;
      const MaskShares shares = shares_of(p, defined_mask(p));
      for (const std::string& line : shares.unlike_independent(dropped)) ADD_FAILURE() << bits << " bits: " << line;
      EXPECT_EQ(shares.repeated.unlike("queries repeated", chance_equal(dropped), 7), "");
    }
  }
}

TEST(AttentionMasks, SharesOfMasksThatRepeatAreUnlikely) {
  const DropoutProblem p = two_segments(0.5);
  Mask mask = defined_mask(p);
  const auto row = [&](int64_t h, int64_t t) { return mask.begin() + (h * p.tokens + t) * p.tokens; };
  p.for_each_query([&](int64_t h, int64_t t, int64_t start, int64_t first) {
    if ((t - start) % 8 >= 2) std::copy(row(h, t - 2) + first, row(h, t - 2) + t - 1, row(h, t) + first);
  });
  const MaskShares all = shares_of(p, mask);
  EXPECT_GE(all.unlike_independent(0.5).size(), 3u) << "queries 2, 4 and 6 apart";
  EXPECT_EQ(all.repeated.share(), 1.0);
  for (const std::string& line : shares_of(p, mask, 2).unlike_independent(0.5)) ADD_FAILURE() << line;
  EXPECT_NE(shares_of(p, defined_mask(p)).unlike_independent(0.4).size(), 0u) << "another share is kept";
}

TEST(AttentionMasks, OtherSeedsStepsMicroBatchesAndSitesDrawOthers) {
  const DropoutProblem p{"masks", 128, 2, 2, 128, {0, 128}, 0, 128};
  const Mask mask = defined_mask(p);
  std::vector<DropoutProblem> others(4, p);
  others[0].rng[0] = 1338;
  others[1].rng[1] = 6;
  others[2].rng[2] = 1;
  others[3].key = 10;
  for (const DropoutProblem& other : others) {
    EXPECT_EQ(equal_share(p, mask, defined_mask(other)).unlike("equal", chance_equal(p.dropout), 5), "");
  }
}

TEST(AttentionMasks, FastKernelsDropByThem) {
  std::vector<DropoutProblem> problems = {
      two_segments(0.3),
      {"packed_segments", 300, 4, 2, 64, {0, 3, 90, 141, 290}},
      {"library_mask", 70, 2, 1, 32, {0, 41, 70}, 0, 0, 0.5, {7, 3, 2}, 11, true},
      two_segments(0.3, 8),
      {"packed_segments", 300, 4, 2, 64, {0, 3, 90, 141, 290}},
  };
  problems.back().bits = 8;
  for (const DropoutProblem& p : problems) {
    const Mask mask = read_mask(p, [](const BuiltCase& c) {
      return load_tensor(c.node().results[0], run_node(c.graph, c.node(), c.inputs)[0].data()).values;
    });
    EXPECT_EQ(mask, defined_mask(p)) << p.name;
  }
}

}  // namespace
}  // namespace octet::cpu
