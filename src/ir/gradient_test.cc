// Gradient rules as graphs: every gradient has its input's shape, wgrads are tagged and float32, statistics refuse.
// (Their numbers are checked against finite differences beside the kernels.)
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "ir/builder.h"
#include "ir/facts.h"
#include "ir/text.h"
#include "ir/verify.h"

namespace octet {
namespace {

// Applies the rule of one node with a given gradient of its results; keeps what the rule hands back.
class OneNode final : public GradientContext {
 public:
  OneNode(Graph& graph, NodeId id) : graph_(graph), builder_(graph), id_(id), node_(graph.node(id)) {
    graph_.set_stage(Stage::kGradient);
    builder_.set_phase(Phase::kBackward);
  }
  void seed(int result) {
    gradients_[result] = builder_.input("dy" + std::to_string(result), node_.results[static_cast<size_t>(result)]);
  }
  void run() {
    op_facts(node_.op).gradient(*this);
    for (auto& [input, gradient] : made) {
      EXPECT_EQ(graph_.shape(gradient), graph_.shape(node_.inputs[static_cast<size_t>(input)]))
          << op_name(node_.op) << " input " << input;
    }
    verify(graph_);
  }

  Builder& builder() override { return builder_; }
  const Graph& graph() const override { return graph_; }
  const Node& node() const override { return node_; }
  Value result(int i) const override { return {id_, i}; }
  Value input(int i) const override { return node_.inputs[static_cast<size_t>(i)]; }
  Value gradient(int i) const override {
    auto found = gradients_.find(i);
    return found == gradients_.end() ? Value::none() : found->second;
  }
  bool wants(int i) const override {
    return static_cast<size_t>(i) < node_.inputs.size() && is_float(graph_.dtype(input(i)));
  }
  void add_gradient(int i, Value gradient) override {
    if (wants(i)) made[i] = gradient;
  }

  std::map<int, Value> made;

 private:
  Graph& graph_;
  Builder builder_;
  NodeId id_;
  Node node_;
  std::map<int, Value> gradients_;
};

constexpr const char* kLeaves = R"(graph @g stage model
  %x = input : f32[4,8] @x
  %w = param : f32[16,8] @w
  %c = param : f32[8] @c
  %r = input : f32[4] @r
  %one = param : f32[1] @one
  %rng = input : i64[3] @rng
  %ids = input : i32[4] @ids
  %seg = input : i32[3] @seg
  %two = input : i32[2] @two
  %pairs = input : i32[4,2] @pairs
  %rows = input : f32[8,8] @rows
  %choice = input : f32[4,2] @choice
)";

TEST(Gradient, EveryRuleGivesEveryFloatInputAGradientOfItsShape) {
  const std::vector<std::string> lines = {
      "cast %x {to=\"bf16\"}",
      "scale %x {value=2.0}",
      "gelu %x {approximate=false}",
      "silu %x",
      "relu %x",
      "tanh %x",
      "add %x, %x",
      "add %x, %c",
      "add %x, %one",
      "sub %x, %x",
      "sub %x, %c",
      "sub %x, %one",
      "mul %x, %x",
      "mul %x, %c",
      "mul %x, %one",
      "dropout %x, %rng {p=0.5, key=3}",
      "dropout %x, %rng {p=0.5, key=3, bits=8}",
      "matmul %x, %w {trans_b=true}",
      "layer_norm %x, %c, %c {eps=1e-05}",
      "rms_norm %x, %c {eps=1e-05}",
      "attention %x, %x, %x, %seg {heads=2, kv_heads=2, head_dim=4, scale=0.5}",
      "attention %x, %x, %x, %seg, %rng {heads=2, kv_heads=2, head_dim=4, scale=0.5, dropout=0.1, max_length=4, key=1}",
      "rope %x, %ids {heads=2, head_dim=4, theta=10000.0}",
      "embedding %ids, %w",
      "cross_entropy %x, %ids",
      "cross_entropy %x, %ids, %r",
      "reshape %x {shape=[32]}",
      "slice %x {axis=1, begin=2, end=5}",
      "slice %x {axis=0, begin=0, end=4}",
      "concat %x, %w, %x {axis=0}",
      "transpose %x",
      "reduce %x {reduction=\"sum\", axis=\"rows\"}",
      "reduce %x {reduction=\"sum\", axis=\"all\"}",
      "select_rows %x, %two",
      "top_k %x {k=2}",
      "group_rows %pairs {groups=3}",
      "dispatch_rows %x, %pairs",
      "combine_rows %rows, %pairs, %choice",
      "combine_rows %rows, %pairs",
      "grouped_matmul %x, %w, %seg {trans_b=true}",
      "grouped_matmul %x, %w, %seg",
  };
  std::map<Op, int> seen;
  for (const std::string& line : lines) {
    SCOPED_TRACE(line);
    Graph graph = parse_graph(kLeaves + ("%y = " + line + " output @y %y end"));
    OneNode context(graph, graph.output("y").node);
    ++seen[context.node().op];
    context.seed(0);
    context.run();
    size_t floats = 0;
    for (int i = 0; i < static_cast<int>(context.node().inputs.size()); ++i) floats += context.wants(i) ? 1 : 0;
    // The gradient of logits holds what reaches them through a given log-sum-exp, which gets none.
    if (context.node().op == Op::kCrossEntropy && context.node().inputs.size() > 2) --floats;
    EXPECT_EQ(context.made.size(), floats);
  }
  for (const OpInfo& info : all_ops()) {
    EXPECT_TRUE(op_facts(info.op).gradient == nullptr || seen.contains(info.op)) << "no case for " << info.name;
  }
}

TEST(Gradient, MatmulOfEveryLayoutWithABiasOrASum) {
  for (bool trans_a : {false, true}) {
    for (bool trans_b : {false, true}) {
      for (bool full : {false, true}) {
        Graph graph("g");
        Builder b(graph);
        Value a = b.input("a", {DType::kF32, trans_a ? Shape{3, 2} : Shape{2, 3}});
        Value w = b.input("b", {DType::kF32, trans_b ? Shape{5, 3} : Shape{3, 5}});
        Value c = b.input("c", {DType::kF32, full ? Shape{2, 5} : Shape{5}});
        Value y = b.matmul(a, w, trans_a, trans_b, c);
        OneNode context(graph, y.node);
        context.seed(0);
        context.run();
        EXPECT_EQ(context.made.size(), 3u);
      }
    }
  }
}

TEST(Gradient, LinearsTagTheirGemmsAndKeepWeightGradientsInFloat32) {
  Graph graph("g");
  Builder b(graph);
  Value x = b.input("x", {DType::kBF16, {4, 8}});
  Value w = b.input("w", {DType::kBF16, {16, 8}});
  Attrs attrs = {{"gemm", std::string("layers.0.up")}, {"role", std::string("fprop")}};
  OneNode context(graph, b.matmul(x, w, false, true, {}, attrs).node);
  context.seed(0);
  context.run();
  const Node &dgrad = graph.node(context.made.at(0)), &wgrad = graph.node(context.made.at(1));
  EXPECT_EQ(dgrad.attr<std::string>("role"), "dgrad");
  EXPECT_EQ(wgrad.attr<std::string>("role"), "wgrad");
  EXPECT_EQ(wgrad.attr<std::string>("gemm"), "layers.0.up");
  EXPECT_EQ(dgrad.results[0], (TensorType{DType::kBF16, {4, 8}}));
  EXPECT_EQ(wgrad.results[0], (TensorType{DType::kF32, {16, 8}}));
}

TEST(Gradient, StatisticsAndMaximaRefuse) {
  for (const std::string line : {"rms_norm %x, %c {eps=1e-05}", "cross_entropy %x, %ids",
                                 "attention %x, %x, %x, %seg {heads=2, kv_heads=2, head_dim=4, scale=0.5}"}) {
    Graph graph = parse_graph(kLeaves + ("%y = " + line + " output @y %y end"));
    OneNode context(graph, graph.output("y").node);
    context.seed(0);
    context.seed(1);
    EXPECT_THROW(context.run(), Error) << line;
  }
  Graph graph =
      parse_graph(kLeaves + std::string("%y = reduce %x {reduction=\"max\", axis=\"rows\"} output @y %y end"));
  OneNode context(graph, graph.output("y").node);
  context.seed(0);
  EXPECT_THROW(context.run(), Error);
}

}  // namespace
}  // namespace octet
