#include "infer/serving_program.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "exec/executor.h"
#include "ir/fusion.h"

namespace octet {
namespace {

TEST(ServingProgram, BucketsCostAThirdOfPaddingAtMost) {
  EXPECT_EQ(bucket_sizes(1, 100), (std::vector<int64_t>{1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 100}));
  EXPECT_EQ(bucket_sizes(16, 16), (std::vector<int64_t>{16}));
  EXPECT_EQ(bucket_sizes(16, 64), (std::vector<int64_t>{16, 24, 32, 48, 64}));
  EXPECT_EQ(bucket_sizes(1, 100, 16), (std::vector<int64_t>{16, 32, 48, 64, 96, 112}));
}

ModelConfig model() {
  ModelConfig config = model_family("llama");
  config.vocab_size = 128;
  config.max_positions = 256;
  config.hidden = 64;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;  // 32 wide: a block of 16 tokens is 16 x (32 + 32) x 2 layers x 4 bytes = 8192
  config.intermediate = 128;
  return config;
}

ServingOptions options(int64_t kv_cache_bytes) {
  return {.engine = {.max_sequences = 4, .max_step_tokens = 64, .kv_cache_bytes = kv_cache_bytes},
          .target = cpu_target(),
          .recipe = parse_recipe("fp32")};
}

TEST(ServingProgram, BytesBecomeBlocksUpToWhatSequencesCanUse) {
  const ServingProgram program = build_serving_program(model(), options(30 * 8192 + 100));
  ASSERT_EQ(program.limits.groups.size(), 1u);
  EXPECT_EQ(program.limits.groups[0].block_bytes, 8192);
  EXPECT_EQ(program.limits.groups[0].blocks_per_sequence, 16);
  EXPECT_EQ(program.limits.groups[0].blocks, 30);
  EXPECT_EQ(program.limits.kv_bytes, 30 * 8192);
  const StateEntry* cache = program.plan.program.find_state("kv.layers.0.attn.attention.k");
  for (const StateEntry& entry : program.plan.program.states()) {
    if (entry.name.ends_with(".k")) cache = &entry;
  }
  ASSERT_NE(cache, nullptr);
  EXPECT_EQ(cache->type.shape, (Shape{30 * 16, 32}));
  EXPECT_EQ(build_serving_program(model(), options(1 << 30)).limits.groups[0].blocks, 4 * 16 + 16);
}

TEST(ServingProgram, SaysWhatIsMissingAndWhatWouldFit) {
  try {
    build_serving_program(model(), options(8 * 8192));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_NE(error.message().find("context 256 needs 131072 bytes of KV cache"), std::string::npos) << error.message();
    EXPECT_NE(error.message().find("kv_cache_bytes gives 65536: 65536 bytes are missing"), std::string::npos);
    EXPECT_NE(error.message().find("use a context of 128 or a KV cache of e4m3 or int8"), std::string::npos)
        << error.message();
  }
  // No cache size helps if the weights do not fit.
  try {
    ServingOptions nothing = options(0);
    nothing.engine.memory_fraction = 1e-12;
    build_serving_program(model(), nothing);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("for weights"), std::string::npos) << error.message();
    EXPECT_NE(error.message().find("bytes are missing; use a smaller model"), std::string::npos) << error.message();
  }
}

// The last layer of a prompt works on the rows that are sampled; its queries are made beside keys and values, in one
// product as in every other graph.
TEST(ServingProgram, TheLastLayerOfAPromptWorksOnTheRowsThatAreRead) {
  const auto rows_of_products = [](const ServingProgram& program, const std::string& name) {
    std::vector<int64_t> rows;
    const Graph& graph = program.plan.program.graph(name);
    for (const Node& node : graph.nodes())
      if (node.op == Op::kMatmul) rows.push_back(node.results[0].shape[0]);
    return rows;
  };
  ServingOptions o = options(1 << 22);
  const ServingProgram program = build_serving_program(model(), o);
  const std::vector<int64_t> whole = rows_of_products(program, "mixed.64");
  std::vector<int64_t> wanted(7 + 3, 64);  // q, k, v, o, gate, up, down; q, k, v
  wanted.resize(14, 4);
  EXPECT_EQ(whole, wanted);
  EXPECT_EQ(rows_of_products(program, "decode.4"), std::vector<int64_t>(14, 4));
  o.engine.all_rows = true;
  EXPECT_EQ(rows_of_products(build_serving_program(model(), o), "mixed.64"), std::vector<int64_t>(14, 64));
}

// Products in blocks want fours of tokens on such targets, and have kernels of their own for one and two.
TEST(ServingProgram, FewSequencesAreNotPaddedUnderScalesOfBlocks) {
  for (const auto& [sequences, wanted] :
       std::map<int64_t, std::vector<int64_t>>{{1, {1, 4}}, {2, {1, 2, 4}}, {8, {1, 2, 4, 8}}}) {
    ServingOptions blocks = options(1 << 22);
    blocks.recipe = parse_recipe("fp8-block");
    blocks.target.fp8_alignment = 16;
    blocks.engine.max_sequences = sequences;
    std::vector<int64_t> sizes;
    for (const ForwardBucket& bucket : build_serving_program(model(), blocks).decode) sizes.push_back(bucket.tokens);
    EXPECT_EQ(sizes, wanted) << sequences;
  }
}

// Also where FP8 products of training want whole sixteens: no bucket falls back to the compute type.
TEST(ServingProgram, EveryBucketOfAnFp8RecipeComputesInFp8) {
  ServingOptions fp8 = options(1 << 22);
  fp8.recipe = parse_recipe("fp8-current");
  fp8.target.fp8_alignment = 16;
  fp8.engine.max_sequences = 20;
  const ServingProgram program = build_serving_program(model(), fp8);
  EXPECT_EQ(program.limits.sequences, 20);
  for (const auto* buckets : {&program.decode, &program.mixed}) {
    for (const ForwardBucket& bucket : *buckets) {
      for (const Node& node : program.plan.program.graph(bucket.graph).nodes())
        EXPECT_NE(node.op, Op::kMatmul) << node.name << " of " << bucket.graph;
    }
  }
}

// The head too: what a step's graphs compute in int8 does not depend on their rows.
TEST(ServingProgram, NoProductOfInt8StaysInTheComputeType) {
  ServingOptions int8 = options(1 << 22);
  int8.recipe = parse_recipe("int8");
  const ServingProgram program = build_serving_program(model(), int8);
  int64_t products = 0, heads = 0;
  for (const Graph& graph : program.plan.program.graphs()) {
    for (const Node& node : graph.nodes()) {
      EXPECT_NE(node.op, Op::kMatmul) << node.name << " of " << graph.name();
      if (node.op != Op::kScaledMatmul) continue;
      ++products;
      heads += node.attrs.get_or("head", false);
      for (size_t side : {0, 2}) EXPECT_EQ(graph.dtype(node.inputs[side]), DType::kI8) << node.name;
    }
  }
  EXPECT_GT(heads, 0);
  EXPECT_GT(products, heads);
  int8.target = h200_target();
  EXPECT_NO_THROW(build_serving_program(model(), int8));
  int8.target.integer_products = {};
  try {
    build_serving_program(model(), int8);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(error.message().find("recipe int8 has products of i8 by i8 codes, for which"), std::string::npos)
        << error.message();
  }
}

// In e4m3 with a scale a row, where the target has products of its shape and the recipe does not keep it.
TEST(ServingProgram, TheHeadBesideIntegerWeights) {
  const auto heads_in_codes = [](const char* recipe, int64_t vocab) {
    ServingOptions served = options(1 << 22);
    served.recipe = parse_recipe(recipe), served.target = h200_target();
    ModelConfig config = model();
    config.vocab_size = vocab;
    const ServingProgram program = build_serving_program(config, served);
    int64_t codes = 0, plain = 0;
    for (const Graph& graph : program.plan.program.graphs()) {
      for (const Node& node : graph.nodes()) {
        if (!node.attrs.get_or("head", false)) continue;
        ++(node.op == Op::kScaledMatmul ? codes : plain);
        if (node.op != Op::kScaledMatmul) continue;
        for (size_t side : {0, 2}) EXPECT_EQ(graph.dtype(node.inputs[side]), DType::kE4M3) << node.name;
        EXPECT_EQ(node.attr<std::string>("scaling_b"), "row");
      }
    }
    EXPECT_NE(codes > 0, plain > 0) << recipe;
    return codes > 0;
  };
  EXPECT_TRUE(heads_in_codes("w4a8", 512));
  EXPECT_FALSE(heads_in_codes("w4a8", 500));
  EXPECT_FALSE(heads_in_codes("w4a8-head16", 512));
  EXPECT_FALSE(heads_in_codes("w4a16", 512));
}

// On GPUs addends of experts are those of linears, by groups of an expert and a slot; the router stays one kernel.
TEST(ServingProgram, AddendsOfExpertsAreFusedAsThoseOfLinears) {
  ModelConfig mixture = model_family("qwen3_moe");
  mixture.vocab_size = 128, mixture.max_positions = 256, mixture.hidden = 128, mixture.layers = 2, mixture.heads = 4;
  mixture.kv_heads = 2, mixture.experts.count = 8, mixture.experts.per_token = 2, mixture.experts.intermediate = 64;
  for (const char* recipe : {"bf16", "fp8-current"}) {
    ServingOptions served = options(1 << 24);
    served.recipe = parse_recipe(recipe), served.target = h200_target(), served.cache_dtype = DType::kBF16;
    served.adapters = {.slots = 3, .ranks = {16}};
    served.adapter_targets = {"mlp.experts.gate", "mlp.experts.up", "mlp.experts.down"};
    const ServingProgram program = build_serving_program(mixture, served);
    EXPECT_EQ(program.plan.program.find_state("adapters.layers.0.mlp.experts.gate.lora_a.16")->type.shape,
              (Shape{8 * 5 * 2 * 16, 128}));
    std::map<Producer, int> fused;
    int groups = 0, products = 0;
    for (const Node& node : program.plan.program.graph("decode.4.r16").nodes()) {
      groups += node.op == Op::kGroupRows, products += node.op == Op::kGroupedMatmul;
      if (node.op == Op::kFusion) ++fused[*fusion_producer(*node.body)];
    }
    EXPECT_EQ(fused[Producer::kAddend], 2 * 3) << recipe;  // gate, up, down
    EXPECT_EQ(fused[Producer::kRouter], 2) << recipe;
    EXPECT_EQ(groups, 2) << recipe;                                                    // of the addends
    EXPECT_EQ(products, 2 * (2 + (recipe == std::string("bf16") ? 3 : 0))) << recipe;  // x A^T; the base's
  }
}

TEST(ServingProgram, RefusesAContextTheModelHasNoPositionsFor) {
  ModelConfig gpt2{.vocab_size = 64, .max_positions = 32, .hidden = 32, .layers = 1, .heads = 2};
  ServingOptions wrong = options(1 << 20);
  wrong.engine.context = 33;
  EXPECT_THROW(build_serving_program(gpt2, wrong), Error);
}

}  // namespace
}  // namespace octet
