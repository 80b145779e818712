#include "kernels/cuda/precision/group_cases.h"

#include <limits>

namespace octet::cuda {
namespace {

// A body of nodes with two inputs of their own each, and one more that all share where their number is odd; `dropped`
// says which results are unused.
template <typename Dropped>
Graph pairs_body(const std::string& kind, const char* member, Op op, const std::vector<TensorType>& types,
                 const std::function<Attrs(size_t)>& attrs, const Dropped& dropped) {
  Graph body(kind);
  std::vector<Value> leaves;
  for (const TensorType& type : types) {
    const std::string name = "leaf" + std::to_string(leaves.size());
    leaves.push_back({body.add({.op = Op::kInput, .results = {type}, .name = name}), 0});
  }
  for (size_t i = 0; i + 1 < leaves.size(); i += 2) {
    const std::string name = fmt::format("{}{}", member, i / 2);
    std::vector<Value> inputs = {leaves[i], leaves[i + 1]};
    if (leaves.size() % 2 != 0) inputs.push_back(leaves.back());
    const NodeId id = body.add({.op = op, .inputs = std::move(inputs), .attrs = attrs(i / 2), .name = name});
    for (size_t r = 0; r < body.node(id).results.size(); ++r) {
      if (!dropped(i / 2, r)) body.outputs().push_back({fmt::format("{}.{}", name, r), {id, static_cast<int32_t>(r)}});
    }
  }
  return body;
}

}  // namespace

cpu::Case update_scales_group_case(int count, int64_t length, const std::string& algo,
                                   const std::vector<double>& finite) {
  cpu::Case c{
      .op = Op::kFusion, .name = fmt::format("update_scales_group_{}_{}_{}", count, length, algo), .gradient = false};
  for (int i = 0; i < count; ++i) {
    c.inputs.push_back(cpu::uniform(DType::kF32, {length}, 0, 300.0 / (i + 1)));
    const double odd = i % 3 == 0 ? std::numeric_limits<double>::quiet_NaN() : 0.0;  // leave the history as it is
    c.inputs.push_back(cpu::given(DType::kF32, {1}, {i % 5 == 4 ? odd : 100.0 / (i + 1)}));
  }
  for (double value : finite) c.inputs.push_back(cpu::given(DType::kF32, {1}, {value}));
  c.body = [algo](const std::vector<TensorType>& types) {
    const auto attrs = [&](size_t i) {
      return Attrs{{"format", std::string(i % 2 == 0 ? "e4m3" : "e5m2")}, {"algo", algo}};
    };
    return pairs_body("update_scales_group", "scale", Op::kUpdateScales, types, attrs,
                      [](size_t i, size_t r) { return i % 3 == 2 && r != 1; });
  };
  return c;
}

cpu::Case maximum_group_case(int count) {
  cpu::Case c{.op = Op::kFusion, .name = fmt::format("maximum_group_{}", count), .gradient = false};
  for (int i = 0; i < count; ++i) {
    const double right = i + 1 == count ? std::numeric_limits<double>::quiet_NaN() : 2.0 + i % 3;
    c.inputs.push_back(cpu::given(DType::kF32, {1}, {3.0 + i % 2}));
    c.inputs.push_back(cpu::given(DType::kF32, {1}, {right}));
  }
  c.body = [](const std::vector<TensorType>& types) {
    return pairs_body(
        "maximum_group", "maximum", Op::kMaximum, types, [](size_t) { return Attrs{}; },
        [](size_t, size_t) { return false; });
  };
  return c;
}

}  // namespace octet::cuda
