
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "exec/testing/tiny_program.h"
#include "ir/facts.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "passes/fuse_patterns.h"
#include "passes/passes.h"

namespace octet {
namespace {

using enum FusionPart;

Target allowing(Producer producer, std::initializer_list<FusionPart> parts) {
  Target target = interpreter_target();
  target.allow(producer, parts);
  return target;
}

// All but the sums that products start from, which round once less.
Target allowing_all() {
  Target target = interpreter_target();
  target.fusions.fill((1u << kFusionParts) - 1);
  for (FusionPart part : {kResidual, kAccumulate})
    target.fusions[static_cast<size_t>(Producer::kProduct)] &= ~static_cast<uint32_t>(part);
  return target;
}

std::map<std::string, int> labels_of(const Graph& graph) {
  std::map<std::string, int> labels;
  for (const Node& node : graph.nodes()) {
    if (node.op == Op::kFusion) ++labels[fusion_label(node)];
  }
  return labels;
}

Program precise(const std::string& architecture, const std::string& recipe) {
  Program program = tiny::training_program(architecture);
  precision(program, {.target = interpreter_target(), .recipe = parse_recipe(recipe)});
  return program;
}

// Losses of some steps and the weights after them.
struct Trace {
  std::vector<double> losses;
  std::vector<std::vector<std::byte>> weights;
  bool operator==(const Trace&) const = default;
};
Trace trace(Program program) {
  verify(program);
  auto executor = make_interpreter(std::move(program));
  tiny::initialize(*executor);
  Trace result{.losses = tiny::train(*executor, 2)};
  for (const StateEntry& entry : executor->program().states()) {
    if (entry.role == StateRole::kMaster) result.weights.push_back(tiny::state(*executor, entry.name));
  }
  return result;
}

using Case = std::pair<const char*, const char*>;
class FuseOfRecipe : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Recipes, FuseOfRecipe,
                         ::testing::Values(Case{"gpt2", "fp32"}, Case{"gpt2", "bf16"}, Case{"gpt2", "fp8-current"},
                                           Case{"gpt2", "fp8-delayed"}, Case{"llama", "bf16"},
                                           Case{"llama", "fp8-current"}, Case{"llama", "fp8-delayed"},
                                           Case{"llama", "fp8-block"}, Case{"gemma", "fp8-delayed"},
                                           Case{"opt", "fp8-delayed"}));

TEST_P(FuseOfRecipe, FusedEqualsUnfusedBitForBit) {
  auto [architecture, recipe] = GetParam();
  Program unfused = precise(architecture, recipe), fused = unfused;
  EXPECT_TRUE(fuse(fused, {.target = allowing_all()}));
  EXPECT_EQ(trace(fused), trace(unfused));
}

TEST(Fuse, MakesOnlyWhatTheTargetAllows) {
  Program program = precise("llama", "fp8-delayed");
  EXPECT_FALSE(fuse(program, {.target = interpreter_target()}));
  fuse(program, {.target = allowing(Producer::kGated, {kCore})});
  EXPECT_EQ(labels_of(program.graph("train")), (std::map<std::string, int>{{"silu+mul", 2}}));
}

TEST(Fuse, CountsPerRecipe) {
  using Kinds = std::map<std::string, int>;
  auto kinds = [](const char* architecture, const char* recipe, const char* graph) {
    Program program = precise(architecture, recipe);
    fuse(program, {.target = allowing_all()});
    return labels_of(program.graph(graph));
  };
  // Two layers: norm1 of layer 0 has no add before it; the last norm feeds the head, which is not quantized.
  EXPECT_EQ(
      kinds("llama", "fp8-delayed", "eval"),
      (Kinds{{"rms_norm+quantize", 1}, {"add+rms_norm+quantize", 3}, {"silu+mul+quantize", 2}, {"add+rms_norm", 1}}));
  EXPECT_EQ(
      kinds("llama", "fp8-block", "eval"),
      (Kinds{{"rms_norm+quantize", 1}, {"add+rms_norm+quantize", 3}, {"silu+mul+quantize", 2}, {"add+rms_norm", 1}}));
  EXPECT_EQ(kinds("llama", "fp8-current", "eval"), (Kinds{{"rms_norm+amax", 1},
                                                          {"add+rms_norm+amax", 3},
                                                          {"silu+mul+amax", 2},
                                                          {"add+rms_norm", 1},
                                                          {"compute_scale+quantize", 8}}));
  // The embedding sum of gpt2 is an add before norm1 of layer 0; the bias of up goes to its gelu, the other five of a
  // layer to their products.
  EXPECT_EQ(kinds("gpt2", "bf16", "eval"), (Kinds{{"add+layer_norm", 5}, {"add+gelu", 2}, {"matmul+add", 10}}));
  EXPECT_EQ(
      kinds("gpt2", "fp8-delayed", "eval"),
      (Kinds{
          {"add+layer_norm+quantize", 4}, {"add+gelu+quantize", 2}, {"add+layer_norm", 1}, {"scaled_matmul+add", 10}}));
  EXPECT_EQ(kinds("gpt2", "bf16", "train").at("gelu_grad+sum"), 2);
  EXPECT_EQ(kinds("llama", "bf16", "train").at("mul x2+silu_grad"), 2);
  EXPECT_EQ(kinds("llama", "fp8-current", "train").at("mul x2+silu_grad+amax x2"), 2);
  EXPECT_EQ(kinds("llama", "fp8-block", "train").at("mul x2+silu_grad+quantize x2"), 2);
  EXPECT_EQ(kinds("gpt2", "fp8-current", "train").at("gelu_grad+sum+amax"), 2);
  EXPECT_EQ(kinds("gpt2", "fp8-delayed", "train").at("gelu_grad+sum+quantize"), 2);
  EXPECT_EQ(kinds("gpt2", "fp8-delayed", "train").at("sum+quantize"), 7);
  EXPECT_EQ(kinds("gpt2", "fp8-delayed", "train").at("layer_norm_grad+add+sum+quantize"), 3);
  EXPECT_EQ(kinds("gemma", "fp8-delayed", "eval").at("gelu+mul+quantize"), 2);
  EXPECT_EQ(kinds("opt", "fp8-block", "eval").at("add+relu+quantize"), 2);
  // Scales of a tensor are made where its codes are; of a layer the x of q (k, v), o, gate (up), down, and seven dy.
  EXPECT_EQ(kinds("llama", "fp8-current", "train").at("compute_scale+quantize"), 22);
  EXPECT_EQ(kinds("llama", "fp8-current", "train").at("rope+amax"), 4);
  // The gradient of the residual stream is the dy of the linear before, but for the embedding's.
  EXPECT_EQ(kinds("gpt2", "fp8-current", "train").at("layer_norm_grad+add+sum+amax"), 3);
  EXPECT_EQ(kinds("gpt2", "bf16", "train").at("layer_norm_grad+add+sum"), 3);
  EXPECT_EQ(kinds("llama", "fp8-current", "train").at("rms_norm_grad+add+amax"), 3);
}

TEST(Fuse, ResultsNobodyReadsAreDropped) {
  Program program = precise("gpt2", "bf16");
  fuse(program, {.target = allowing(Producer::kActivation, {kBias})});
  auto outputs = [&](const char* graph) {
    for (const Node& node : program.graph(graph).nodes()) {
      if (node.op != Op::kFusion) continue;
      std::vector<std::string> names;
      for (const NamedValue& output : node.body->outputs()) names.push_back(output.name);
      return names;
    }
    return std::vector<std::string>{};
  };
  EXPECT_EQ(outputs("eval"), (std::vector<std::string>{"gelu.0"}));
  EXPECT_EQ(outputs("train"), (std::vector<std::string>{"bias.0", "gelu.0"}));  // backward reads the sum
}

// A scale made from the norm's own result stands between norm and quantize.
TEST(Fuse, QuantizeWithItsOwnScaleStaysApart) {
  Program program = precise("llama", "fp8-current");
  Target target = allowing(Producer::kNorm, {kQuantize});
  target.allow(Producer::kGated, {kQuantize});
  fuse(program, {.target = target});
  for (const auto& [label, count] : labels_of(program.graph("train"))) EXPECT_EQ(label, "silu+mul") << count;
}

TEST(Fuse, SumsMergeIntoProducts) {
  Program program = precise("llama", "bf16"), merged = program;
  int adds = tiny::count(program.graph("eval"), Op::kAdd);
  fuse(merged, {.target = allowing(Producer::kProduct, {kResidual})});
  verify(merged);
  EXPECT_EQ(tiny::count(merged.graph("eval"), Op::kAdd), adds - 4);  // two residuals a layer
  Trace plain = trace(program), fused = trace(merged);
  // One bf16 rounding less per residual: 2^-9 relative of a value of order 1, on losses of about 3.7.
  for (size_t i = 0; i < plain.losses.size(); ++i) EXPECT_NEAR(fused.losses[i], plain.losses[i], 0.02);
}

TEST(Fuse, TextInTextOut) {
  Graph graph = parse_graph(R"(graph @eval stage fused
  %0 = input : bf16[4,8] @x
  %1 = input : bf16[4,8] @residual
  %2 = state : f32[8] @weight
  %3 = add %1, %0 @sum layer 2
  %4 = rms_norm %3, %2 {eps=1e-05} @norm layer 2
  %5 = state : f32[1] @scale.x
  %6 = quantize %4, %5 {format="e4m3", scaling="tensor"} @norm.x layer 2
  output @sum %3
  output @codes %6
  output @scale_inv %6.1
end
)");
  EXPECT_TRUE(fuse_graph(graph, allowing(Producer::kNorm, {kResidual, kQuantize})));
  verify(graph);
  EXPECT_EQ(print(graph), R"(graph @eval stage fused
  %0 = input : bf16[4,8] @x
  %1 = input : bf16[4,8] @residual
  %2 = state : f32[8] @weight
  %3 = state : f32[1] @scale.x
  %4 = fusion %1, %0, %2, %3 : bf16[4,8], e4m3[4,8], f32[1] @sum layer 2 body
    graph @body stage fused
      %0 = input : bf16[4,8] @add.0
      %1 = input : bf16[4,8] @add.1
      %2 = input : f32[8] @norm.1
      %3 = input : f32[1] @quantize.1
      %4 = add %0, %1 : bf16[4,8] @add layer 2
      %5 = rms_norm %4, %2 {eps=1e-05} : bf16[4,8], f32[4] @norm layer 2
      %6 = quantize %5, %3 {format="e4m3", scaling="tensor"} : e4m3[4,8], f32[1], e4m3[8,4], f32[1], f32[1] @quantize layer 2
      output @add.0 %4
      output @quantize.0 %6
      output @quantize.1 %6.1
    end
  output @sum %4
  output @codes %4.1
  output @scale_inv %4.2
end
)");
}

// What one layer of decoding reads after its projections.
const std::string kDecoding = R"(graph @decode stage fused
  %0 = input : bf16[2,32] @q
  %1 = input : bf16[2,16] @k
  %2 = input : bf16[2,16] @v
  %3 = input : i32[2] @positions
  %4 = input : i32[2] @slots
  %5 = input : i32[3] @segments
  %6 = input : i32[2] @kv_lengths
  %7 = input : i32[2,2] @block_table
  %8 = state : e4m3[16,16] @cache_k
  %9 = state : e4m3[16,16] @cache_v
  %10 = state {initial=1.0} : f32[1] @scale_k
)";

// The layer. `key`: what turns the keys, `rows`: which keys are appended.
std::string decoding(const std::string& key, const std::string& rows, const std::string& after = "") {
  const std::string attention = R"({heads=4, kv_heads=2, head_dim=8, scale=0.5, window=0, block_size=4})";
  return kDecoding + R"(  %11 = rope %0, %3 {head_dim=8, heads=4, rotary_dim=4, theta=10000.0} @rope.q layer 1
  %12 = )" +
         key + R"( @rope.k layer 1
  %13 = scatter_rows %8, )" +
         rows + R"(, %4, %10 @append.k layer 1
  %14 = scatter_rows %9, %2, %4 @append.v layer 1
  %15 = paged_attention %11, %13, %14, %5, %6, %7 )" +
         attention + R"( @attention layer 1
)" + after +
         R"(  output @y %15
  update @cache_k %13
  update @cache_v %14
end
)";
}
const std::string kRopeK = "rope %1, %3 {head_dim=8, heads=2, rotary_dim=4, theta=10000.0}";

TEST(Fuse, RopeAndAppendTextInTextOut) {
  Graph graph = parse_graph(decoding(kRopeK, "%12"));
  EXPECT_TRUE(fuse_graph(graph, allowing(Producer::kScatterRows, {kCore, kRope})));
  verify(graph);
  const std::string text = print(graph);
  EXPECT_EQ(
      text,
      kDecoding +
          R"(  %11 = fusion %0, %3, %1, %8, %4, %10, %9, %2 : bf16[2,32], e4m3[16,16], e4m3[16,16] @rope.q layer 1 body
    graph @body stage fused
      %0 = input : bf16[2,32] @rope_q.0
      %1 = input : i32[2] @rope_q.1
      %2 = input : bf16[2,16] @rope_k.0
      %3 = input : e4m3[16,16] @append_k.0
      %4 = input : i32[2] @append_k.2
      %5 = input : f32[1] @append_k.3
      %6 = input : e4m3[16,16] @append_v.0
      %7 = input : bf16[2,16] @append_v.1
      %8 = rope %0, %1 {head_dim=8, heads=4, rotary_dim=4, theta=10000.0} : bf16[2,32] @rope_q layer 1
      %9 = rope %2, %1 {head_dim=8, heads=2, rotary_dim=4, theta=10000.0} : bf16[2,16] @rope_k layer 1
      %10 = scatter_rows %3, %9, %4, %5 : e4m3[16,16] @append_k layer 1
      %11 = scatter_rows %6, %7, %4 : e4m3[16,16] @append_v layer 1
      output @rope_q.0 %8
      output @append_k.0 %10
      output @append_v.0 %11
    end
  %12 = paged_attention %11, %11.1, %11.2, %5, %6, %7 {block_size=4, head_dim=8, heads=4, kv_heads=2, scale=0.5, window=0} : bf16[2,32] @attention layer 1
  output @y %12
  update @cache_k %11.1
  update @cache_v %11.2
end
)");
  EXPECT_EQ(print(parse_graph(text)), text);
  EXPECT_EQ(must_alias(graph.node(NodeId{11}), 1), 3);
  EXPECT_EQ(must_alias(graph.node(NodeId{11}), 2), 6);
}

TEST(Fuse, AppendsWithoutCommonRopesFuseAlone) {
  const auto kinds = [](const std::string& text) {
    Graph graph = parse_graph(text);
    fuse_graph(graph, allowing(Producer::kScatterRows, {kCore, kRope}));
    verify(graph);
    return labels_of(graph);
  };
  using Kinds = std::map<std::string, int>;
  EXPECT_EQ(kinds(decoding(kRopeK, "%12")), (Kinds{{"rope x2+scatter_rows x2", 1}}));
  EXPECT_EQ(kinds(decoding(kRopeK, "%1", "  output @turned %12\n")), (Kinds{{"scatter_rows x2", 1}}));
  // other angles, other positions, turned keys that someone else reads
  const std::string theta = "rope %1, %3 {head_dim=8, heads=2, rotary_dim=4, theta=5000.0}";
  EXPECT_EQ(kinds(decoding(theta, "%12")), (Kinds{{"scatter_rows x2", 1}}));
  const std::string positions = "rope %1, %4 {head_dim=8, heads=2, rotary_dim=4, theta=10000.0}";
  EXPECT_EQ(kinds(decoding(positions, "%12")), (Kinds{{"scatter_rows x2", 1}}));
  EXPECT_EQ(kinds(decoding(kRopeK, "%12", "  output @turned %12\n")), (Kinds{{"scatter_rows x2", 1}}));
}

// Heads that are normalised before they turn: all of a head, and by nobody else's request.
TEST(Fuse, NormsOfHeadsJoinTheirRopes) {
  const auto kinds = [](int64_t rotary_dim, int64_t heads, const std::string& also) {
    const auto normed = [&](const char* x, int64_t count, int at) {
      return fmt::format(R"(  %{1} = reshape {0} {{shape=[{2},{3}]}} @heads layer 1
  %{4} = input : f32[{3}] @weight{4}
  %{5} = rms_norm %{1}, %{4} {{eps=1e-6}} @norm layer 1
  %{6} = reshape %{5} {{shape=[2,{7}]}} @back layer 1
)",
                         x, at, 2 * count, 8 * (x[1] == '0' ? 4 : 2) / count, at + 1, at + 2, at + 3,
                         x[1] == '0' ? 32 : 16);
    };
    const std::string rope = fmt::format("head_dim=8, rotary_dim={}, theta=10000.0}}", rotary_dim);
    Graph graph = parse_graph(kDecoding + normed("%0", heads, 11) + normed("%1", heads / 2, 15) +
                              "  %19 = rope %14, %3 {heads=4, " + rope +
                              " @rope.q layer 1\n  %20 = rope %18, %3 {heads=2, " + rope + R"( @rope.k layer 1
  %21 = scatter_rows %8, %20, %4, %10 @append.k layer 1
  %22 = scatter_rows %9, %2, %4 @append.v layer 1
  %23 = paged_attention %19, %21, %22, %5, %6, %7 {heads=4, kv_heads=2, head_dim=8, scale=0.5, window=0, block_size=4} @attention layer 1
  output @y %23
)" + also + "  update @cache_k %21\n  update @cache_v %22\nend\n");
    fuse_graph(graph, allowing(Producer::kScatterRows, {kCore, kRope, kHeadNorm}));
    verify(graph);
    return labels_of(graph);
  };
  using Kinds = std::map<std::string, int>;
  const Kinds ropes = {{"rope x2+scatter_rows x2", 1}};
  EXPECT_EQ(kinds(8, 4, ""), (Kinds{{"reshape x4+rms_norm x2+rope x2+scatter_rows x2", 1}}));
  EXPECT_EQ(kinds(4, 4, ""), ropes);                        // half of a head turns
  EXPECT_EQ(kinds(8, 2, ""), ropes);                        // two heads are one row of the norm
  EXPECT_EQ(kinds(8, 4, "  output @normed %13\n"), ropes);  // read elsewhere
}

TEST(Fuse, RoutersOfFewTokensFuseWhereNothingElseReadsTheirLogits) {
  const auto kinds = [](const std::string& also, const std::string& x = "bf16[4,8]") {
    Graph graph = parse_graph("graph @eval stage fused\n  %0 = input : " + x + R"( @x
  %1 = input : f32[6,8] @weight
  %2 = cast %0 {to="f32"} @wide
  %3 = matmul %2, %1 {to="f32", trans_b=true} @logits
  %4 = top_k %3 {k=2} @top_k
  %5 = group_rows %4.1 {groups=6} @groups
  output @weights %4
  output @places %5
)" + also + "end\n");
    fuse_graph(graph, allowing(Producer::kRouter, {kCore}));
    verify(graph);
    return labels_of(graph);
  };
  using Kinds = std::map<std::string, int>;
  EXPECT_EQ(kinds(""), (Kinds{{"cast+matmul+top_k+group_rows", 1}}));
  EXPECT_EQ(kinds("  output @wide %2\n"), Kinds{});
  EXPECT_EQ(kinds("  output @logits %3\n"), Kinds{});
  EXPECT_EQ(kinds("", "bf16[17,8]"), Kinds{});
  EXPECT_EQ(kinds("", "f16[4,8]"), Kinds{});
}

TEST(Fuse, AddendsThatContractFewColumnsFuseWithTheirSumAndTheirColumns) {
  const auto kinds = [](int rank, const std::string& dtype = "bf16", const std::string& also = "") {
    Graph graph = parse_graph(fmt::format(R"(graph @eval stage fused
  %0 = input : {1}[6,{2}] @h
  %1 = input : {1}[24,{0}] @table
  %2 = input : i32[4] @offsets
  %3 = input : {1}[6,8] @base
  %4 = slice %0 {{axis=1, begin={0}, end={2}}} @own
  %5 = grouped_matmul %4, %1, %2 {{trans_b=true}} @product
  %6 = add %3, %5 @sum
  output @y %6
{3}end
)",
                                          rank, dtype, 2 * rank, also));
    fuse_graph(graph, allowing(Producer::kAddend, {kCore, kColumns}));
    verify(graph);
    return labels_of(graph);
  };
  using Kinds = std::map<std::string, int>;
  EXPECT_EQ(kinds(16), (Kinds{{"grouped_matmul+add", 1}}));  // a slice of an input counts as the input
  EXPECT_EQ(kinds(128), Kinds{});
  EXPECT_EQ(kinds(24), Kinds{});
  EXPECT_EQ(kinds(16, "f32"), Kinds{});
  EXPECT_EQ(kinds(16, "bf16", "  output @product %5\n"), (Kinds{{"grouped_matmul", 1}}));  // with its columns
}

// A reader between the members feeds one of them: fusing would need its own result.
TEST(Fuse, KeepsACycleApart) {
  Graph graph = parse_graph(R"(graph @eval stage precise
  %0 = input : f32[4,8] @x
  %1 = silu %0 @silu
  %2 = scale %1 {value=2.0} @between
  %3 = mul %1, %2 @mul
  output @y %3
end
)");
  EXPECT_FALSE(fuse_graph(graph, allowing(Producer::kGated, {kCore})));
}

}  // namespace
}  // namespace octet
