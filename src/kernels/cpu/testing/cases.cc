// Case generators, tolerances, and the graph of one node that every use of the case list starts from.
#include "kernels/cpu/testing/cases.h"

#include <iterator>

namespace octet::cpu {
namespace {

// FNV-1a: the seed depends on the case's own name only, so that adding cases does not change others.
uint64_t seed_of(const std::string& name) {
  uint64_t hash = 14695981039346656037ull;
  for (char ch : name) hash = (hash ^ static_cast<uint8_t>(ch)) * 1099511628211ull;
  return hash;
}

}  // namespace

const std::vector<Case>& all_cases() {
  static const std::vector<Case> cases = [] {
    std::vector<Case> all;
    for (auto family :
         {elementwise_cases, matmul_cases, norm_cases, attention_cases, position_cases, embedding_cases, loss_cases,
          shape_cases, precision_cases, optimiser_cases, inference_cases, sampling_cases, experts_cases}) {
      std::vector<Case> list = family();
      std::move(list.begin(), list.end(), std::back_inserter(all));
    }
    return all;
  }();
  return cases;
}

std::string case_name(const Case& c, DType dtype) {
  return fmt::format("{}/{}/{}", op_name(c.op), c.name, dtype_name(dtype));
}

std::vector<const RefTensor*> BuiltCase::in() const {
  std::vector<const RefTensor*> result;
  for (size_t i = 0; i < inputs.size(); ++i) {
    result.push_back(node().inputs[i].exists() ? &inputs[i] : nullptr);
  }
  return result;
}

BuiltCase build_case(const Case& c, DType dtype, bool fill) {
  BuiltCase built;
  Node node{.op = c.op, .attrs = c.attrs, .name = c.name};
  const uint64_t seed = seed_of(std::string(op_name(c.op)) + "/" + c.name);
  std::vector<TensorType> types;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    const CaseInput& input = c.inputs[i];
    built.inputs.emplace_back();
    if (input.absent) {
      node.inputs.push_back(Value::none());
      continue;
    }
    const TensorType type{input.dtype.value_or(dtype), input.shape};
    const NodeId leaf = built.graph.add(
        {.op = input.constant ? Op::kParam : Op::kInput, .results = {type}, .name = fmt::format("in{}", i)});
    node.inputs.push_back({leaf, 0});
    types.push_back(type);
    if (!fill) continue;
    RefTensor& tensor = built.inputs.back();
    tensor = {type, std::vector<double>(static_cast<size_t>(type.shape.elements()))};
    Philox random(seed, i);
    input.fill(random, tensor.values);
    round_values(tensor, true);
  }
  if (c.body) {
    node.body = std::make_shared<const Graph>(c.body(types));
    for (const NamedValue& output : node.body->outputs()) node.results.push_back(node.body->type(output.value));
  }
  built.id = built.graph.add(std::move(node));
  const auto results = static_cast<int32_t>(built.node().results.size());
  for (int32_t r = 0; r < results; ++r) built.graph.outputs().push_back({fmt::format("out{}", r), {built.id, r}});
  if (fill && c.prepare) {
    c.prepare(built.node(), built.inputs);
    for (size_t i = 0; i < built.inputs.size(); ++i) {
      if (!c.inputs[i].absent) round_values(built.inputs[i], true);
    }
  }
  return built;
}

CaseInput x(Shape shape, double std) {
  return {.dtype = {}, .shape = std::move(shape), .fill = [std](Philox& random, std::vector<double>& values) {
            for (double& value : values) value = std * random.normal();
          }};
}

CaseInput normal(DType dtype, Shape shape, double std) {
  CaseInput input = x(std::move(shape), std);
  input.dtype = dtype;
  return input;
}

CaseInput uniform(DType dtype, Shape shape, double low, double high) {
  return {.dtype = dtype, .shape = std::move(shape), .fill = [low, high](Philox& random, std::vector<double>& values) {
            for (double& value : values) value = low + (high - low) * random.uniform();
          }};
}

CaseInput integers(DType dtype, Shape shape, int64_t low, int64_t high) {
  return {.dtype = dtype, .shape = std::move(shape), .fill = [low, high](Philox& random, std::vector<double>& values) {
            for (double& value : values) {
              value = static_cast<double>(low + static_cast<int64_t>(random.below(static_cast<uint64_t>(high - low))));
            }
          }};
}

CaseInput given(DType dtype, Shape shape, std::vector<double> values) {
  CaseInput input = given_x(std::move(shape), std::move(values));
  input.dtype = dtype;
  return input;
}

CaseInput given_x(Shape shape, std::vector<double> values) {
  check(shape.elements() == static_cast<int64_t>(values.size()), ErrorCode::kInternal, "case input {}: {} values given",
        to_string(shape), values.size());
  return {.dtype = {}, .shape = std::move(shape), .fill = [values](Philox&, std::vector<double>& target) {
            target = values;
          }};
}

CaseInput rng_state() { return given(DType::kI64, {3}, {20240607, 3, 1}); }

CaseInput codes(DType format, Shape shape) {
  return {.dtype = format, .shape = std::move(shape), .fill = [format](Philox& random, std::vector<double>& values) {
            for (double& value : values) {
              do {
                const auto byte = static_cast<uint8_t>(random.next_u32());
                value = load_element(format, &byte, 0);
              } while (!(std::fabs(value) <= dtype_max(format)));
            }
          }};
}

CaseInput absent() { return {.absent = true}; }

Tolerance exact() { return {}; }

Tolerance transcendental() {
  return {.relative = 4e-6,
          .absolute = 1e-6,
          .reason = "float32 polynomials for exp, erf and tanh: a few ulp, then one product"};
}

Tolerance accumulated(int64_t n) {
  return {.relative = 1e-6,
          .absolute = 1.2e-7 * static_cast<double>(n < 16 ? 16 : n),
          .reason = "float32 sum of n products of values near 1 in any order: n half-ulps of the partial sums"};
}

}  // namespace octet::cpu
