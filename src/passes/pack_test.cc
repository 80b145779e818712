
#include <gtest/gtest.h>

#include <algorithm>

#include "exec/logical_states.h"
#include "exec/testing/tiny_program.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "passes/passes.h"

namespace octet {
namespace {

Program precise_training(const std::string& architecture, const std::string& recipe) {
  Program program = tiny::training_program(architecture);
  precision(program, {.target = interpreter_target(), .recipe = parse_recipe(recipe)});
  return program;
}

Program inference(const std::string& architecture, const std::string& recipe) {
  Program program;
  program.add_graph(tiny::loss_graph("eval", architecture, false));
  collect_state(program);
  precision(program, {.target = interpreter_target(), .recipe = parse_recipe(recipe)});
  return program;
}

// Writes every logical tensor of `from` to where `to` keeps it.
void load(Executor& to, Executor& from) {
  for (const LogicalState& tensor : logical_states(to.program())) {
    if (tensor.role == StateRole::kMaster) write_logical(to, tensor, tiny::state(from, tensor.name));
  }
  to.prepare();
}

TEST(Pack, PaddedVocabularyTrainsBitForBit) {
  for (const char* architecture : {"gpt2", "llama", "gptj"}) {  // gptj: a head with a bias
    for (const char* recipe : {"fp32", "fp8-current"}) {
      Program plain = precise_training(architecture, recipe);
      Program padded = plain;
      ASSERT_TRUE(pad_vocab(padded, 64));
      verify(padded);
      EXPECT_EQ(padded.find_state("embed.weight")->type.shape[0], std::string(architecture) == "gpt2" ? 64 : 40);
      EXPECT_EQ(padded.find_state("embed.weight", StateRole::kMoment)->type.shape,
                padded.find_state("embed.weight")->type.shape);
      auto reference = make_interpreter(std::move(plain)), executor = make_interpreter(std::move(padded));
      tiny::initialize(*reference);
      load(*executor, *reference);
      EXPECT_EQ(tiny::train(*executor, 2), tiny::train(*reference, 2)) << architecture << " " << recipe;
      // What the padded rows hold stays zero.
      std::string head = std::string(architecture) == "gpt2" ? "embed.weight" : "head.weight";
      std::vector<std::byte> table = tiny::state(*executor, head), logical = tiny::state(*reference, head);
      EXPECT_TRUE(std::equal(logical.begin(), logical.end(), table.begin()));
      EXPECT_TRUE(std::all_of(table.begin() + static_cast<int64_t>(logical.size()), table.end(),
                              [](std::byte b) { return b == std::byte{0}; }));
    }
  }
}

TEST(Pack, LogitsKeepTheirLogicalColumns) {
  Program program;
  Graph graph("forward");
  Builder builder(graph);
  Value logits = build_logits(builder, tiny::model("llama"),
                              {.tokens = tiny::kTokens, .max_segments = 2, .max_length = tiny::kLength});
  builder.output("logits", logits);
  program.add_graph(std::move(graph));
  collect_state(program);
  ASSERT_TRUE(pad_vocab(program, 32));
  verify(program);
  const Graph& padded = program.graph("forward");
  EXPECT_EQ(padded.shape(padded.output("logits")), (Shape{tiny::kTokens, tiny::kVocab}));
  EXPECT_EQ(program.find_state("head.weight")->type.shape[0], 64);
}

// What an evaluation makes of logits, beside losses, is made of the logical columns.
TEST(Pack, MeasuresSeeLogicalColumns) {
  Program program;
  Graph graph(GraphRole::kEval);
  Builder builder(graph);
  const Value logits = build_logits(builder, tiny::model("llama"),
                                    {.tokens = tiny::kTokens, .max_segments = 2, .max_length = tiny::kLength});
  builder.output("likeliest", {builder.emit(Op::kTopLogprobs, {logits}, {{"k", 1}}), 1});
  program.add_graph(std::move(graph));
  collect_state(program);
  ASSERT_TRUE(pad_vocab(program, 32));
  verify(program);
  EXPECT_EQ(program.find_state("head.weight")->type.shape[0], 64);
  const Graph& padded = program.graph("eval");
  EXPECT_EQ(tiny::count(padded, Op::kSlice), 1);
  for (const Node& node : padded.nodes()) {
    if (node.op != Op::kTopLogprobs) continue;
    EXPECT_EQ(padded.shape(node.inputs[0]).cols(), tiny::kVocab);
  }
}

// Heads with a bias are padded on a target that fuses products with their biases, in every graph alike.
TEST(Pack, FusionLeavesHeadsToPadding) {
  for (const char* recipe : {"fp32", "bf16", "fp8-current"}) {
    Plan plan = compile(tiny::training_program("gptj"), {.target = h200_target(), .recipe = parse_recipe(recipe)});
    EXPECT_EQ(plan.program.find_state("head.weight")->type.shape[0], h200_target().vocab_multiple) << recipe;
    EXPECT_EQ(plan.program.find_state("head.bias")->type.shape[0], h200_target().vocab_multiple) << recipe;
  }
}

TEST(Pack, AlignedVocabularyIsLeftAlone) {
  Program program = inference("gpt2", "fp32");
  EXPECT_FALSE(pad_vocab(program, 8));  // 40 tokens
}

TEST(Pack, MergedSiblingsAgreeBitForBit) {
  for (const char* architecture : {"gpt2", "llama"}) {
    for (const char* recipe : {"fp32", "bf16"}) {
      Program plain = inference(architecture, recipe);
      Program merged = plain;
      ASSERT_TRUE(merge_siblings(merged));
      verify(merged);
      bool llama = std::string(architecture) == "llama";
      int fewer = 2 * (llama ? 3 : 2);  // q, k, v and gate, up
      EXPECT_EQ(tiny::count(merged.graph("eval"), Op::kMatmul), tiny::count(plain.graph("eval"), Op::kMatmul) - fewer);
      ASSERT_NE(merged.find_state("layers.0.attn.q+k+v.weight"), nullptr);
      EXPECT_EQ(merged.find_state("layers.0.attn.q.weight"), nullptr);
      auto reference = make_interpreter(std::move(plain)), executor = make_interpreter(std::move(merged));
      tiny::initialize(*reference);
      load(*executor, *reference);
      EXPECT_EQ(tiny::loss(*executor, "eval", 0), tiny::loss(*reference, "eval", 0)) << architecture << " " << recipe;
    }
  }
}

TEST(Pack, MergedCodesAgreeBitForBit) {
  for (const char* recipe : {"fp8-current", "fp8-delayed"}) {
    for (bool fused : {false, true}) {
      Program plain = inference("llama", recipe);
      Program merged = plain;
      for (Graph& graph : merged.graphs()) graph.set_stage(Stage::kFused);
      ASSERT_TRUE(merge_siblings(merged, fused));
      verify(merged);
      ASSERT_NE(merged.find_state("layers.0.attn.q+k+v.weight.codes"), nullptr);
      EXPECT_EQ(merged.find_state("layers.0.attn.q+k+v.weight.scale_inv")->type, (TensorType{DType::kF32, {64}}));
      EXPECT_EQ(tiny::count(merged.graph("eval"), Op::kFusion), fused ? 4 : 0);
      auto reference = make_interpreter(std::move(plain)), executor = make_interpreter(std::move(merged));
      tiny::initialize(*reference);
      tiny::initialize(*executor);
      EXPECT_EQ(tiny::loss(*executor, "eval", 0), tiny::loss(*reference, "eval", 0)) << recipe << " " << fused;
    }
  }
}

// Gate and up of an expert, then those of the next; only where what follows the product reads columns.
TEST(Pack, MergedExpertsAgreeBitForBit) {
  for (const char* recipe : {"fp8-current", "w8a8", "w4a8"}) {
    for (bool fused : {false, true}) {
      Program plain = inference("mixtral", recipe);
      Program merged = plain;
      for (Graph& graph : merged.graphs()) graph.set_stage(Stage::kFused);
      ASSERT_TRUE(merge_siblings(merged, fused));
      verify(merged);
      const StateEntry* codes = merged.find_state("layers.0.mlp.experts.gate+up.weight.codes");
      ASSERT_NE(codes, nullptr) << recipe;
      ASSERT_EQ(codes->placements.size(), 2u);
      EXPECT_EQ(codes->placements[1].offset, 64 * 32) << "behind the first expert's gate";
      EXPECT_EQ(codes->placements[1].dims[0].run_stride, 2 * 64 * 32);
      auto reference = make_interpreter(std::move(plain)), executor = make_interpreter(std::move(merged));
      tiny::initialize(*reference);
      tiny::initialize(*executor);
      EXPECT_EQ(tiny::loss(*executor, "eval", 0), tiny::loss(*reference, "eval", 0)) << recipe << " " << fused;
      for (const LogicalState& tensor : logical_states(reference->program())) {  // what was written is read again
        std::vector<std::byte> read(static_cast<size_t>(tensor.type.bytes())), expected = read;
        read_logical(*reference, tensor, expected, 0);
        for (const LogicalState& same : logical_states(executor->program()))
          if (same.name == tensor.name) read_logical(*executor, same, read, 0);
        EXPECT_EQ(read, expected) << tensor.name;
      }
    }
  }
  Program wide = inference("mixtral", "w4a16");
  merge_siblings(wide);
  EXPECT_NE(wide.find_state("layers.0.mlp.experts.gate.weight.codes"), nullptr);
}

// One scale a tensor becomes one a row of every expert.
TEST(Pack, MergedExpertsWithAScaleATensor) {
  Program program;
  program.add_graph(parse_graph(R"(graph @eval stage fused
  %0 = input : e4m3[4,8] @x
  %1 = input : f32[4] @x_scale_inv
  %2 = input : i32[3] @offsets
  %3 = state {scaling="tensor"} : e4m3[8,8] @gate.weight.codes
  %4 = state : f32[1] @gate.weight.scale_inv
  %5 = scaled_grouped_matmul %0, %1, %3, %4, %2 {gemm="gate", role="fprop", scaling_a="row", to="bf16", trans_b=true} @gate
  %6 = state {scaling="tensor"} : e4m3[4,8] @up.weight.codes
  %7 = state : f32[1] @up.weight.scale_inv
  %8 = scaled_grouped_matmul %0, %1, %6, %7, %2 {gemm="up", role="fprop", scaling_a="row", to="bf16", trans_b=true} @up
  output @gate %5
  output @up %8
end
)"));
  for (const std::string param : {"gate.weight", "up.weight"}) {
    const int64_t rows = param == "gate.weight" ? 8 : 4;
    program.add_state({.type = {DType::kE4M3, {rows, 8}}, .role = StateRole::kCodes, .param = param});
    program.add_state({.type = {DType::kF32, {1}}, .role = StateRole::kScaleInv, .param = param});
  }
  ASSERT_TRUE(merge_siblings(program));
  verify(program);
  EXPECT_EQ(program.graph("eval").node(NodeId{5}).attr<std::string>("scaling_b"), "row");
  const StateEntry* scales = program.find_state("gate+up.weight.scale_inv");
  ASSERT_NE(scales, nullptr);
  EXPECT_EQ(scales->type.shape, Shape{12});
  const PlacedDim& up = scales->placements.at(1).dims.at(0);  // two rows behind an expert's four of gate
  EXPECT_EQ(std::tuple(scales->placements[1].offset, up.extent, up.run, up.run_stride), std::tuple(4, 4, 2, 6));
}

TEST(Pack, BlocksOfScalesKeepNarrowSiblingsApart) {
  Program program = inference("llama", "fp8-block");
  EXPECT_FALSE(merge_siblings(program)) << "32 rows are no whole block of 128";
}

TEST(Pack, TrainingKeepsSiblingsApart) {
  Program program = precise_training("llama", "bf16");
  EXPECT_FALSE(merge_siblings(program));
}

TEST(Pack, EverySavedTensorHasOnePlace) {
  Program program = inference("llama", "bf16");
  const std::vector<LogicalState> before = logical_states(program);
  merge_siblings(program);
  pad_vocab(program, 64);
  EXPECT_EQ(logical_states(program).size(), before.size());
  for (const LogicalState& tensor : before) {
    const LogicalState packed = find_logical_state(program, tensor.param, tensor.role);
    EXPECT_EQ(packed.name, tensor.name);
    EXPECT_EQ(packed.type, tensor.type) << tensor.name;
    EXPECT_NO_THROW(check_placement(packed.at, program.find_state(packed.state)->type.shape));
  }
}

TEST(Pack, PaddedVocabularyTextInTextOut) {
  Program program;
  program.add_graph(parse_graph(R"(graph @train stage fused
  %0 = input : f32[4,8] @x
  %1 = param : f32[5,8] @head.weight
  %2 = matmul %0, %1 {gemm="head", head=true, role="fprop", trans_a=false, trans_b=true} @head
  %3 = input : i32[4] @targets
  %4 = cross_entropy %2, %3 @loss
  %5 = input : f32[4] @dloss
  %6 = cross_entropy_grad %2, %3, %4.1, %5 @loss phase backward
  %7 = matmul %6, %0 {gemm="head", head=true, role="wgrad", to="f32", trans_a=true, trans_b=false} @head phase backward
  output @logits %2
  update @grad.head.weight %7
end
)"));
  program.add_state({.type = {DType::kF32, {5, 8}}, .role = StateRole::kGradient, .param = "head.weight"});
  collect_state(program);
  EXPECT_TRUE(pad_vocab(program, 8));
  EXPECT_EQ(print(program), R"(program @program
state @grad.head.weight : f32[8,8] role gradient of @head.weight holds @head.weight [5,8]
state @head.weight : f32[8,8] role master of @head.weight holds @head.weight [5,8]
graph @train stage fused
  %0 = input : f32[4,8] @x
  %1 = param : f32[8,8] @head.weight
  %2 = matmul %0, %1 {gemm="head", head=true, role="fprop", trans_a=false, trans_b=true} : f32[4,8] @head
  %3 = input : i32[4] @targets
  %4 = cross_entropy %2, %3 {classes=5} : f32[4], f32[4] @loss
  %5 = input : f32[4] @dloss
  %6 = cross_entropy_grad %2, %3, %4.1, %5 {classes=5} : f32[4,8] @loss phase backward
  %7 = matmul %6, %0 {gemm="head", head=true, role="wgrad", to="f32", trans_a=true, trans_b=false} : f32[8,8] @head phase backward
  %8 = slice %2 {axis=1, begin=0, end=5} : f32[4,5] @slice
  output @logits %8
  update @grad.head.weight %7
end
)");
}

TEST(Pack, MergedSiblingsTextInTextOut) {
  Program program;
  program.add_graph(parse_graph(R"(graph @eval stage fused
  %0 = input : bf16[4,8] @x
  %1 = param : bf16[8,8] @attn.q.weight
  %2 = matmul %0, %1 {gemm="attn.q", role="fprop", trans_a=false, trans_b=true} @attn.q
  %3 = param : bf16[4,8] @attn.k.weight
  %4 = matmul %0, %3 {gemm="attn.k", role="fprop", trans_a=false, trans_b=true} @attn.k
  output @q %2
  output @k %4
end
)"));
  collect_state(program);
  EXPECT_TRUE(merge_siblings(program));
  EXPECT_EQ(print(program), R"(program @program
state @"attn.q+k.weight" : bf16[12,8] role master of @"attn.q+k.weight" holds @attn.q.weight [8,8] holds @attn.k.weight [4,8] at 64
graph @eval stage fused
  %0 = input : bf16[4,8] @x
  %1 = param : bf16[12,8] @"attn.q+k.weight"
  %2 = matmul %0, %1 {gemm="attn.q", role="fprop", trans_a=false, trans_b=true} : bf16[4,12] @"attn.q+k"
  %3 = slice %2 {axis=1, begin=0, end=8} : bf16[4,8] @slice
  %4 = slice %2 {axis=1, begin=8, end=12} : bf16[4,4] @slice
  output @q %3
  output @k %4
end
)");
}

TEST(Pack, ReadPartsTextInTextOut) {
  const auto graph_with = [](std::string text, const std::string& scaling, const std::string& more = "") {
    text.replace(text.find("SCALING"), 7, scaling);
    return parse_graph(text.replace(text.find("MORE"), 4, more));
  };
  const std::string text = R"(graph @eval stage packed
  %0 = input : bf16[4,8] @x
  %1 = param : bf16[16,8] @"gate+up.weight"
  %2 = fusion %0, %1 : bf16[4,8], bf16[4,8] @"gate+up" layer 3 body
    graph @body stage packed
      %0 = input : bf16[4,8] @matmul.0
      %1 = input : bf16[16,8] @matmul.1
      %2 = matmul %0, %1 {gemm="gate", role="fprop", trans_a=false, trans_b=true} : bf16[4,16] @matmul
      %3 = slice %2 {axis=1, begin=0, end=8} : bf16[4,8] @slice
      %4 = slice %2 {axis=1, begin=8, end=16} : bf16[4,8] @slice
      output @part0.0 %3
      output @part1.0 %4
    end
  %3 = fusion %2, %2.1 : e4m3[4,8], f32[4] @swiglu layer 3 body
    graph @body stage packed
      %0 = input : bf16[4,8] @silu.0
      %1 = input : bf16[4,8] @mul.1
      %2 = silu %0 : bf16[4,8] @silu
      %3 = mul %2, %1 : bf16[4,8] @mul
      %4 = quantize %3 {format="e4m3", scaling="SCALING"} @quantize
      output @quantize.0 %4
      output @quantize.1 %4.1
    end
  output @codes %3
  output @scale_inv %3.1
MOREend
)";
  Graph graph = graph_with(text, "row");
  Target target = interpreter_target();
  target.allow(Producer::kGated, {FusionPart::kColumns});
  EXPECT_FALSE(fold_slices(graph, interpreter_target()));
  ASSERT_TRUE(fold_slices(graph, target));
  verify(graph);
  EXPECT_EQ(print(graph), R"(graph @eval stage packed
  %0 = input : bf16[4,8] @x
  %1 = param : bf16[16,8] @"gate+up.weight"
  %2 = matmul %0, %1 {gemm="gate", role="fprop", trans_a=false, trans_b=true} : bf16[4,16] @"gate+up" layer 3
  %3 = fusion %2 : e4m3[4,8], f32[4] @swiglu layer 3 body
    graph @body stage packed
      %0 = input : bf16[4,16] @silu.0
      %1 = slice %0 {axis=1, begin=0, end=8} : bf16[4,8] @slice
      %2 = slice %0 {axis=1, begin=8, end=16} : bf16[4,8] @slice
      %3 = silu %1 : bf16[4,8] @silu
      %4 = mul %3, %2 : bf16[4,8] @mul
      %5 = quantize %4 {format="e4m3", scaling="row"} : e4m3[4,8], f32[4], e4m3[8,4], f32[8], f32[1] @quantize
      output @quantize.0 %5
      output @quantize.1 %5.1
    end
  output @codes %3
  output @scale_inv %3.1
end
)");
  Graph shown = graph_with(text, "row", "  output @gate %2\n");
  EXPECT_FALSE(fold_slices(shown, target)) << "a part has another reader";
}

TEST(Pack, OffByDefault) {
  Program program = inference("llama", "bf16");
  EXPECT_FALSE(pack(program, {.target = interpreter_target()}));
}

}  // namespace
}  // namespace octet
