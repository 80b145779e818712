// Five steps of each optimiser against torch's (testdata/torch_updates.json, tests/optimisers/make_update_table.py):
// the references to float64's accuracy, the fast rows to float32's.
#include <gtest/gtest.h>

#include <cmath>

#include "base/file.h"
#include "base/json.h"
#include "base/testing/test_data.h"
#include "ir/facts.h"
#include "kernels/cpu/testing/conformance.h"

namespace octet::cpu {
namespace {

Attrs attrs_of(const nlohmann::json& json) {
  Attrs attrs;
  for (const auto& [key, value] : json.items())
    value.is_boolean() ? attrs.set(key, value.get<bool>()) : attrs.set(key, value.get<double>());
  return attrs;
}

// The update node's inputs: a parameter, its gradient, scalars and moments where the op's facts say.
std::vector<RefTensor> inputs_of(Op op, const std::vector<RefTensor>& state, const std::vector<double>& gradient,
                                 std::vector<double> scalars) {
  const TensorType vector = state[0].type, one{DType::kF32, {1}};
  std::vector<RefTensor> inputs = {state[0], {vector, gradient}};
  for (double scalar : scalars) inputs.push_back({one, {scalar}});
  inputs.insert(inputs.begin() + op_facts(op).first_moment, state.begin() + 1, state.end());
  return inputs;
}

// The results of a node, in float64 by the reference or in float32 by the row that runs on CPUs.
std::vector<RefTensor> run(Op op, const Attrs& attrs, const std::vector<RefTensor>& inputs, bool exact) {
  Graph graph;
  std::vector<Value> leaves;
  std::vector<const RefTensor*> in;
  for (const RefTensor& input : inputs) {
    const std::string name = "in" + std::to_string(leaves.size());
    leaves.push_back({graph.add({.op = Op::kInput, .results = {input.type}, .name = name}), 0});
    in.push_back(&input);
  }
  const Node& node = graph.node(graph.add({.op = op, .inputs = leaves, .attrs = attrs}));
  if (exact) return evaluate_node(graph, node, in, /*round_f32=*/false);
  EXPECT_TRUE(std::string(select_kernel(graph, node).name).starts_with(op_name(op)));
  const auto bytes = run_node(graph, node, inputs);
  std::vector<RefTensor> results;
  for (size_t i = 0; i < node.results.size(); ++i) results.push_back(load_tensor(node.results[i], bytes[i].data()));
  return results;
}

// LAMB as train/optimizer.cc composes it; scalars: lr, step, clip, finite.
std::vector<RefTensor> lamb_step(const Attrs& attrs, const std::vector<RefTensor>& state,
                                 const std::vector<double>& gradient, std::vector<double> scalars, bool exact) {
  const auto one = [](double value) { return RefTensor{{DType::kF32, {1}}, {value}}; };
  const std::vector<double> direction_scalars(scalars.begin() + 1, scalars.end());
  const auto moved =
      run(Op::kAdamDirection, attrs, inputs_of(Op::kAdamDirection, state, gradient, direction_scalars), exact);
  RefTensor rate = one(scalars[0]);
  if (attrs.get<double>("weight_decay") != 0)
    rate = run(Op::kTrustRatio, {},
               {run(Op::kSquareSum, {}, {state[0]}, exact)[0], run(Op::kSquareSum, {}, {moved[0]}, exact)[0], rate},
               exact)[0];
  const auto stepped = run(Op::kSgd, {{"momentum", 0.0}, {"weight_decay", 0.0}},
                           {state[0], moved[0], rate, one(scalars[1]), one(1), one(scalars[3])}, exact);
  return {stepped[0], moved[1], moved[2]};
}

TEST(Updates, EqualTorchs) {
  const std::string path = source_dir() + "/src/kernels/cpu/optimiser/testdata/torch_updates.json";
  const nlohmann::json table = parse_json(read_file(path), path);
  ASSERT_GE(table["cases"].size(), 8u);
  for (const nlohmann::json& c : table["cases"]) {
    const std::optional<Op> op = find_op(c["op"].get<std::string>());  // none: LAMB
    const Attrs attrs = attrs_of(c["attrs"]);
    for (const bool exact : {true, false}) {
      const double tolerance = exact ? 1e-13 : 2e-6;  // five steps of a few roundings each
      SCOPED_TRACE(c["op"].get<std::string>() + c["attrs"].dump() + (exact ? ", reference" : ", fast row"));
      const auto param = c["param"].get<std::vector<double>>();
      const TensorType type{DType::kF32, {static_cast<int64_t>(param.size())}};
      std::vector<RefTensor> state = {{type, param}};
      for (size_t m = 0; m < c["steps"][0]["moments"].size(); ++m)
        state.push_back({type, std::vector<double>(param.size())});
      double number = 0;
      for (const nlohmann::json& wanted : c["steps"]) {
        const std::vector<double> scalars = {wanted["lr"].get<double>(), ++number, c["clip"].get<double>(), 1};
        const auto gradient = wanted["gradient"].get<std::vector<double>>();
        const size_t tensors = state.size();
        state = op ? run(*op, attrs, inputs_of(*op, state, gradient, scalars), exact)
                   : lamb_step(attrs, state, gradient, scalars, exact);
        state.resize(tensors);
        for (size_t s = 0; s < state.size(); ++s) {
          const auto values = (s == 0 ? wanted["param"] : wanted["moments"][s - 1]).get<std::vector<double>>();
          for (size_t i = 0; i < values.size(); ++i)
            ASSERT_NEAR(state[s].values[i], values[i], tolerance * std::max(1.0, std::abs(values[i])))
                << "step " << number << ", tensor " << s << ", element " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace octet::cpu
