// Frequencies of yarn against values of the formula of arXiv 2309.00071 as transformers evaluates it.
#include "kernels/common/rope_frequencies.h"

#include <gtest/gtest.h>

#include "ir/builder.h"

namespace octet {
namespace {

std::vector<double> frequencies(const RopeOptions& options) {
  Graph graph;
  Builder builder(graph);
  const Value y = builder.rope(builder.input("x", {DType::kF32, {2, 16}}), builder.positions(2), options);
  return rope_frequencies(graph.node(y.node));
}

TEST(RopeFrequencies, Yarn) {
  struct Row {
    double fast, slow;
    bool truncate;
    std::vector<double> middle;  // pairs 3 to 5; those before turn as they are, those behind a fourth as fast
  };
  const Row rows[] = {
      {32, 1, true, {0.02569350598886808, 0.00625, 0.001383496476323666}},
      {32, 1, false, {0.02861360881198889, 0.006556971521129435, 0.0012856320307266882}},
      {8, 2, false, {0.03162277660168379, 0.008892428802823584, 0.0008423718316904352}},
  };
  for (const Row& row : rows) {
    std::vector<double> want = {1.0, 0.31622776601683794, 0.1};
    want.insert(want.end(), row.middle.begin(), row.middle.end());
    want.insert(want.end(), {0.00025, 7.905694150420948e-05});
    const std::vector<double> found = frequencies({.head_dim = 16,
                                                   .scaling = "yarn",
                                                   .factor = 4,
                                                   .low_freq_factor = row.slow,
                                                   .high_freq_factor = row.fast,
                                                   .original_max_positions = 4096,
                                                   .truncate = row.truncate});
    ASSERT_EQ(found.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(found[i], want[i], 1e-12 * want[i]) << i;
  }
}

}  // namespace
}  // namespace octet
