#include "train/training_program.h"

#include "base/error.h"
#include "passes/autodiff.h"

namespace octet {
namespace {

Graph optimizer_graph(const Graph& train, const OptimizerConfig& optimizer, Program& program) {
  Graph apply(GraphRole::kApply);
  Builder b(apply);
  b.set_phase(Phase::kOptimizer);
  Value lr = b.input("lr", {DType::kF32, {1}}), step = b.input("step", {DType::kF32, {1}});
  std::vector<Node> params;  // leaves with their attrs: initial values are read from any graph that has them
  for (const Node& node : train.nodes()) {
    if (node.op != Op::kParam) continue;
    params.push_back(node);
    params.back().phase = Phase::kOptimizer;
  }
  std::vector<Value> gradients;
  for (const Node& param : params) {
    const std::string& name = param.name;
    const TensorType& type = param.results[0];
    program.add_state({.name = name, .type = type});
    gradients.push_back(declare_state(program, b, {.type = type, .role = StateRole::kGradient, .param = name}));
    for (int32_t i : {0, 1}) program.add_state({.type = type, .role = StateRole::kMoment, .param = name, .index = i});
  }
  Value squares{b.emit(Op::kSquareSum, gradients, {}, "square_sum"), 0};
  NodeId norm = b.emit(Op::kClipFactor, {squares}, {{"max_norm", optimizer.clip}}, "clip_factor");
  Value clip{norm, 1}, finite{norm, 2};
  for (size_t i = 0; i < params.size(); ++i) {
    const std::string& name = params[i].name;
    const TensorType& type = params[i].results[0];
    Attrs attrs = {{"beta1", optimizer.beta1},
                   {"beta2", optimizer.beta2},
                   {"eps", optimizer.eps},
                   {"weight_decay", type.shape.rank() >= 2 ? optimizer.weight_decay : 0.0}};
    const std::string m = state_name(StateRole::kMoment, name, 0), v = state_name(StateRole::kMoment, name, 1);
    NodeId update =
        b.emit(Op::kAdamw,
               {{apply.add(params[i]), 0}, gradients[i], b.state(m, type), b.state(v, type), lr, step, clip, finite},
               attrs, name);
    b.update(name, {update, 0});
    b.update(m, {update, 1});
    b.update(v, {update, 2});
  }
  program.add_state({.name = kLossSum, .type = {DType::kF32, {1}}, .role = StateRole::kBuffer});
  b.output("loss", b.state(kLossSum, {DType::kF32, {1}}));
  b.output("grad_norm", {norm, 0});
  b.output("finite", finite);
  return apply;
}

}  // namespace

void allow_library_masks(Program& program) {
  Graph& train = *program.find_graph(GraphRole::kTrain);
  for (int32_t i = 0; i < train.size(); ++i) {
    Node& node = train.mutable_node(NodeId{i});
    if (node.op == Op::kAttention && node.attrs.get_or<double>("dropout", 0) > 0) node.attrs.set("library_mask", true);
  }
}

Graph loss_graph(GraphRole role, const ModelSpec& model, const BatchShape& shape) {
  Graph graph(role);
  Builder builder(graph);
  build_loss(builder, model, shape);
  return graph;
}

Program training_program(const ModelSpec& model, const BatchShape& train, const BatchShape& eval,
                         const OptimizerConfig& optimizer) {
  Program program;
  program.name = "training";
  const Graph& graph = program.add_graph(loss_graph(GraphRole::kTrain, model, train));
  Graph apply = optimizer_graph(graph, optimizer, program);
  program.add_graph(loss_graph(GraphRole::kEval, model, eval));
  program.add_graph(std::move(apply));
  return program;
}

}  // namespace octet
