
#include <gtest/gtest.h>

#include "base/error.h"
#include "exec/testing/tiny_program.h"
#include "ir/facts.h"
#include "ir/verify.h"
#include "passes/plan_memory.h"
#include "passes/serving_graphs.h"

namespace octet {
namespace {

Program cached(const KvCacheOptions& options) {
  Graph graph("decode");
  Builder builder(graph);
  builder.output("logits",
                 build_logits(builder, tiny::model("llama"), {.tokens = 4, .max_segments = 1, .max_length = 4}));
  Program program;
  program.add_graph(add_kv_cache(program, graph, options));
  collect_state(program);
  verify(program);
  return program;
}

TEST(KvCache, ScalesAreStatesThatStartAtOne) {
  KvCacheOptions options{.blocks = {2}, .blocks_per_sequence = 2, .cache_dtype = DType::kE4M3, .scales = true};
  Program program = cached(options);
  int scales = 0;
  for (const StateEntry& entry : program.states()) {
    if (entry.role != StateRole::kCacheScale && entry.role != StateRole::kCacheScaleInv) continue;
    ++scales;
    EXPECT_EQ(entry.type, (TensorType{DType::kF32, {1}})) << entry.name;
    EXPECT_EQ(entry.initial, 1) << entry.name;
  }
  EXPECT_EQ(scales, 2 * 2 * 2) << "k and v, scale and scale_inv, of two layers";
  ASSERT_NE(program.find_state("kv.layers.1.attn.attention.v_scale_inv"), nullptr);
  for (const Node& node : program.graph("decode").nodes()) {
    if (node.op == Op::kScatterRows) {
      EXPECT_EQ(node.inputs.size(), 4u);
    }
    if (node.op == Op::kPagedAttention) {
      EXPECT_EQ(node.inputs.size(), 8u);
    }
  }
  options.scales = false;
  Program plain = cached(options);
  for (const StateEntry& entry : plain.states())
    EXPECT_TRUE(entry.role == StateRole::kMaster || entry.role == StateRole::kKvCache) << entry.name;
}

TEST(KvCache, RefusesAttentionThatIsNotCausal) {
  ModelSpec model = tiny::model("llama");
  model.pattern[0].attention.causal = false;
  Graph graph("decode");
  Builder builder(graph);
  builder.output("logits", build_logits(builder, model, {.tokens = 4, .max_segments = 1, .max_length = 4}));
  try {
    Program program;
    add_kv_cache(program, graph, {.blocks = {2}, .blocks_per_sequence = 2});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(error.message().find("layers.0.attn.attention"), std::string::npos) << error.message();
    EXPECT_NE(error.message().find("is not causal"), std::string::npos) << error.message();
  }
}

// A step of two sequences, of which the first goes on, and a token of padding.
void feed_step(Executor& executor) {
  const auto set = [&](const char* name, std::initializer_list<int32_t> values) {
    std::copy(values.begin(), values.end(), input_as<int32_t>(executor, "decode", name).begin());
  };
  set("ids", {3, 9, 27, 0});
  set("positions", {2, 0, 1, 0});
  set("segments", {0, 1, 3});
  set("kv_lengths", {3, 2});
  set("slots.0", {10, 4, 5, -1});
  set("block_table.0", {2, -1, 1, -1});
  set("logit_rows", {0, 2});
}

struct Model {
  const char* architecture;
  int64_t rotary_dim;  // of heads of 8
  const char* label;   // what the fuse pass makes of a layer
};

Plan planned(const Model& m, const KvCacheOptions& options, const std::set<std::string>& disabled) {
  ModelConfig config = tiny::model(m.architecture);
  if (m.rotary_dim > 0) config.rope.rotary_dim = m.rotary_dim;
  Graph graph("decode");
  Builder builder(graph);
  builder.output("logits", build_logits(builder, config, {.tokens = 4, .max_segments = 2, .max_length = 16}));
  Program program;
  program.add_graph(add_kv_cache(program, graph, options));
  Target target = interpreter_target();
  target.allow(Producer::kScatterRows, {FusionPart::kCore, FusionPart::kRope});
  return compile(std::move(program), {.target = target, .recipe = parse_recipe("bf16"), .disabled = disabled});
}

// GQA, turning interleaved parts of heads, no rope; caches of the compute type, and codes with scales.
TEST(KvCache, FusedAppendsEqualTheirMembersBitForBit) {
  for (const Model& m : {Model{"llama", 0, "rope x2+scatter_rows x2"},
                         {"gptj", 4, "rope x2+scatter_rows x2"},
                         {"gpt2", 0, "scatter_rows x2"}}) {
    for (DType dtype : {DType::kBF16, DType::kE4M3, DType::kI8}) {
      SCOPED_TRACE(fmt::format("{} {}", m.architecture, dtype_name(dtype)));
      const bool row_scales = dtype == DType::kI8;
      std::string label = m.label;
      if (row_scales) label.replace(label.find("rows"), 4, "codes");
      const KvCacheOptions options{.blocks = {4},
                                   .block_size = 4,
                                   .sequences = 2,
                                   .blocks_per_sequence = 2,
                                   .logit_rows = 2,
                                   .cache_dtype = dtype,
                                   .scales = is_fp8(dtype)};
      const auto results = [&](const Plan& plan) {
        auto executor = make_interpreter(plan.program);
        tiny::initialize(*executor);
        for (const StateEntry& entry : plan.program.states()) {
          if (entry.name.ends_with("k_scale")) tiny::write_state<float>(*executor, entry.name, {37.25f});
          if (entry.name.ends_with("k_scale_inv")) tiny::write_state<float>(*executor, entry.name, {1 / 37.25f});
        }
        feed_step(*executor);
        executor->run("decode");
        std::vector<std::vector<std::byte>> bytes;
        for (const StateEntry& entry : plan.program.states()) {
          if (entry.role == StateRole::kKvCache) bytes.push_back(tiny::state(*executor, entry.name));
        }
        const auto logits = executor->output("decode", "logits");
        bytes.emplace_back(logits.begin(), logits.end());
        return bytes;
      };
      Plan fused = planned(m, options, {}), unfused = planned(m, options, {"fuse"});
      EXPECT_EQ(results(fused), results(unfused));

      // caches stand in their states
      const Graph& graph = fused.program.graph("decode");
      const auto place = [&](Value value) {
        return fused.graphs.at("decode")
            .buffers[static_cast<size_t>(index(value.node))][static_cast<size_t>(value.result)];
      };
      int caches = 0, fusions = 0;
      for (int32_t i = 0; i < graph.size(); ++i) {
        const Node& node = graph.node(NodeId{i});
        if (node.op != Op::kFusion) continue;
        EXPECT_EQ(fusion_label(node), label);
        ++fusions;
        for (int32_t r = 0; r < static_cast<int32_t>(node.results.size()); ++r) {
          const int input = must_alias(node, r);
          if (input < 0) continue;
          const BufferRef cache = place(node.inputs[static_cast<size_t>(input)]), made = place({NodeId{i}, r});
          EXPECT_EQ(made.kind, BufferRef::Kind::kState);
          EXPECT_EQ(made.index, cache.index);
          ++caches;
        }
      }
      EXPECT_EQ(fusions, 2) << "one a layer";
      EXPECT_EQ(caches, row_scales ? 8 : 4);

      // other numbers of blocks reach the bodies
      std::map<std::string, size_t> groups;
      for (const StateEntry& entry : fused.program.states()) {
        if (entry.role == StateRole::kKvCache) groups[entry.name] = 0;
      }
      set_cache_blocks(fused, groups, {7}, 4);
      verify(fused.program);
      check_plan(fused);
      EXPECT_EQ(fused.program.state_bytes({StateRole::kKvCache}),
                7 * unfused.program.state_bytes({StateRole::kKvCache}) / 4);
    }
  }
}

// A byte an element, and four for each token and head.
TEST(KvCache, CachesOfInt8HaveAScaleASlotAndHead) {
  Program program = cached({.blocks = {2}, .block_size = 8, .blocks_per_sequence = 2, .cache_dtype = DType::kI8});
  const auto type = [&](const char* side) {
    const StateEntry* entry = program.find_state(std::string("kv.layers.1.attn.attention.") + side);
    return entry != nullptr && entry->role == StateRole::kKvCache ? to_string(entry->type) : "none";
  };
  const ModelSpec model = tiny::model("llama");
  const AttentionSpec& attention = model.pattern[0].attention;
  EXPECT_EQ(type("k"), fmt::format("i8[16,{}]", attention.kv_heads * attention.head_dim));
  EXPECT_EQ(type("v_scales"), fmt::format("f32[16,{}]", attention.kv_heads));
  EXPECT_EQ(cached_head_bytes(64, DType::kI8), 68);
  EXPECT_EQ(cache_groups(program.graph("decode")).size(), 8u) << "k, v and their scales of two layers are copied";
  const auto read_bytes = [](const Program& of) {  // without queries and results
    for (const Node& node : of.graph("decode").nodes())
      if (node.op == Op::kPagedAttention) {
        const NodeId id{static_cast<int32_t>(&node - of.graph("decode").nodes().data())};
        return node_cost(of.graph("decode"), id).bytes - 2.0 * static_cast<double>(node.results[0].bytes());
      }
    return 0.0;
  };
  const Program plain = cached({.blocks = {2}, .block_size = 8, .blocks_per_sequence = 2, .cache_dtype = DType::kF32});
  const double head = static_cast<double>(attention.head_dim);
  EXPECT_EQ(read_bytes(program) / read_bytes(plain), (head + 4) / (4 * head)) << "scales are read too";
  EXPECT_EQ(parse_cache_dtype("int8"), DType::kI8);
  EXPECT_STREQ(cache_dtype_name(DType::kI8), "int8");
  EXPECT_THROW(parse_cache_dtype("i8"), Error);
}

TEST(KvCache, ScalesAreOfFp8CachesOnly) {
  EXPECT_THROW(cached({.blocks = {2}, .blocks_per_sequence = 2, .cache_dtype = DType::kBF16, .scales = true}), Error);
}

}  // namespace
}  // namespace octet
