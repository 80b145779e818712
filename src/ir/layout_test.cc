// Layouts: meshes and their groups, the text form, the rules of the ops, and what the verifier refuses.
#include "ir/layout.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "ir/facts.h"
#include "ir/text.h"
#include "ir/verify.h"

namespace octet {
namespace {

constexpr Axis kDp = Axis::kData, kTp = Axis::kTensor, kCp = Axis::kContext;

std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

TEST(Mesh, RanksOfTheInnermostAxisAreNeighbours) {
  const Mesh mesh{{1, 2, 2, 3}};
  EXPECT_EQ(mesh.ranks(), 12);
  for (int32_t rank = 0; rank < 12; ++rank) EXPECT_EQ(mesh.rank(mesh.coordinate(rank)), rank);
  EXPECT_EQ(mesh.coordinate(7)[kDp], 1);
  EXPECT_EQ(mesh.coordinate(7)[kCp], 0);
  EXPECT_EQ(mesh.coordinate(7)[kTp], 1);
  EXPECT_EQ(mesh.group(7, {kTp}), (std::vector<int32_t>{6, 7, 8}));
  EXPECT_EQ(mesh.group(7, {kDp}), (std::vector<int32_t>{1, 7}));
  EXPECT_EQ(mesh.group(7, {kCp, kTp}), (std::vector<int32_t>{6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(mesh.group(7, {kTp, kCp}), (std::vector<int32_t>{6, 9, 7, 10, 8, 11})) << "in order of their parts";
}

TEST(Layout, PartsOfADimAreInOrderOfItsAxes) {
  const Mesh mesh{{1, 2, 1, 3}};
  const Layout layout = Layout().cut(0, {kDp}).cut(0, {kTp}).with_pending(Pending::kMax, {});
  EXPECT_EQ(whole_shape({4, 5}, layout, mesh), (Shape{24, 5}));
  EXPECT_EQ(first_element(layout, 0, 4, mesh, mesh.coordinate(5)), 20);
  EXPECT_EQ(first_element(Layout().cut(0, {kTp, kDp}), 0, 4, mesh, mesh.coordinate(5)), 20);
  EXPECT_EQ(first_element(Layout().cut(0, {kTp, kDp}), 0, 4, mesh, mesh.coordinate(1)), 8);
  EXPECT_EQ(first_element(Layout().with(0, {kTp}, 2), 0, 4, mesh, mesh.coordinate(1)), 2) << "of each of 2";
  EXPECT_EQ(print({DType::kBF16, {4, 5}}, layout.with_pending(Pending::kSum, kCp)), "bf16[4*dp*tp,5]+cp");
}

TEST(Layout, AxesAreReadAndRefusedByName) {
  EXPECT_EQ(parse_axes("dp,tp"), (AxisList{kDp, kTp}));
  EXPECT_EQ(print(AxisList{kDp, kTp}), "dp,tp");
  EXPECT_NE(message_of([] { parse_axes("dp,ep"); }).find("'ep' is no axis of a mesh"), std::string::npos);
  EXPECT_NE(message_of([] { parse_axes("dp,dp"); }).find("names dp twice"), std::string::npos);
  EXPECT_NE(message_of([] { parse_axes(""); }).find("is no axis"), std::string::npos);
}

// A graph of one node over leaves a, b, c ... of the types in `leaves`; its results, or the error.
std::string placed(const std::vector<std::string>& leaves, const std::string& op, const std::string& role = "none") {
  std::string text = "graph @g role " + role + " mesh dp=2 cp=2 tp=2 stage sharded\n", operands;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const std::string name(1, static_cast<char>('a' + i));
    if (leaves[i] == "_") {
      operands += i == 0 ? "_" : ", _";
      continue;
    }
    text += "%" + name + " = input : " + leaves[i] + " @" + name + "\n";
    operands += (i == 0 ? "%" : ", %") + name;
  }
  const size_t word = std::min(op.find(' '), op.size());
  text += "%y = " + op.substr(0, word) + " " + operands + op.substr(word) + "\noutput @y %y\nend\n";
  std::string results;
  const std::string error = message_of([&] {
    const Graph graph = parse_graph(text);
    verify(graph);
    EXPECT_EQ(print(parse_graph(print(graph))), print(graph));
    const Node& node = graph.nodes().back();
    for (size_t r = 0; r < node.results.size(); ++r)
      results += (r == 0 ? "" : ", ") +
                 print(node.results[r], graph.layout({NodeId{graph.size() - 1}, static_cast<int32_t>(r)}));
  });
  return error.empty() ? results : "error: " + error;
}

struct Rule {
  const char* name;
  std::vector<std::string> leaves;
  const char* op;
  const char* results;  // or "error: ", of which this is a part
};

const Rule kRules[] = {
    {"products cut along columns of b", {"f32[8,4]", "f32[6*tp,4]"}, "matmul {trans_b=true}", "f32[8,6*tp]"},
    {"products cut along rows of a", {"f32[8*cp,4]", "f32[4,6*tp]"}, "matmul", "f32[8*cp,6*tp]"},
    {"a cut contraction is a sum", {"f32[8,4*tp]", "f32[6,4*tp]"}, "matmul {trans_b=true}", "f32[8,6]+tp"},
    {"a contraction cut on one side only",
     {"f32[8,4*tp]", "f32[4,6]"},
     "matmul",
     "operand 1 b is f32[4,6] (want the contraction cut as that of a: tp)"},
    {"rows and columns by one axis", {"f32[8*tp,4]", "f32[4,6*tp]"}, "matmul", "columns cut by no axis that cuts rows"},
    {"a sum joins a sum", {"f32[8,4*tp]", "f32[4*tp,6]", "f32[8,6]+tp"}, "matmul", "f32[8,6]+tp"},
    {"copies never join a sum", {"f32[8,4*tp]", "f32[4*tp,6]", "f32[8,6]"}, "matmul", "as the result: f32[8,6]+tp"},
    {"nor does a bias",
     {"f32[8,4*tp]", "f32[4*tp,6]", "f32[6]"},
     "matmul",
     "each of the tp parts of the sum would add it"},
    {"a bias is cut as the columns", {"f32[8,4]", "f32[4,6*tp]", "f32[6*tp]"}, "matmul", "f32[8,6*tp]"},
    {"scales of rows lie as their codes",
     {"e4m3[8*tp,128]", "f32[1,8*tp]", "e4m3[6,128]", "f32[1,6]"},
     R"(scaled_matmul {trans_b=true, scaling_a="1x128", scaling_b="1x128"})",
     "f32[8*tp,6]"},
    {"a block of 128 lies on one rank",
     {"e4m3[8,64*tp]", "f32[1*tp,8]", "e4m3[6,64*tp]", "f32[1*tp,6]"},
     R"(scaled_matmul {trans_b=true, scaling_a="1x128", scaling_b="1x128"})",
     "want cut between groups of one scale (1x128: each part whole groups, rows under one whole)"},
    {"sums add", {"f32[8,4]+tp", "f32[8,4]+tp"}, "add", "f32[8,4]+tp"},
    {"a sum and copies do not",
     {"f32[8,4]+tp", "f32[8,4]"},
     "add",
     "want pending as operand 0 is: copies would count many times"},
    {"a bias added to a sum", {"f32[8,4]+tp", "f32[4]"}, "add", "copies would count many times"},
    {"a sum times a number is one", {"f32[8,4]+tp"}, "scale {value=2.0}", "f32[8,4]+tp"},
    {"a sum is no operand of an activation", {"f32[8,4]+tp"}, "relu", "(want nothing pending)"},
    {"widening keeps a sum", {"bf16[8,4]+tp"}, R"(cast {to="f32"})", "f32[8,4]+tp"},
    {"narrowing would round each part", {"f32[8,4]+tp"}, R"(cast {to="bf16"})", "(want nothing pending)"},
    {"gates are cut alike", {"f32[8,4*tp]", "f32[8,4*tp]"}, "mul", "f32[8,4*tp]"},
    {"maxima join maxima", {"f32[1]^tp", "f32[1]^tp"}, "maximum", "f32[1]^tp"},
    {"norms of rows", {"f32[8*cp*tp,4]", "f32[4]"}, "rms_norm {eps=0.1}", "f32[8*cp*tp,4], f32[8*cp*tp]"},
    {"norms need whole rows", {"f32[8,4*tp]", "f32[4]"}, "rms_norm {eps=0.1}", "want cut along dim 0 alone"},
    {"gradients of norm weights are sums",
     {"f32[8*tp,4]", "f32[4]", "f32[8*tp]", "f32[8*tp,4]"},
     "rms_norm_grad",
     "f32[8*tp,4], f32[4]+tp"},
    {"rows of gradients lie as those of x",
     {"f32[8*tp,4]", "f32[4]", "f32[8*tp]", "f32[8,4]"},
     "rms_norm_grad",
     "want rows as those of x"},
    {"heads",
     {"f32[8,4*tp]", "f32[8,2*tp]", "f32[8,2*tp]", "i32[2]"},
     "attention {heads=2, kv_heads=1, head_dim=2, scale=1.0}",
     "f32[8,4*tp], f32[8,2*tp]"},
    {"one key head may be copied",
     {"f32[8,4*tp]", "f32[8,2]", "f32[8,2]", "i32[2]"},
     "attention {heads=2, kv_heads=1, head_dim=2, scale=1.0}",
     "f32[8,4*tp], f32[8,2*tp]"},
    {"two may not",
     {"f32[8,4*tp]", "f32[8,4]", "f32[8,4]", "i32[2]"},
     "attention {heads=2, kv_heads=2, head_dim=2, scale=1.0}",
     "want heads as those of q"},
    {"attention needs all rows",
     {"f32[8*cp,4]", "f32[8*cp,4]", "f32[8*cp,4]", "i32[2]"},
     "attention {heads=2, kv_heads=2, head_dim=2, scale=1.0}",
     "want cut along heads (dim 1) alone"},
    {"copied keys get sums of gradients",
     {"f32[8,4*tp]", "f32[8,2]", "f32[8,2]", "i32[2]", "f32[8,4*tp]", "f32[8,2*tp]", "f32[8,4*tp]"},
     "attention_grad {heads=2, kv_heads=1, head_dim=2, scale=1.0}",
     "f32[8,4*tp], f32[8,2]+tp, f32[8,2]+tp"},
    {"rope by rows and heads",
     {"f32[8*cp,4*tp]", "i32[8*cp]"},
     "rope {heads=2, head_dim=2, theta=1.0}",
     "f32[8*cp,4*tp]"},
    {"a table cut by rows gives a sum", {"i32[8]", "f32[10*tp,4]"}, "embedding", "f32[8,4]+tp"},
    {"a copied table gives rows", {"i32[8*cp]", "f32[10,4]"}, "embedding", "f32[8*cp,4]"},
    {"its gradient is cut as the table",
     {"i32[8*cp]", "f32[8*cp,4]"},
     R"(embedding_grad {rows=10, over="tp"})",
     "f32[10*tp,4]+cp"},
    {"lists of rows are of all tokens",
     {"i32[8*cp]", "f32[8*cp,4]"},
     "coalesce_rows {capacity=4}",
     "want copies on all"},
    {"a statistic lies as what it is blended with",
     {"f32[8*tp]", "f32[8*tp]", "f32[1]", "f32[1]"},
     "blend {rate=0.1}",
     "f32[8*tp]"},
    {"a vocabulary cut without its log-sum-exp",
     {"f32[8,5*tp]", "i32[8]"},
     "cross_entropy",
     "classes whole where no lse"},
    {"the log-sum-exp of a part", {"f32[8*cp,5*tp]"}, "row_lse", "f32[8*cp]~tp"},
    {"the loss of a part is an addend",
     {"f32[8*cp,5*tp]", "i32[8*cp]", "f32[8*cp]"},
     "cross_entropy",
     "f32[8*cp]+tp, f32[8*cp]"},
    {"its gradient lies as the logits",
     {"f32[8,5*tp]", "i32[8]", "f32[8]", "f32[8]"},
     "cross_entropy_grad",
     "f32[8,5*tp]"},
    {"a loss that is yet to be added",
     {"f32[8,5*tp]", "i32[8]", "f32[8]", "f32[8]+tp"},
     "cross_entropy_grad",
     "want as the rows of logits"},
    {"views keep what begins alike", {"f32[8*cp,6*tp]"}, "reshape {shape=[2,4,6]}", "f32[2*cp,4,6*tp]"},
    {"heads within rows", {"f32[8,6*tp]"}, "reshape {shape=[24,2]}", "f32[24*tp@8,2]"},
    {"and out again", {"f32[24*tp@8,2]"}, "reshape {shape=[8,6]}", "f32[8,6*tp]"},
    {"norms of heads", {"f32[24*tp@8,2]", "f32[2]"}, "rms_norm {eps=0.1}", "f32[24*tp@8,2], f32[24*tp@8]"},
    {"rows across heads",
     {"f32[8,6*tp]"},
     "reshape {shape=[3,16]}",
     "reshape: operand 0 x is f32[8,6*tp] (want dim 1 whole: no part of a dim of [3,16] begins where it is cut)"},
    {"heads become a dim", {"f32[8*cp,6*tp]"}, "reshape {shape=[8,3,2]}", "f32[8*cp,3*tp,2]"},
    {"transposes swap cuts", {"f32[8*cp,6*tp]+dp"}, "transpose", "f32[6*tp,8*cp]+dp"},
    {"sums of rows", {"f32[8*cp,6*tp]"}, R"(reduce {reduction="sum", axis="rows"})", "f32[6*tp]+cp"},
    {"amax of parts", {"f32[8*cp,6*tp]"}, R"(reduce {reduction="amax", axis="all"})", "f32[1]^cp^tp"},
    {"amax of a sum", {"f32[8,6]+tp"}, R"(reduce {reduction="amax", axis="all"})", "want nothing pending"},
    {"a scale of a part's amax", {"f32[1]^tp"}, R"(compute_scale {format="e4m3"})", "want copies on all ranks"},
    {"codes lie as x",
     {"f32[8*tp,4]", "f32[1]"},
     R"(quantize {format="e4m3"})",
     "e4m3[8*tp,4], f32[1], e4m3[4,8*tp], f32[1], f32[1]^tp"},
    {"one scale a row needs whole rows",
     {"f32[8,4*tp]"},
     R"(quantize {format="e4m3", scaling="row"})",
     "want cut between groups of one scale (row:"},
    {"scales of columns do not join",
     {"f32[8*tp,4]"},
     R"(quantize {format="e4m3", scaling="row"})",
     "e4m3[8*tp,4], f32[8*tp], e4m3[4,8]!tp, f32[4]!tp, f32[1]^tp"},
    {"values in nf4 lie as their codes",
     {"i4[8*tp,128]", "i8[8*tp,2]", "f32[8*tp,1]", "f32[8*tp]"},
     "dequantize_nf4 {group=2}",
     "f32[8*tp,128]"},
    {"also by columns",
     {"i4[8,128*tp]", "i8[8,2*tp]", "f32[8,1*tp]", "f32[8]"},
     "dequantize_nf4 {group=2}",
     "f32[8,128*tp]"},
    {"offsets of other rows",
     {"i4[8*tp,128]", "i8[8*tp,2]", "f32[8*tp,1]", "f32[8]"},
     "dequantize_nf4 {group=2}",
     "as the rows of the codes"},
    {"rows of each expert give columns",
     {"f32[8,4]", "f32[15*tp@3,4]", "i32[4]"},
     "grouped_matmul {trans_b=true}",
     "f32[8,5*tp]"},
    {"columns of experts meet those of x",
     {"f32[8,4*tp]", "f32[15,4*tp]", "i32[4]"},
     "grouped_matmul {trans_b=true}",
     "f32[8,5]+tp"},
    {"experts that are cut across",
     {"f32[8,4]", "f32[15*tp,4]", "i32[4]"},
     "grouped_matmul {trans_b=true}",
     "cut within each expert"},
    {"squares of parts", {"f32[8*dp]", "f32[3]"}, "square_sum", "f64[1]+dp"},
    {"a norm of parts", {"f64[1]+dp"}, "clip_factor", "want copies on all ranks"},
    {"an update of a part",
     {"f32[8*dp]", "f32[8]", "f32[8*dp]", "f32[8*dp]", "f32[1]", "f32[1]", "f32[1]", "f32[1]"},
     "adamw {beta1=0.9, beta2=0.9, eps=0.1, weight_decay=0.0}",
     "want as the parameter: f32[8*dp]"},
    {"all-reduce of a sum",
     {"f32[8,4]+tp", "f32[3]+tp"},
     R"(all_reduce {reduction="sum", over="tp"})",
     "f32[8,4], f32[3]"},
    {"of copies: they would count many times",
     {"f32[8,4]"},
     R"(all_reduce {reduction="sum", over="tp"})",
     "want a sum pending over tp"},
    {"of another kind", {"f32[8,4]^tp"}, R"(all_reduce {reduction="sum", over="tp"})", "want a sum pending over tp"},
    {"reduce-scatter", {"f32[8,4]+cp+tp"}, R"(reduce_scatter {axis=0, over="tp"})", "f32[4*tp,4]+cp"},
    {"reduce-scatter of what does not divide",
     {"f32[7,4]+tp"},
     R"(reduce_scatter {axis=0, over="tp"})",
     "dim 0 of operand 0 is 7: it does not divide into 2 parts"},
    {"all-gather of the innermost cut", {"f32[2*cp*tp,4]"}, R"(all_gather {axis=0, over="tp"})", "f32[4*cp,4]"},
    {"of an outer one", {"f32[2*cp*tp,4]"}, R"(all_gather {axis=0, over="cp"})", "want dim 0 cut by cp, innermost"},
    {"rows to heads", {"f32[4*cp,8*tp]"}, R"(all_to_all {split_axis=1, axis=0, over="cp"})", "f32[8,4*tp*cp]"},
    {"parts of copies", {"f32[4,8]"}, R"(take_part {axis=1, over="tp"})", "f32[4,4*tp]"},
    {"parts of a sum", {"f32[4,8]+tp"}, R"(take_part {axis=1, over="tp"})", "want copies over tp"},
};

TEST(LayoutRules, GiveResultsOrRefuseByName) {
  for (const Rule& rule : kRules)
    EXPECT_NE(placed(rule.leaves, rule.op).find(rule.results), std::string::npos)
        << rule.name << ": " << placed(rule.leaves, rule.op);
}

TEST(LayoutRules, EveryOpHasOne) {
  for (const OpInfo& info : all_ops())
    EXPECT_EQ(op_facts(info.op).layouts.place == nullptr, info.max_inputs == 0) << info.name;
}

TEST(LayoutRules, EveryOpSaysWhereItTakesItsOperands) {
  for (const OpInfo& info : all_ops()) {
    const OpFacts& facts = op_facts(info.op);
    EXPECT_EQ(facts.layouts.arrange == nullptr, info.max_inputs == 0 || info.stage >= Stage::kSharded)
        << info.name << ": LayoutRules::arrange; kWhole where it takes copies of all operands";
    for (const int addend : facts.addends) EXPECT_TRUE(facts.linear >> addend & 1U) << info.name << ": " << addend;
  }
}

// Tokens, channels, heads and classes are four.
TEST(BatchRows, FollowFromLeavesWhateverTheSizes) {
  const Graph graph = parse_graph(R"(graph @g role train stage gradient
    %ids = input {rows="batch"} : i32[4] @ids
    %places = input {rows="batch"} : i32[4] @places
    %segments = input : i32[4] @segments
    %table = param : f32[4,4] @table
    %norm = param : f32[4] @norm
    %x = embedding %ids, %table
    %y = rms_norm %x, %norm {eps=0.1}
    %q = matmul %y, %table {trans_b=true}
    %each = reshape %q {shape=[4,1,4]}
    %r = rope %q, %places {heads=2, head_dim=2, theta=1.0}
    %out = attention %q, %q, %q, %segments {heads=2, kv_heads=2, head_dim=2, scale=1.0}
    %sum = add %out, %norm
    %wgrad = matmul %sum, %x {trans_a=true}
    %first = select_rows %sum, %segments
    %mean = segment_mean %sum, %segments
    %column = reduce %sum {reduction="sum", axis="rows"}
    %turned = transpose %sum
    %half = slice %sum {axis=1, begin=0, end=2}
    %few = slice %sum {axis=0, begin=0, end=2}
    %loss = cross_entropy %sum, %ids
    %dx = rms_norm_grad %x, %norm, %y.1, %sum
    %dtable = embedding_grad %ids, %dx {rows=4}
    output @a %dtable
    output @b %wgrad
    end)");
  const ValueTable<char> rows = batch_rows(graph);
  std::string found;
  for_each_result(graph, [&](Value value, const Node& node) {
    if (rows[value]) found += fmt::format("{}{} ", op_name(node.op), value.result);
  });
  EXPECT_EQ(found,
            "input0 input0 embedding0 rms_norm0 rms_norm1 matmul0 reshape0 rope0 attention0 attention1 add0 slice0 "
            "cross_entropy0 cross_entropy1 rms_norm_grad0 ");
}

// In a graph of one micro-batch the addends of other data ranks are there without being said.
TEST(LayoutRules, GradientsOfMicroBatchesAddUpOverDataRanks) {
  const char* scatter = R"(reduce_scatter {axis=0, over="dp"})";
  EXPECT_EQ(placed({"f32[8,4]"}, scatter, "train"), "f32[4*dp,4]");
  EXPECT_NE(placed({"f32[8,4]"}, scatter, "apply").find("want a sum pending over dp"), std::string::npos);
  EXPECT_NE(placed({"f32[8*dp,4]"}, scatter, "train").find("want a sum pending over dp"), std::string::npos)
      << "a part of a state is no micro-batch's";
}

TEST(LayoutText, ProgramsPrintAndParse) {
  const std::string text =
      "program @p\n"
      "state @w : f32[2*dp,4] role master of @w\n"
      "state @grad.w : f32[4,4]+dp role gradient of @w\n"
      "graph @accumulate mesh dp=2 stage sharded\n"
      "  %0 = state : f32[4,4] @grad.w\n"
      "  %1 = input : f32[4,4] @dw\n"
      "  %2 = add %0, %1 : f32[4,4]\n"
      "  update @grad.w %2\n"
      "end\n"
      "graph @apply mesh dp=2 stage sharded\n"
      "  %0 = state : f32[4,4]+dp @grad.w\n"
      "  %1 = reduce_scatter %0 {axis=0, over=\"dp\"} : f32[2*dp,4]\n"
      "  update @w %1\n"
      "end\n";
  const Program program = parse_program(text);
  verify(program);
  EXPECT_EQ(print(program), text);
}

TEST(LayoutText, StatesMustLieAsTheirTableSays) {
  const Program program = parse_program(
      "program @p state @w : f32[2*tp] role master of @w\n"
      "graph @g mesh tp=2 stage sharded %0 = state : f32[2] @w update @w %0 end");
  EXPECT_NE(message_of([&] { verify(program); }).find("graph g has w as f32[2], the state table as f32[2*tp]"),
            std::string::npos);
}

TEST(LayoutText, WrongTextIsRefusedWhereItIs) {
  const auto error = [](const std::string& text) { return message_of([&] { parse_graph(text); }); };
  EXPECT_NE(error("graph @g mesh tp=0 stage model end").find("at least one rank"), std::string::npos);
  EXPECT_NE(error("graph @g mesh xp=2 stage model end").find("'xp' is no axis of a mesh"), std::string::npos);
  EXPECT_NE(error("graph @g mesh tp=2 stage sharded %0 = input : f32[2*tp,3*tp] @x end").find("names tp twice"),
            std::string::npos);
  EXPECT_NE(error("graph @g mesh tp=2 stage sharded %0 = input : f32[2*tp] @x %1 = relu %0 : f32[2] end")
                .find("result 0 is declared f32[2], the op gives f32[2*tp]"),
            std::string::npos);
}

}  // namespace
}  // namespace octet
