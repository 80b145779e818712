#include "train/activation_table.h"

#include <gtest/gtest.h>

#include <map>

#include "base/testing/test_error.h"
#include "model/model.h"

namespace octet {
namespace {

// 34 sbh + 5as²b bytes of the paper shrink to 32 sbh (no squares of the sequence, no masks) and 20 sbh (selective),
// plus 4 bytes a head and token of log-sum-exp and 8 a token and norm.
TEST(ActivationTable, CountsAreExact) {
  for (const ActivationRow& r : activation_table(parse_recipe("bf16"), h200_target())) {
    int64_t sbh = r.s * r.b * r.h, lse = 4 * r.s * r.b * r.a, statistics = 4 * r.s * r.b * 4;
    EXPECT_EQ(r.ours_none, 32 * sbh + lse + statistics) << r.name;
    EXPECT_EQ(r.ours_selective, 20 * sbh + lse) << r.name;
    EXPECT_EQ(r.ours_full, 2 * sbh) << r.name;
    const double as_over_h = static_cast<double>(r.a * r.s) / static_cast<double>(r.h);
    EXPECT_NEAR(r.paper_none / r.sbh(), 34 + 5 * as_over_h, 1e-9);
    EXPECT_NEAR(r.paper_selective / r.sbh(), 34, 1e-9);
    EXPECT_LT(static_cast<double>(r.ours_none), r.paper_none);
    EXPECT_LT(static_cast<double>(r.ours_selective), r.paper_selective);
  }
}

// FP8 keeps one byte an element of what its products read, 27 sbh in all; under light not of the attention's output,
// which is kept in bf16, nor of the GELU's, whose input is: 22 sbh. The rest is bf16, so that selective ends where bf16
// does.
TEST(ActivationTable, Fp8KeepsCodesOrNothing) {
  const std::vector<ActivationRow> bf16 = activation_table(parse_recipe("bf16"), h200_target());
  for (const char* recipe : {"fp8-current", "fp8-delayed"}) {
    const std::vector<ActivationRow> rows = activation_table(parse_recipe(recipe), h200_target());
    for (size_t i = 0; i < rows.size(); ++i) {
      const ActivationRow& r = rows[i];
      int64_t sbh = r.s * r.b * r.h, lse = 4 * r.s * r.b * r.a, statistics = 4 * r.s * r.b * 4, scales = 64;
      EXPECT_NEAR(r.ours_none, 27 * sbh + lse + statistics, scales) << r.name;
      EXPECT_NEAR(r.ours_light, 22 * sbh + lse + statistics, scales) << r.name;
      EXPECT_NEAR(r.ours_selective, bf16[i].ours_selective, scales) << r.name;
      EXPECT_EQ(bf16[i].ours_light, bf16[i].ours_none) << r.name;
      EXPECT_EQ(r.terms.back().ours_none + bf16[i].terms.back().ours_none, 0) << r.name;
    }
  }
}

TEST(ActivationTable, EveryKeptValueHasATerm) {
  const Parallel eight = {.mesh = {{1, 1, 1, 8}}, .sequence = true};
  const std::pair<const char*, Parallel> cases[] = {{"fp8-block", {}}, {"fp8-current", eight}, {"fp8-block", eight}};
  for (const auto& [recipe, parallel] : cases) {
    for (const ActivationRow& r : activation_table(parse_recipe(recipe), h200_target(), parallel)) {
      EXPECT_EQ(r.terms.back().ours_none, 0) << r.name << " " << recipe;
      EXPECT_EQ(r.terms.back().ours_selective, 0) << r.name << " " << recipe;
      double none = 0, selective = 0;
      for (const ActivationTerm& t : r.terms) none += t.ours_none, selective += t.ours_selective;
      EXPECT_NEAR(none * r.sbh(), static_cast<double>(r.ours_none), 1) << r.name << " " << recipe;
      EXPECT_NEAR(selective * r.sbh(), static_cast<double>(r.ours_selective), 1) << r.name << " " << recipe;
    }
  }
}

// One of t ranks under sequence parallelism keeps one t-th: of the paper's 34 sbh / t (selective) what the paper keeps,
// but for what is made again (norms' outputs, the GELU's) or drawn again (masks); and the log-sum-exp besides.
TEST(ActivationTable, ARankUnderSequenceParallelismKeepsItsPart) {
  const int64_t t = 8;
  const std::vector<ActivationRow> whole = activation_table(parse_recipe("bf16"), h200_target());
  const std::vector<ActivationRow> parts =
      activation_table(parse_recipe("bf16"), h200_target(), {.mesh = {{1, 1, 1, t}}, .sequence = true});
  ASSERT_EQ(parts.size(), 4u);
  for (size_t i = 0; i < parts.size(); ++i) {
    const ActivationRow &r = parts[i], &one = whole[i];
    EXPECT_EQ(r.ours_none * t, one.ours_none) << r.name;
    EXPECT_EQ(r.ours_selective * t, one.ours_selective) << r.name;
    EXPECT_EQ(r.ours_full * t, one.ours_full) << r.name;
    EXPECT_NEAR(r.paper_selective, 34 * r.sbh() / t, 1);
    const std::map<std::string, double> differences = {
        {"QKV input", -2},
        {"projection dropout mask", -1},
        {"MLP input", -2},
        {"second linear's input", -8},
        {"MLP dropout mask", -1},
        {"log-sum-exp of attention", 4 * static_cast<double>(r.a) / static_cast<double>(r.h)}};
    for (const ActivationTerm& term : r.terms) {
      const auto difference = differences.find(term.name);
      EXPECT_NEAR(static_cast<double>(t) * (term.ours_selective - term.paper_selective),
                  difference == differences.end() ? 0 : difference->second, 1e-9)
          << r.name << ", " << term.name;
    }
  }
}

// Without it, what lies between attention and MLP is whole on every rank: sbh (10 + 24/t + 5as/(ht)).
TEST(ActivationTable, TensorParallelismAloneSplitsWhatLiesInside) {
  const int64_t t = 8;
  for (const ActivationRow& r : activation_table(parse_recipe("bf16"), h200_target(), {.mesh = {{1, 1, 1, t}}})) {
    const double as_over_h = static_cast<double>(r.a * r.s) / static_cast<double>(r.h);
    EXPECT_NEAR(r.paper_none / r.sbh(), 10 + 24.0 / t + 5 * as_over_h / t, 1e-9);
    EXPECT_NEAR(r.paper_selective / r.sbh(), 10 + 24.0 / t, 1e-9);
    const int64_t sbh = r.s * r.b * r.h, lse = 4 * r.s * r.b * r.a, statistics = 4 * r.s * r.b * 4;
    EXPECT_EQ(r.ours_none, 8 * sbh + (24 * sbh + lse) / t + statistics) << r.name;
    EXPECT_EQ(r.ours_selective, 4 * sbh + (16 * sbh + lse) / t) << r.name;
    EXPECT_EQ(r.ours_full, 2 * sbh) << r.name;
  }
  EXPECT_NE(error_of([] {
              activation_table(parse_recipe("bf16"), h200_target(), {.mesh = {{1, 2, 1, 2}}});
            }).find("leave parallel.data"),
            std::string::npos);
}

// Of the paper's 34 sbh/t a layer and micro-batch, 20 are kept, and 4 bytes a head and token of log-sum-exp; at the
// ends of a pipeline there is more, at most the embedding's output of each micro-batch.
TEST(ActivationTable, TheFirstStageKeepsItsSlots) {
  const std::vector<StageActivationRow> rows = stage_activation_table("bf16", h200_target());
  const std::map<std::string, int64_t> slots = {
      {"gpt3-175b", 16 + 15 + 8}, {"gpt3-530b", 70 + 69 + 35}, {"gpt3-1t", 64}};
  ASSERT_EQ(rows.size(), 4u);
  for (const StageActivationRow& r : rows) {
    const ModelConfig model = named_model(r.name);
    const double sbh = 2048.0 * static_cast<double>(r.name == "gpt3-22b" ? 4 : 1) * static_cast<double>(model.hidden);
    const double a_layer = (20 + 4 * static_cast<double>(model.heads) / static_cast<double>(model.hidden)) * sbh / 8;
    const double p = static_cast<double>(r.p), v = static_cast<double>(r.v);
    const double layers =
        static_cast<double>(r.layers) / (p * v) * static_cast<double>(r.slots);  // times micro-batches
    EXPECT_NEAR(r.paper_layers / sbh * 8, 34 * static_cast<double>(r.layers) * (r.v > 1 ? 1 + (p - 1) / (p * v) : 1),
                1e-6)
        << r.name;
    if (r.p > 1) {
      // p, or p v + p - 1 chunks' worth, are in flight at once; each chunk has slots for the most that it has itself.
      EXPECT_EQ(r.slots, slots.at(r.name)) << r.name;
      EXPECT_GE(r.slots, r.v > 1 ? r.p * r.v + r.p - 1 : r.p) << r.name;
      EXPECT_NEAR(static_cast<double>(r.ours) / (layers * a_layer), 1, 0.06) << r.name;
    }
    EXPECT_LT(static_cast<double>(r.ours), r.paper) << r.name;
    EXPECT_GT(r.stage_bytes, r.ours) << r.name;
  }
}

}  // namespace
}  // namespace octet
