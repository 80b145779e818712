// One op, one graph, one run.
#include "golden_ops/golden_run.h"

#include <fmt/format.h>

#include <cmath>

#include "exec/executor.h"
#include "kernels/cpu/reference.h"

namespace octet {

GoldenTensor golden(DType dtype, Shape shape, std::vector<double> values) {
  return {{dtype, std::move(shape)}, std::move(values)};
}

std::vector<GoldenTensor> run_op(Op op, std::vector<GoldenTensor> inputs, Attrs attrs) {
  Graph graph("main");
  Node node{.op = op, .attrs = std::move(attrs), .name = "case"};
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool present = inputs[i].type.shape.rank() > 0;
    node.inputs.push_back(
        present ? Value{graph.add({.op = Op::kInput, .results = {inputs[i].type}, .name = fmt::format("in{}", i)}), 0}
                : Value::none());
  }
  const NodeId id = graph.add(node);
  const std::vector<TensorType> types = graph.node(id).results;
  for (size_t r = 0; r < types.size(); ++r)
    graph.outputs().push_back({fmt::format("out{}", r), {id, static_cast<int32_t>(r)}});
  Program program;
  program.add_graph(std::move(graph));
  auto executor = make_interpreter(std::move(program));
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (node.inputs[i].exists()) cpu::store_tensor(inputs[i], executor->input("main", fmt::format("in{}", i)).data());
  }
  executor->run("main");
  std::vector<GoldenTensor> results;
  for (size_t r = 0; r < types.size(); ++r) {
    results.push_back(cpu::load_tensor(types[r], executor->output("main", fmt::format("out{}", r)).data()));
  }
  return results;
}

std::string compare(const std::vector<double>& actual, const OnnxTensor& expected, double relative, double absolute) {
  if (actual.size() != expected.values.size()) {
    return fmt::format("{}: {} values instead of {}", expected.name, actual.size(), expected.values.size());
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    const double a = actual[i], e = expected.values[i];
    if (a == e || (std::isnan(a) && std::isnan(e))) continue;
    if (!(std::fabs(a - e) <= absolute + relative * std::fabs(e))) {
      return fmt::format("{}[{}]: {} instead of {}", expected.name, i, a, e);
    }
  }
  return "";
}

namespace {

using Check = std::string (*)(const OnnxCase&);

Check find_check(const std::string& op) {
  static const std::map<std::string, Check> checks = {{"Attention", check_attention},
                                                      {"LayerNormalization", check_norm},
                                                      {"RMSNormalization", check_norm},
                                                      {"RotaryEmbedding", check_rotary},
                                                      {"Softmax", check_loss},
                                                      {"LogSoftmax", check_loss},
                                                      {"SoftmaxCrossEntropyLoss", check_loss},
                                                      {"ReduceLogSumExp", check_loss},
                                                      {"Gemm", check_product},
                                                      {"MatMul", check_product},
                                                      {"Cast", check_precision},
                                                      {"CastLike", check_precision},
                                                      {"QuantizeLinear", check_precision},
                                                      {"DequantizeLinear", check_precision},
                                                      {"Adam", check_adam},
                                                      {"Gather", check_rows},
                                                      {"TensorScatter", check_rows},
                                                      {"Gelu", check_activation},
                                                      {"Swish", check_activation}};
  const auto found = checks.find(op);
  return found == checks.end() ? nullptr : found->second;
}

}  // namespace

bool has_check(const std::string& op) { return find_check(op) != nullptr; }

std::string check_case(const OnnxCase& c) {
  const Check check = find_check(c.op);
  if (check == nullptr) return "skip: no such op";
  return c.all_types_known() ? check(c) : "skip: types Octet does not have";
}

}  // namespace octet
