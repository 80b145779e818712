#include "passes/passes.h"

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
  explicit ReverseWalk(const Graph& forward)
      : graph_(forward), builder_(graph_), forward_size_(forward.size()), gradients_(forward) {
    builder_.set_phase(Phase::kBackward);
    for (const Node& node : graph_.nodes()) {
      bool trainable = node.op == Op::kParam && !is_frozen(node);
      for (Value input : node.inputs) trainable |= input.exists() && trainable_[slot(input.node)];
      trainable_.push_back(trainable);
    }
  }

  Builder& builder() override { return builder_; }
  const Graph& graph() const override { return graph_; }
  const Node& node() const override { return current_; }
  Value result(int i) const override { return {current_id_, i}; }
  Value input(int i) const override { return current_.inputs[static_cast<size_t>(i)]; }
  Value gradient(int i) const override { return gradients_[{current_id_, i}]; }
  bool wants(int i) const override {
    return static_cast<size_t>(i) < current_.inputs.size() && input(i).exists() && trainable_[slot(input(i).node)];
  }
  void add_gradient(int i, Value gradient) override {
    if (wants(i)) accumulate(input(i), gradient);
  }

  void accumulate(Value value, Value gradient) {
    check(graph_.shape(value) == graph_.shape(gradient), ErrorCode::kInternal,
          "gradient of {} has shape {}, the value {}", describe(graph_, value.node), to_string(graph_.shape(gradient)),
          to_string(graph_.shape(value)));
    Value& sum = gradients_[value];
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

  Value gradient_of(Value value) const { return gradients_[value]; }
  Graph take() { return std::move(graph_); }

 private:
  void visit(NodeId id) {
    bool reached = false;
    for (int32_t r = 0; r < static_cast<int32_t>(graph_.node(id).results.size()); ++r)
      reached |= gradients_[{id, r}].exists();
    if (!reached || !trainable_[slot(id)] || is_leaf(graph_.node(id).op)) return;
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
  std::vector<bool> trainable_;  // by forward node: a parameter lies behind it
  ValueTable<Value> gradients_;  // of forward values
};

// Backward sums one side of which is a node that could take an addend and has none become that node with one, so that
// gradients of one value accumulate inside the GEMMs.
bool fold_sums(Graph& graph) {
  const std::vector<std::vector<int32_t>> uses = graph.count_uses();
  return fold_into_products(graph, [&](const Node& sum) {
    if (sum.phase != Phase::kBackward || sum.inputs[0] == sum.inputs[1]) return Value::none();
    if (graph.type(sum.inputs[0]) != graph.type(sum.inputs[1])) return Value::none();
    for (Value value : {sum.inputs[1], sum.inputs[0]}) {  // the later contribution stands right
      const Node& node = graph.node(value);
      if (op_facts(node.op).addends.size() == 1 && !node.operand("c").exists() && node.phase == Phase::kBackward &&
          node.results[0] == sum.results[0] && uses[slot(value.node)][0] == 1)
        return value;
    }
    return Value::none();
  });
}

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
    if (node.op != Op::kParam || is_frozen(node)) continue;
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

// The micro-batches' losses add up on the device, so that nobody waits for one before the next begins.
void sum_outputs(Graph& graph, const std::vector<std::string>& outputs, bool accumulating) {
  for (const std::string& name : outputs) {
    Value sum = graph.output(name);
    if (accumulating) {
      Builder b(graph);
      b.set_phase(Phase::kBackward);
      sum = b.add(b.state(sum_state(name), graph.type(sum)), sum);
    }
    graph.updates().push_back({sum_state(name), sum});
  }
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
    if (node.op != Op::kParam || is_frozen(node)) continue;
    program.add_state({.name = node.name, .type = node.results[0]});
    program.add_state({.type = node.results[0], .role = StateRole::kGradient, .param = node.name});
  }
  Graph train = differentiate(forward, "loss", /*accumulating=*/false);
  Graph accumulate = differentiate(forward, "loss", /*accumulating=*/true);
  accumulate.set_role(GraphRole::kAccumulate);
  outputs_to_updates(train, forward.outputs().size());
  outputs_to_updates(accumulate, forward.outputs().size());
  const std::vector<std::string> summed = summed_outputs(forward);
  for (const std::string& name : summed)
    program.add_state({.name = sum_state(name), .type = {DType::kF32, {1}}, .role = StateRole::kBuffer});
  sum_outputs(train, summed, false);
  sum_outputs(accumulate, summed, true);
  program.add_graph(std::move(train));
  program.add_graph(std::move(accumulate));
  for (Graph& graph : program.graphs()) graph.set_stage(Stage::kGradient);
  return true;
}

}  // namespace

Graph differentiate(const Graph& forward, const std::string& loss_output) {
  Graph graph = differentiate(forward, loss_output, /*accumulating=*/false);
  fold_sums(graph);
  return graph;
}

std::string sum_state(const std::string& output) { return output == "loss" ? kLossSum : kSumPrefix + output; }

std::vector<std::string> summed_outputs(const Graph& train) {
  std::vector<std::string> names = {"loss"};
  for (const NamedValue& output : train.outputs())
    if (output.name != "loss" && train.type(output.value) == TensorType{DType::kF32, {1}}) names.push_back(output.name);
  return names;
}

std::span<const Step> autodiff_steps() {
  static constexpr Step kSteps[] = {{"differentiate", differentiate_train}, {"fold_sums", on_graphs<fold_sums>}};
  return kSteps;
}

bool autodiff(Program& program, const CompileOptions& options) { return run_steps(autodiff_steps(), program, options); }

}  // namespace octet
