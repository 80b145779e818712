#include "train/training_program.h"

namespace octet {

void allow_library_masks(Program& program) {
  Graph& train = *program.find_graph(GraphRole::kTrain);
  for (int32_t i = 0; i < train.size(); ++i) {
    Node& node = train.mutable_node(NodeId{i});
    if (node.op == Op::kAttention && node.attr<double>("dropout") > 0) node.attrs.set("library_mask", true);
  }
}

Graph loss_graph(GraphRole role, const ModelSpec& model, const BatchShape& shape) {
  Graph graph(role);
  Builder builder(graph);
  build_loss(builder, model, shape);
  return graph;
}

Program training_program(Graph train, Graph eval, const OptimizerConfig& optimizer) {
  Program program;
  program.name = "training";
  train.set_role(GraphRole::kTrain);
  eval.set_role(GraphRole::kEval);
  Graph apply = apply_graph(program.add_graph(std::move(train)), optimizer, program);
  program.add_graph(std::move(eval));
  program.add_graph(std::move(apply));
  return program;
}

Program training_program(const ModelSpec& model, const BatchShape& train, const BatchShape& eval,
                         const OptimizerConfig& optimizer) {
  return training_program(loss_graph(GraphRole::kTrain, model, train), loss_graph(GraphRole::kEval, model, eval),
                          optimizer);
}

}  // namespace octet
