#include "train/plan_report.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "exec/executor.h"
#include "train/language_model.h"

namespace octet {
namespace {

TEST(PlanReport, BytesAddUp) {
  RunConfig config;
  config.recipe = "fp8-delayed";
  config.micro_batch = 1;
  config.sequence_length = 128;
  PlanReport r = plan_training(LanguageModel(named_model("gpt2-124m"), config), config, h200_target());
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

TEST(PlanReport, BloomHasItsPublishedParameters) {
  RunConfig config;
  config.recipe = "bf16", config.recompute = "full";
  config.micro_batch = 1, config.sequence_length = 128;
  EXPECT_EQ(plan_training(LanguageModel(named_model("bloom-176b"), config), config, h200_target()).parameters,
            176247271424);
}

TEST(PlanReport, MixturesHaveTheirPublishedParametersAndCountThoseOfAToken) {
  RunConfig config;
  config.recipe = "bf16", config.recompute = "full";
  config.micro_batch = 1, config.sequence_length = 128;
  const PlanReport mixtral = plan_training(LanguageModel(named_model("mixtral-8x7b"), config), config, h200_target());
  EXPECT_EQ(mixtral.parameters, 46702792704);
  EXPECT_EQ(mixtral.active_parameters, 46702792704 - 32 * 6 * int64_t{3} * 14336 * 4096);  // "12.9B"
  // Two FLOPs for each active weight but those of the embedding table, and attention's.
  const double linears = 2.0 * static_cast<double>(mixtral.active_parameters - 32000 * 4096);
  EXPECT_NEAR(mixtral.forward_flops / linears, 1, 0.01);
  EXPECT_EQ(plan_training(LanguageModel(named_model("qwen3-30b-a3b"), config), config, h200_target()).parameters,
            30532122624);
}

// Recipe auto: programs read the same levels that people see.
TEST(PlanReport, TheLevelsOfGemmsAreInTheJson) {
  RunConfig config;
  config.micro_batch = 1, config.sequence_length = 128;
  const auto precision = [&](const char* recipe, const Target& target) {
    config.recipe = recipe;
    return parse_json(to_json(plan_training(LanguageModel(named_model("gpt2-124m"), config), config, target)), "plan")
        .at("precision");
  };
  EXPECT_EQ(precision("bf16", h200_target()), nlohmann::json::object());
  const nlohmann::json timed = precision("auto", h200_target()), untimed = precision("auto", Target{});
  EXPECT_EQ(timed.size(), 12u * 6 * 3);
  EXPECT_EQ(timed.at("layers.11.mlp.up/wgrad"), "bf16");  // 128 tokens do not pay for FP8
  EXPECT_EQ(untimed.at("layers.11.mlp.up/wgrad"), "fp8-tensor");
}

// Context ranks reduce gradients, and share updates, as data ranks do: a half of the bytes, beside backward.
TEST(PlanReport, GradientsOfContextRanksLeaveAsTheyAreMade) {
  RunConfig config;
  config.recipe = "fp8-current", config.context = 2;  // maxima of scales are exchanged between the products
  config.micro_batch = 2, config.sequence_length = 4096;
  ModelConfig model = named_model("llama2-7b");
  model.layers = 4;
  const auto planned = [&](const char* shard) {
    config.shard = shard;
    return plan_training(LanguageModel(model, config), config, h200_target());
  };
  const auto row = [](const PlanReport& r, const std::string& graph, const std::string& op) {
    for (const CollectiveRow& row : r.collectives)
      if (row.graph == graph && row.op == op && row.over == "cp") return row;
    return CollectiveRow{graph, op, "cp"};
  };
  const PlanReport none = planned("none"), gradients = planned("gradients");
  const CollectiveRow whole = row(none, "apply", "all_reduce"), scattered = row(gradients, "train", "reduce_scatter");
  EXPECT_NEAR(whole.bytes, 4.0 * static_cast<double>(none.parameters), 1e6);  // two passes of a half
  EXPECT_NEAR(scattered.bytes, whole.bytes / 2, 1e6);
  EXPECT_LT(row(gradients, "apply", "all_reduce").bytes, 1e6);  // of norms
  EXPECT_LT(scattered.exposed, 0.2 * scattered.seconds);
  EXPECT_EQ(whole.exposed, whole.seconds);
  EXPECT_NEAR(static_cast<double>(gradients.moment_bytes), 0.5 * static_cast<double>(none.moment_bytes), 1e6);
}

// As many tokens as ends of segments.
TEST(PlanReport, ContextRanksShareTwoTokens) {
  RunConfig config;
  config.micro_batch = 1, config.sequence_length = 2, config.context = 2;
  ModelConfig model = named_model("gpt2-124m");
  model.layers = 2;
  EXPECT_EQ(plan_training(LanguageModel(model, config), config, h200_target()).units, 1) << "of a rank";
}

// What is listed at the peak is all that is live there, and no more than the arena.
TEST(PlanReport, ThePeakAddsUp) {
  RunConfig config;
  config.recipe = "fp8-current";
  config.micro_batch = 2;
  config.sequence_length = 1024;
  ModelConfig model = named_model("gpt2-124m");
  model.layers = 3;
  PlanReport r = plan_training(LanguageModel(model, config), config, h200_target());
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
