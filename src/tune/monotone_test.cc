// More of anything never makes a prediction slower, nor a fit fail.
#include <gtest/gtest.h>

#include "tune/paper_plan.h"
#include "tune/run_layout.h"
#include "tune/search.h"

namespace octet {
namespace {

struct More {
  const char* what;
  void (*change)(Target&);
};
constexpr More kMore[] = {
    {"bandwidth of memory", [](Target& t) { t.step.bytes_per_second *= 1.7; }},
    {"FLOP/s of products", [](Target& t) { t.step.bf16 *= 1.5, t.step.fp8 *= 1.5, t.step.fp8_block *= 1.5; }},
    {"FLOP/s of attention", [](Target& t) { t.step.attention_forward *= 2, t.step.attention_backward *= 2; }},
    {"bandwidth of links", [](Target& t) { t.link_bytes_per_second *= 3; }},
    {"bandwidth between machines", [](Target& t) { t.node_link_bytes_per_second *= 3; }},
    {"quicker links", [](Target& t) { t.link_latency /= 2, t.node_link_latency /= 2; }},
    {"quicker kernels", [](Target& t) { t.step.kernel_seconds /= 2, t.step.step_seconds /= 2; }},
    {"memory", [](Target& t) { t.memory_bytes *= 2; }},
};

TEST(Monotone, MoreOfAnythingIsNeverSlower) {
  const Target usual = h200_target();
  for (const RunLayout& layout : std::initializer_list<RunLayout>{
           {.micro_batch = 2, .recompute = "light", .recipe = "fp8-current"},
           {.tensor = 4,
           .data = 4,
           .micro_batch = 1,
           .sequence = true,
           .recompute = "selective",
           .recipe = "fp8-current"},
           {.tensor = 2, .context = 2, .data = 4, .micro_batch = 2, .shard = "optimizer", .recompute = "none"},
           {.data = 8, .micro_batch = 1, .shard = "parameters", .recompute = "light", .recipe = "fp8-delayed"},
           {.tensor = 2,
           .pipeline = 4,
           .data = 2,
           .chunks = 2,
           .micro_batch = 1,
           .sequence = true,
           .recompute = "full"},
           {.pipeline = 8, .data = 2, .micro_batch = 1, .shard = "gradients", .recompute = "light"}}) {
    RunConfig config;
    config.model_size = "llama2-7b", config.layers = 16, config.sequence_length = 2048, config.global_batch = 128;
    config = with_layout(config, layout);
    const Prediction before = PaperPlanner(usual).predict(config);
    for (const auto& [what, change] : kMore) {
      SCOPED_TRACE(testing::Message() << "more: " << what << "; " << to_text(layout));
      Target more = usual;
      change(more);
      const Prediction after = PaperPlanner(more).predict(config);
      EXPECT_LE(after.seconds(), before.seconds() * (1 + 1e-9));
      EXPECT_LE(after.bytes(), before.bytes());
    }
  }
}

TEST(Monotone, TheFastestIsNeverSlowerWithMore) {
  RunConfig config;
  config.model_size = "gpt2-124m", config.layers = 6, config.global_batch = 8;
  Target usual = h200_target();
  usual.memory_bytes = int64_t{3} << 30;
  const SearchOptions options{
      .devices = 2, .given = {"precision.recipe", "train.micro_batch", "parallel.chunks"}, .rows = 3};
  const auto fastest = [&](const Target& target) {
    PaperPlanner planner(target);
    const SearchResult found = search_layouts(planner, config, options);
    return found.best.empty() ? 1e9 : found.best[0].plan.seconds();
  };
  const double before = fastest(usual);
  EXPECT_LT(before, 1e9);
  for (const size_t i : {0, 1, 3, 7}) {
    const auto& [what, change] = kMore[i];
    Target more = usual;
    change(more);
    EXPECT_LE(fastest(more), before * (1 + 1e-9)) << "more: " << what;
  }
}

}  // namespace
}  // namespace octet
