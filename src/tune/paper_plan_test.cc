#include "tune/paper_plan.h"

#include <gtest/gtest.h>

#include "tune/run_layout.h"

namespace octet {
namespace {

RunConfig model_of(const char* size, int64_t layers, int64_t length, int64_t batch) {
  RunConfig config;
  config.model_size = size, config.layers = layers, config.sequence_length = length, config.global_batch = batch;
  return config;
}

// Plans of few layers, extended, beside those of all layers: the same to the byte.
TEST(PaperPlan, ExtendedPlansAreThoseOfAllLayers) {
  PaperPlanner planner(h200_target());
  for (const char* size : {"gpt2-124m", "llama2-7b"}) {
    for (const RunLayout& layout : std::initializer_list<RunLayout>{
             {.micro_batch = 2, .recompute = "none", .recipe = "fp8-current"},
             {.micro_batch = 1, .recompute = "selective", .recipe = "fp8-delayed"},
             {.micro_batch = 1, .recompute = "full", .recipe = "fp8-block"},
             {.tensor = 2, .micro_batch = 2, .sequence = true, .recompute = "light", .recipe = "bf16"},
             {.tensor = 2, .data = 4, .micro_batch = 1, .shard = "gradients", .recompute = "light"},
             {.data = 4, .micro_batch = 1, .shard = "parameters", .recompute = "light"},
             {.context = 2, .pipeline = 5, .data = 1, .micro_batch = 1, .recompute = "full", .recipe = "bf16"}}) {
      SCOPED_TRACE(testing::Message() << size << ", " << to_text(layout));
      const RunConfig config = with_layout(model_of(size, size[0] == 'g' ? 12 : 22, 1024, 64), layout);
      const Prediction few = planner.predict(config), whole = planner.plan_whole(config);
      EXPECT_FALSE(few.whole);
      EXPECT_EQ(few.bytes(), whole.bytes());
      EXPECT_EQ(few.memory.activations, whole.memory.activations);
      EXPECT_EQ(few.memory.arena, whole.memory.arena);
      EXPECT_EQ(few.units, whole.units);
      EXPECT_NEAR(few.seconds() / whole.seconds(), 1, 1e-3);
    }
  }
}

// What the update or the first stage of a pipeline has on top of it is a few per cent at most; seconds are the same.
TEST(PaperPlan, ShardedUpdatesAndStagesAreNear) {
  PaperPlanner planner(h200_target());
  for (const RunLayout& layout : std::initializer_list<RunLayout>{
           {.pipeline = 4, .data = 2, .micro_batch = 1, .recompute = "light", .recipe = "fp8-current"},
           {.pipeline = 4, .data = 4, .micro_batch = 2, .shard = "optimizer", .recompute = "light"},
           {.data = 4, .micro_batch = 2, .shard = "optimizer", .recompute = "light"},
           {.tensor = 2,
           .pipeline = 2,
           .data = 1,
           .chunks = 3,
           .micro_batch = 1,
           .sequence = true,
           .recompute = "selective",
           .recipe = "fp8-delayed"}}) {
    SCOPED_TRACE(to_text(layout));
    const RunConfig config = with_layout(model_of("llama2-7b", 22, 1024, 64), layout);
    const Prediction few = planner.predict(config), whole = planner.plan_whole(config);
    EXPECT_NEAR(static_cast<double>(few.bytes()) / static_cast<double>(whole.bytes()), 1, 0.03);
    EXPECT_EQ(few.memory.weights, whole.memory.weights);
    EXPECT_EQ(few.memory.moments, whole.memory.moments);
    EXPECT_EQ(few.memory.copies, whole.memory.copies);
    EXPECT_NEAR(few.seconds() / whole.seconds(), 1, 1e-3);
  }
}

// More micro-batches than the schedule's shape needs are counted on from the others.
TEST(PaperPlan, ManyMicroBatchesGoOnAlike) {
  PaperPlanner planner(h200_target());
  for (const int64_t chunks : {1, 3}) {
    const RunConfig config = with_layout(model_of("gpt2-124m", 12, 256, 400),
                                         {.pipeline = 4, .chunks = chunks, .micro_batch = 1, .recipe = "bf16"});
    EXPECT_NEAR(planner.predict(config).seconds() / planner.plan_whole(config).seconds(), 1, 1e-4) << chunks;
  }
}

TEST(PaperPlan, FactsAreThoseOfTheWholeModel) {
  PaperPlanner planner(h200_target());
  const ModelFacts facts = planner.facts(model_of("llama2-7b", 0, 4096, 1));
  EXPECT_EQ(facts.parameters, 6738415616);
  EXPECT_NEAR(facts.unit_flops, 3 * (2 * (6738415616.0 - 32000 * 4096) + 32 * 2 * 4096 * 4096),
              0.02 * facts.unit_flops);
}

}  // namespace
}  // namespace octet
