#include "passes/autodiff.h"

#include <algorithm>

#include "base/error.h"
#include "ir/facts.h"
#include "ir/rewrite.h"

namespace octet {
namespace {

bool is_leaf(Op op) { return op_info(op).max_inputs == 0; }

// The reverse walk over one graph. The graph being extended starts as a copy of the forward one, so forward values keep
// their ids in it.
class ReverseWalk final : public GradientContext {
 public:
  explicit ReverseWalk(const Graph& forward) : graph_(forward), builder_(graph_), forward_size_(forward.size()) {
    builder_.set_phase(Phase::kBackward);
    for (const Node& node : graph_.nodes()) {
      gradients_.emplace_back(node.results.size());
      bool trainable = node.op == Op::kParam;
      for (Value input : node.inputs) trainable |= input.exists() && trainable_[at(input.node)];
      trainable_.push_back(trainable);
    }
  }

  Builder& builder() override { return builder_; }
  const Graph& graph() const override { return graph_; }
  const Node& node() const override { return current_; }
  Value result(int i) const override { return {current_id_, i}; }
  Value input(int i) const override { return current_.inputs[static_cast<size_t>(i)]; }
  Value gradient(int i) const override { return gradients_[at(current_id_)][static_cast<size_t>(i)]; }
  bool wants(int i) const override {
    return static_cast<size_t>(i) < current_.inputs.size() && input(i).exists() && trainable_[at(input(i).node)];
  }
  void add_gradient(int i, Value gradient) override {
    if (wants(i)) accumulate(input(i), gradient);
  }

  void accumulate(Value value, Value gradient) {
    check(graph_.shape(value) == graph_.shape(gradient), ErrorCode::kInternal,
          "gradient of {} has shape {}, the value {}", describe(graph_, value.node), to_string(graph_.shape(gradient)),
          to_string(graph_.shape(value)));
    Value& sum = gradients_[at(value.node)][static_cast<size_t>(value.result)];
    if (!sum.exists()) {
      sum = gradient;
      return;
    }
    sum = builder_.add(sum, gradient);
    graph_.mutable_node(sum.node).name = graph_.node(value).name;
  }

  void run() {
    for (int32_t i = forward_size_ - 1; i >= 0; --i) visit(NodeId{i});
  }

  Value gradient_of(Value value) const { return gradients_[at(value.node)][static_cast<size_t>(value.result)]; }
  Graph take() { return std::move(graph_); }

 private:
  static size_t at(NodeId id) { return static_cast<size_t>(index(id)); }

  void visit(NodeId id) {
    const auto& given = gradients_[at(id)];
    bool reached = std::any_of(given.begin(), given.end(), [](Value g) { return g.exists(); });
    if (!reached || !trainable_[at(id)] || is_leaf(graph_.node(id).op)) return;
    current_ = graph_.node(id);  // a copy: rules append to the graph
    current_id_ = id;
    const OpFacts& facts = op_facts(current_.op);
    check(facts.gradient != nullptr, ErrorCode::kUnsupported, "autodiff: {} lies between a parameter and the loss: {}",
          describe(graph_, id), facts.no_gradient != nullptr ? facts.no_gradient : "it has no gradient rule");
    builder_.set_layer(current_.layer);
    int32_t first = graph_.size();
    facts.gradient(*this);
    for (int32_t i = first; i < graph_.size(); ++i) {
      Node& made = graph_.mutable_node(NodeId{i});
      made.phase = Phase::kBackward;
      made.layer = current_.layer;
      if (made.name.empty()) made.name = current_.name;
    }
  }

  Graph graph_;
  Builder builder_;
  int32_t forward_size_;
  Node current_;
  NodeId current_id_ = NodeId::kNone;
  std::vector<bool> trainable_;                // by forward node: a parameter lies behind it
  std::vector<std::vector<Value>> gradients_;  // by forward node and result
};

// Where the third operand of a product of this op goes, or -1: y = ... + c.
int sum_operand(Op op) { return op == Op::kMatmul || op == Op::kEmbeddingGrad ? 2 : -1; }

// Backward sums one side of which is a product without a third operand become that operand, so that gradients of one
// value accumulate inside the GEMMs. The product moves down to the sum.
class SumFolder {
 public:
  explicit SumFolder(const Graph& graph) : old_(graph), uses_(graph.count_uses()), rewriter_(graph) {
    product_.resize(static_cast<size_t>(graph.size()), Value::none());
    moved_.resize(static_cast<size_t>(graph.size()), false);
    for (int32_t i = 0; i < graph.size(); ++i) choose(NodeId{i});
  }

  bool found() const { return std::find(moved_.begin(), moved_.end(), true) != moved_.end(); }

  Graph run() {
    for (int32_t i = 0; i < old_.size(); ++i) {
      NodeId id{i};
      if (moved_[static_cast<size_t>(i)]) continue;
      Value product = product_[static_cast<size_t>(i)];
      if (!product.exists()) {
        rewriter_.copy(id);
        continue;
      }
      const Node& sum = old_.node(id);
      Node folded = old_.node(product);
      for (Value& input : folded.inputs) input = rewriter_.map(input);
      folded.inputs.resize(2);
      folded.inputs.push_back(rewriter_.map(sum.inputs[0] == product ? sum.inputs[1] : sum.inputs[0]));
      rewriter_.set({id, 0}, {rewriter_.graph().add(std::move(folded)), 0});
    }
    return rewriter_.finish();
  }

 private:
  bool foldable(Value value, const Node& sum) const {
    const Node& node = old_.node(value);
    int c = sum_operand(node.op);
    bool taken = c >= 0 && static_cast<size_t>(c) < node.inputs.size() && node.inputs[static_cast<size_t>(c)].exists();
    return c >= 0 && !taken && node.phase == Phase::kBackward && node.results[0] == sum.results[0] &&
           uses_[static_cast<size_t>(index(value.node))][0] == 1;
  }

  void choose(NodeId id) {
    const Node& node = old_.node(id);
    if (node.op != Op::kAdd || node.phase != Phase::kBackward || node.inputs[0] == node.inputs[1]) return;
    if (old_.type(node.inputs[0]) != old_.type(node.inputs[1])) return;
    for (int side : {1, 0}) {  // the later contribution stands right
      Value value = node.inputs[static_cast<size_t>(side)];
      if (!foldable(value, node)) continue;
      product_[static_cast<size_t>(index(id))] = value;
      moved_[static_cast<size_t>(index(value.node))] = true;
      return;
    }
  }

  const Graph& old_;
  std::vector<std::vector<int32_t>> uses_;
  Rewriter rewriter_;
  std::vector<Value> product_;  // by sum: the product it goes into
  std::vector<bool> moved_;     // by product
};

std::string gradient_name(const Node& param) { return state_name(StateRole::kGradient, param.name); }

// `accumulating`: every parameter's sum of contributions starts at its gradient state.
Graph differentiate(const Graph& forward, const std::string& loss_output, bool accumulating) {
  Value loss = forward.output(loss_output);
  check(forward.type(loss) == TensorType{DType::kF32, {1}}, ErrorCode::kInvalidArgument,
        "autodiff: output {} is {}, the loss must be f32[1]", loss_output, to_string(forward.type(loss)));
  ReverseWalk walk(forward);
  std::vector<Value> params;
  for (int32_t i = 0; i < forward.size(); ++i) {
    const Node& node = forward.node(NodeId{i});
    if (node.op != Op::kParam) continue;
    params.push_back({NodeId{i}, 0});
    if (accumulating) walk.accumulate(params.back(), walk.builder().state(gradient_name(node), node.results[0]));
  }
  walk.builder().set_layer(-1);
  walk.accumulate(loss, walk.builder().input("loss_scale", {DType::kF32, {1}}));
  walk.run();
  walk.builder().set_layer(-1);
  for (Value param : params) {
    Value gradient = walk.gradient_of(param);
    if (!gradient.exists()) gradient = walk.builder().constant(0, forward.shape(param));
    walk.builder().output(gradient_name(forward.node(param)), gradient);
  }
  Graph result = walk.take();
  remove_dead_nodes(result);
  result.set_stage(Stage::kGradient);
  return result;
}

bool fold_sums_in(Graph& graph) {
  SumFolder folder(graph);
  if (!folder.found()) return false;
  Graph folded = folder.run();
  graph = std::move(folded);
  return true;
}

// The micro-batches' losses add up on the device, so that nobody waits for one before the next begins.
void sum_losses(Graph& graph, const std::string& loss_output, bool accumulating) {
  Value loss = graph.output(loss_output);
  if (accumulating) {
    Builder b(graph);
    b.set_phase(Phase::kBackward);
    loss = b.add(b.state(kLossSum, graph.type(loss)), loss);
  }
  graph.updates().push_back({kLossSum, loss});
}

// The last outputs, those of gradients, become updates of the states of their names.
void outputs_to_updates(Graph& graph, size_t first_gradient) {
  const auto first = graph.outputs().begin() + static_cast<ptrdiff_t>(first_gradient);
  graph.updates().insert(graph.updates().end(), first, graph.outputs().end());
  graph.outputs().erase(first, graph.outputs().end());
}

bool differentiate_train(Program& program, const CompileOptions&) {
  const Graph* found = program.find_graph(GraphRole::kTrain);
  if (found == nullptr || found->stage() != Stage::kModel) return false;
  const Graph forward = *found;
  for (const Node& node : forward.nodes()) {
    if (node.op != Op::kParam) continue;
    program.add_state({.name = node.name, .type = node.results[0]});
    program.add_state({.type = node.results[0], .role = StateRole::kGradient, .param = node.name});
  }
  Graph train = differentiate(forward, "loss", /*accumulating=*/false);
  Graph accumulate = differentiate(forward, "loss", /*accumulating=*/true);
  accumulate.set_role(GraphRole::kAccumulate);
  outputs_to_updates(train, forward.outputs().size());
  outputs_to_updates(accumulate, forward.outputs().size());
  program.add_state({.name = kLossSum, .type = {DType::kF32, {1}}, .role = StateRole::kBuffer});
  sum_losses(train, "loss", false);
  sum_losses(accumulate, "loss", true);
  program.add_graph(std::move(train));
  program.add_graph(std::move(accumulate));
  for (Graph& graph : program.graphs()) graph.set_stage(Stage::kGradient);
  return true;
}

bool fold_sums(Program& program, const CompileOptions&) {
  bool changed = false;
  for (Graph& graph : program.graphs()) changed |= fold_sums_in(graph);
  return changed;
}

}  // namespace

Graph differentiate(const Graph& forward, const std::string& loss_output) {
  Graph graph = differentiate(forward, loss_output, /*accumulating=*/false);
  fold_sums_in(graph);
  return graph;
}

std::span<const Step> autodiff_steps() {
  static constexpr Step kSteps[] = {{"differentiate", differentiate_train}, {"fold_sums", fold_sums}};
  return kSteps;
}

bool autodiff(Program& program, const CompileOptions& options) { return run_steps(autodiff_steps(), program, options); }

}  // namespace octet
