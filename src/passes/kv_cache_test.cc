#include "passes/kv_cache.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "ir/verify.h"
#include "passes/tiny_program.h"

namespace octet {
namespace {

Program cached(const KvCacheOptions& options) {
  Graph graph("decode");
  Builder builder(graph);
  builder.output("logits",
                 build_logits(builder, tiny::model("llama"), {.tokens = 4, .max_segments = 1, .max_length = 4}));
  Program program;
  program.add_graph(add_kv_cache(graph, options));
  collect_state(program);
  verify(program);
  return program;
}

TEST(KvCache, ScalesAreStatesThatStartAtOne) {
  KvCacheOptions options{.blocks = {2}, .blocks_per_sequence = 2, .cache_dtype = DType::kE4M3, .scales = true};
  Program program = cached(options);
  int scales = 0;
  for (const StateEntry& entry : program.states()) {
    if (entry.kind != StateKind::kScale) continue;
    ++scales;
    EXPECT_EQ(entry.type, (TensorType{DType::kF32, {1}})) << entry.name;
    EXPECT_EQ(entry.initial, 1) << entry.name;
  }
  EXPECT_EQ(scales, 2 * 2 * 2) << "k and v, scale and scale_inv, of two layers";
  ASSERT_NE(program.find_state("kv.layers.1.attn.attention.v_scale_inv"), nullptr);
  for (const Node& node : program.graph("decode").nodes()) {
    if (node.op == Op::kKvAppend) {
      EXPECT_EQ(node.inputs.size(), 4u);
    }
    if (node.op == Op::kPagedAttention) {
      EXPECT_EQ(node.inputs.size(), 8u);
    }
  }
  options.scales = false;
  Program plain = cached(options);
  for (const StateEntry& entry : plain.states()) EXPECT_NE(entry.kind, StateKind::kScale) << entry.name;
}

TEST(KvCache, ScalesAreOfFp8CachesOnly) {
  EXPECT_THROW(cached({.blocks = {2}, .blocks_per_sequence = 2, .cache_dtype = DType::kBF16, .scales = true}), Error);
}

}  // namespace
}  // namespace octet
