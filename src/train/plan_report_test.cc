#include "train/plan_report.h"

#include <gtest/gtest.h>

#include "base/json.h"

namespace octet {
namespace {

int64_t sum(const std::vector<SavedValue>& values) {
  int64_t bytes = 0;
  for (const SavedValue& value : values) bytes += value.bytes;
  return bytes;
}

// 34 sbh + 5as²b bytes of the paper shrink to 32 sbh (no squares of the sequence, no masks) and 20 sbh (selective),
// plus 4 bytes a head and token of log-sum-exp and 8 a token and norm.
TEST(ActivationTable, CountsAreExact) {
  for (const ActivationRow& r : activation_table(parse_recipe("bf16"), h200_target())) {
    int64_t sbh = r.s * r.b * r.h, lse = 4 * r.s * r.b * r.a, statistics = 4 * r.s * r.b * 4;
    EXPECT_EQ(r.ours_none, 32 * sbh + lse + statistics) << r.name;
    EXPECT_EQ(r.ours_selective, 20 * sbh + lse) << r.name;
    EXPECT_EQ(r.ours_full, 2 * sbh) << r.name;
    EXPECT_EQ(sum(r.kept_none), r.ours_none);
    EXPECT_EQ(sum(r.kept_selective), r.ours_selective);
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
    }
  }
}

TEST(ActivationTable, EveryKeptValueHasATerm) {
  for (const char* recipe : {"bf16", "fp8-current", "fp8-delayed", "fp8-block"}) {
    std::string text = to_text(activation_table(parse_recipe(recipe), h200_target()), true);
    size_t at = 0;
    for (int rows = 0; (at = text.find("  other ", at)) != std::string::npos; ++at, ++rows)
      EXPECT_EQ(text.substr(at, 70).find_first_of("123456789"), std::string::npos) << text.substr(at, 80);
  }
}

TEST(PlanReport, BytesAddUp) {
  RunConfig config;
  config.recipe = "fp8-delayed";
  config.micro_batch = 1;
  config.sequence_length = 128;
  PlanReport r = plan_training(named_model("gpt2-124m"), config, h200_target());
  EXPECT_EQ(r.parameters, 124439808);                           // the published count
  const int64_t stored = r.parameters + (50304 - 50257) * 768;  // the table has rows up to a multiple of 128
  EXPECT_EQ(r.weight_bytes, 4 * stored);
  EXPECT_EQ(r.moment_bytes, 8 * stored);
  const int64_t amaxes = 12 * (4 + 6);  // of what q, k and v share, o, up and down read; of their gradients
  EXPECT_EQ(r.gradient_bytes, 4 * stored + 4 + 4 * amaxes);  // and the sum of the losses
  EXPECT_EQ(r.total_bytes, r.weight_bytes + r.compute_bytes + r.moment_bytes + r.gradient_bytes + r.scale_bytes +
                               r.activation_bytes + r.transient_bytes + r.workspace_bytes + r.input_bytes +
                               r.padding_bytes);
  EXPECT_GE(r.padding_bytes, 0);
  EXPECT_LT(r.padding_bytes, 64 * 2000);  // under an alignment for each of its states
}

// Recipe auto: programs read the same levels that people see.
TEST(PlanReport, TheLevelsOfGemmsAreInTheJson) {
  RunConfig config;
  config.micro_batch = 1, config.sequence_length = 128;
  const auto precision = [&](const char* recipe, const Target& target) {
    config.recipe = recipe;
    return parse_json(to_json(plan_training(named_model("gpt2-124m"), config, target)), "plan").at("precision");
  };
  EXPECT_EQ(precision("bf16", h200_target()), nlohmann::json::object());
  const nlohmann::json timed = precision("auto", h200_target()), untimed = precision("auto", Target{});
  EXPECT_EQ(timed.size(), 12u * 6 * 3);
  EXPECT_EQ(timed.at("layers.11.mlp.up/wgrad"), "bf16");  // 128 tokens do not pay for FP8
  EXPECT_EQ(untimed.at("layers.11.mlp.up/wgrad"), "fp8-tensor");
}

// What is listed at the peak is all that is live there, and no more than the arena.
TEST(PlanReport, ThePeakAddsUp) {
  RunConfig config;
  config.recipe = "fp8-current";
  config.micro_batch = 2;
  config.sequence_length = 1024;
  ModelConfig model = named_model("gpt2-124m");
  model.layers = 3;
  PlanReport r = plan_training(model, config, h200_target());
  int64_t bytes = 0, kept = 0;
  for (const PeakRow& row : r.peak) {
    bytes += row.bytes;
    if (row.kept) kept += row.bytes;
    if (row.name == "layers.*.mlp.up" && row.kept) {
      EXPECT_EQ(row.pieces, model.layers);
      EXPECT_EQ(row.bytes, model.layers * 2048 * 3072 * 2);  // the GELU's input: tokens x width x bf16
    }
  }
  EXPECT_EQ(bytes, r.live_bytes);
  EXPECT_LE(kept, r.activation_bytes);
  EXPECT_GE(r.activation_bytes + r.transient_bytes, r.live_bytes);
  EXPECT_NE(peak_text(r).find("layers.*.mlp.up"), std::string::npos);
}

}  // namespace
}  // namespace octet
