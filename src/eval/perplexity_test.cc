// Perplexity on ranks that share a model is that of one rank, up to the order of sums.
#include "eval/perplexity.h"

#include <gtest/gtest.h>

#include "base/testing/test_data.h"

namespace octet {
namespace {

TEST(Perplexity, OnTwoRanksIsThatOfOne) {
  for (const char* name : {"gpt2", "llama_gqa_rope3"}) {
    const std::string folder = test_data_path(std::string("hf_goldens/") + name);
    if (folder.empty()) GTEST_SKIP() << missing_test_data(name);
    const auto weights = open_weights(folder);
    const auto read = [](int64_t first, std::span<int32_t> out) {
      for (int32_t& id : out) id = static_cast<int32_t>(first * 7 + first * first % 5) % 40, ++first;
    };
    PerplexityOptions options{
        .recipe = parse_recipe("fp32"), .target = cpu_target(), .length = 16, .stride = 8, .windows = 2};
    const PerplexityResult alone = evaluate_perplexity(*weights, options, 60, read, nullptr);
    options.tensor = 2;
    int64_t told = 0;
    const PerplexityResult shared =
        evaluate_perplexity(*weights, options, 60, read, nullptr, [&](int64_t done) { told = done; });
    EXPECT_EQ(alone.tokens, 59);
    EXPECT_EQ(shared.tokens, alone.tokens);
    EXPECT_EQ(told, alone.tokens);
    EXPECT_NEAR(shared.loss(), alone.loss(), 1e-5 * alone.loss());
  }
}

}  // namespace
}  // namespace octet
