#include "passes/passes.h"

#include <algorithm>
#include <unordered_map>

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
  bool takes_rows(int i) const override {
    const Node& table = graph_.node(input(i));
    return table.op == Op::kParam && update_of(table) == Update::kRows;
  }
  void add_gradient_rows(int i, Value ids, Value rows) override { lookups_[input(i)].push_back({ids, rows}); }

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
  // The rows of a table that were looked up, and their ids, on top of those of `before` where there are any.
  std::vector<Value> coalesced(Value table, int64_t capacity, std::vector<Value> before) {
    for (const Lookup& lookup : lookups_[table]) {
      std::vector<Value> inputs = {lookup.ids, lookup.rows};
      if (!before.empty()) inputs.insert(inputs.end(), {before[1], before[0]});
      const NodeId node =
          builder_.emit(Op::kCoalesceRows, std::move(inputs), {{"capacity", capacity}}, graph_.node(table).name);
      before = {{node, 1}, {node, 0}};
    }
    if (!before.empty()) return before;
    const int64_t width = graph_.shape(table)[1];
    return {builder_.constant(0, {capacity, width}), builder_.constant(-1, {capacity}, DType::kI32)};
  }
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
  struct Lookup {
    Value ids, rows;
  };
  std::unordered_map<Value, std::vector<Lookup>, ValueHash> lookups_;  // by table whose gradient is rows
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

std::string gradient_name(const Node& param, int32_t part = kGradientRows) {
  return state_name(StateRole::kGradient, param.name, part);
}

// `accumulating`: every parameter's sum of contributions starts at its gradient state.
Graph differentiate(const Graph& forward, const std::string& loss_output, bool accumulating,
                    int64_t micro_batches = 1) {
  Value loss = forward.output(loss_output);
  check(forward.type(loss) == TensorType{DType::kF32, {1}}, ErrorCode::kInvalidArgument,
        "autodiff: output {} is {}, the loss must be f32[1]", loss_output, to_string(forward.type(loss)));
  ReverseWalk walk(forward);
  std::vector<Value> params;
  for (int32_t i = 0; i < forward.size(); ++i) {
    const Node& node = forward.node(NodeId{i});
    if (node.op != Op::kParam || is_frozen(node)) continue;
    params.push_back({NodeId{i}, 0});
    if (accumulating && update_of(node) == Update::kDense)
      walk.accumulate(params.back(), walk.builder().state(gradient_name(node), node.results[0]));
  }
  walk.builder().set_layer(-1);
  walk.accumulate(loss, walk.builder().input("loss_scale", {DType::kF32, {1}}));
  walk.run();
  walk.builder().set_layer(-1);
  for (Value param : params) {
    const Node& table = forward.node(param);
    if (update_of(table) == Update::kRows) {
      const int64_t capacity = gradient_rows(forward, table, micro_batches);
      const TensorType types[] = {{DType::kF32, {capacity, table.results[0].shape[1]}}, {DType::kI32, {capacity}}};
      std::vector<Value> parts;
      for (const int32_t part : {kGradientRows, kGradientIds})
        if (accumulating) parts.push_back(walk.builder().state(gradient_name(table, part), types[part]));
      parts = walk.coalesced(param, capacity, std::move(parts));
      for (const int32_t part : {kGradientRows, kGradientIds})
        walk.builder().output(gradient_name(table, part), parts[static_cast<size_t>(part)]);
      continue;
    }
    Value gradient = walk.gradient_of(param);
    if (!gradient.exists()) gradient = walk.builder().constant(0, forward.shape(param));
    walk.builder().output(gradient_name(forward.node(param)), gradient);
  }
  Graph result = walk.take();
  remove_dead_nodes(result);
  result.set_stage(Stage::kGradient);
  return result;
}

bool is_statistic(const NamedValue& output) {
  return output.name.starts_with(kStatisticPrefix) || output.name.starts_with(kStatisticCountPrefix);
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

// Of statistics: their sums are updates alone.
void drop_outputs(Graph& graph, const std::vector<std::string>& names) {
  std::erase_if(graph.outputs(), [&](const NamedValue& output) { return std::ranges::count(names, output.name) > 0; });
}

bool differentiate_train(Program& program, const CompileOptions& options) {
  const Graph* found = program.find_graph(GraphRole::kTrain);
  if (found == nullptr || found->stage() != Stage::kModel) return false;
  const Graph forward = *found;
  const int64_t micro_batches = micro_batches_of(options.parallel);
  for (const Node& node : forward.nodes()) {
    if (node.op != Op::kParam || is_frozen(node)) continue;
    program.add_state({.name = node.name, .type = node.results[0], .update = update_of(node)});
    add_gradient_states(program, forward, node, micro_batches);
  }
  Graph train = differentiate(forward, "loss", /*accumulating=*/false, micro_batches);
  Graph accumulate = differentiate(forward, "loss", /*accumulating=*/true, micro_batches);
  accumulate.set_role(GraphRole::kAccumulate);
  outputs_to_updates(train, forward.outputs().size());
  outputs_to_updates(accumulate, forward.outputs().size());
  std::vector<std::string> summed = summed_outputs(forward);
  const std::vector<std::string> statistics = statistic_outputs(forward);
  summed.insert(summed.end(), statistics.begin(), statistics.end());
  for (const std::string& name : summed)
    program.add_state(
        {.name = sum_state(name), .type = forward.type(forward.output(name)), .role = StateRole::kBuffer});
  sum_outputs(train, summed, false);
  sum_outputs(accumulate, summed, true);
  drop_outputs(train, statistics), drop_outputs(accumulate, statistics);
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
    if (output.name != "loss" && !is_statistic(output) && train.type(output.value) == TensorType{DType::kF32, {1}})
      names.push_back(output.name);
  return names;
}

std::vector<std::string> statistic_outputs(const Graph& train) {
  std::vector<std::string> names;
  for (const NamedValue& output : train.outputs())
    if (is_statistic(output)) names.push_back(output.name);
  return names;
}

int64_t gradient_rows(const Graph& train, const Node& table, int64_t micro_batches) {
  int64_t ids = 0;
  for (int32_t i = 0; i < train.size(); ++i) {
    const Node& node = train.node(NodeId{i});
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      if (!node.inputs[k].exists() || train.node(node.inputs[k]).name != table.name ||
          train.node(node.inputs[k]).op != Op::kParam)
        continue;
      check(
          node.op == Op::kEmbedding, ErrorCode::kUnsupported,
          "{}: {} reads it, and a gradient of rows (update=\"rows\", optimizer.sparse) is of a table that only lookups "
          "read: one that the output head shares has a dense gradient",
          table.name, describe(train, NodeId{i}));
      ids += train.shape(node.inputs[0]).elements();
    }
  }
  return std::min(table.results[0].shape[0], std::max<int64_t>(ids, 1) * micro_batches);
}

void add_gradient_states(Program& program, const Graph& train, const Node& param, int64_t micro_batches) {
  const bool rows = update_of(param) == Update::kRows;
  const int64_t capacity = rows ? gradient_rows(train, param, micro_batches) : 0;
  StateEntry entry{
      .type = param.results[0], .role = StateRole::kGradient, .param = param.name, .update = update_of(param)};
  if (rows) entry.type.shape[0] = capacity;
  program.add_state(entry);
  if (!rows) return;
  entry.type = {DType::kI32, {capacity}}, entry.index = kGradientIds;
  program.add_state(std::move(entry));
}

std::span<const Step> autodiff_steps() {
  static constexpr Step kSteps[] = {{"differentiate", differentiate_train}, {"fold_sums", on_graphs<fold_sums>}};
  return kSteps;
}

bool autodiff(Program& program, const CompileOptions& options) { return run_steps(autodiff_steps(), program, options); }

}  // namespace octet
