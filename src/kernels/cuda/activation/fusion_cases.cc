#include "kernels/cuda/activation/fusion_cases.h"

#include <cmath>
#include <map>

#include "ir/builder.h"

namespace octet::cuda {
namespace {

bool has(const ActivationFusion& f, const char* part) { return f.kind.find(part) != std::string::npos; }

// A matrix whose first rows are zeros, and hold an infinity, NaNs, values near the largest and below the smallest
// normal number of bf16.
cpu::CaseInput special_matrix(int64_t rows, int64_t cols) {
  cpu::CaseInput matrix = cpu::x({rows, cols}, 2.0);
  matrix.fill = [rows, cols, normal = matrix.fill](Philox& random, std::vector<double>& values) {
    normal(random, values);
    const auto at = [&](int64_t r, int64_t c) -> double& { return values[static_cast<size_t>(r * cols + c)]; };
    for (int64_t c = 0; c < cols; ++c) {
      at(0, c) = c % 2 == 0 ? 0.0 : -0.0;
      if (rows > 4) at(4, c) *= 1e-39;
    }
    if (rows > 1) at(1, cols / 2) = INFINITY;
    if (rows > 2) at(2, 0) = NAN, at(2, cols - 1) = std::copysign(NAN, -1.0);
    if (rows > 3) at(3, cols - 1) = 3e38, at(3, 0) = -3e38;
    if (rows > 5) at(5, cols / 3) = -INFINITY;
  };
  return matrix;
}

// The inputs in the order make_body() takes them.
std::vector<cpu::CaseInput> operands(const ActivationFusion& f) {
  const int64_t cols = f.sliced ? 2 * f.cols + 8 : f.cols;
  const cpu::CaseInput matrix = f.special ? special_matrix(f.rows, cols) : cpu::x({f.rows, cols}, 2.0);
  const bool grad = has(f, "grad"), gated = has(f, "gated");
  std::vector<cpu::CaseInput> list = {matrix};
  if (has(f, "bias")) list.push_back(cpu::normal(DType::kF32, {f.cols}));
  if (f.sliced) return list;
  if (gated) list.push_back(matrix);
  if (grad) list.push_back(matrix);
  if (grad && (gated || has(f, "squared")) && f.keeps_activation) list.push_back(matrix);
  if (has(f, "quantize") && f.scaling == "tensor") {
    list.push_back(cpu::given(DType::kF32, {1}, {37.25}));
    if (gated && grad) list.push_back(cpu::given(DType::kF32, {1}, {12.5}));
  }
  return list;
}

class Body {
 public:
  Body(const std::string& kind, const std::vector<TensorType>& types) : graph_(kind), types_(types) {}
  Builder builder() { return Builder(graph_); }
  Value leaf() {
    const auto i = static_cast<size_t>(leaves_++);
    return {graph_.add({.op = Op::kInput, .results = {types_[i]}, .name = fmt::format("leaf.{}", i)}), 0};
  }
  Value member(const std::string& name, Op op, std::vector<Value> inputs, Attrs attrs = {}) {
    made_[name] = graph_.add({.op = op, .inputs = std::move(inputs), .attrs = std::move(attrs), .name = name});
    return {made_[name], 0};
  }
  Graph take(const std::vector<std::string>& outputs) {
    for (const std::string& name : outputs) {
      const size_t dot = name.find('.');
      graph_.outputs().push_back({name, {made_.at(name.substr(0, dot)), std::stoi(name.substr(dot + 1))}});
    }
    return std::move(graph_);
  }

 private:
  Graph graph_;
  const std::vector<TensorType>& types_;
  int leaves_ = 0;
  std::map<std::string, NodeId> made_;
};

Graph make_body(const ActivationFusion& f, const std::vector<TensorType>& types) {
  Body body(f.kind, types);
  const bool gelu = has(f, "gelu"), silu = has(f, "silu"), gated = has(f, "gated"), squared = has(f, "squared");
  const Op op = gelu ? Op::kGelu : silu ? Op::kSilu : Op::kRelu;
  const Op grad_op = gelu ? Op::kGeluGrad : silu ? Op::kSiluGrad : Op::kReluGrad;
  const Attrs form = gelu ? Attrs{{"approximate", f.tanh_form}} : Attrs{};
  std::vector<std::pair<std::string, Value>> ends;  // suffix of the sinks' names, what they read
  const Value whole = body.leaf();
  Value x = f.sliced ? body.builder().slice(whole, 1, 0, f.cols) : whole;
  if (has(f, "plain")) {
    ends = {{"", x}};
  } else if (has(f, "grad")) {
    Value up;
    if (gated) up = body.leaf();
    const Value dy = body.leaf();
    Value da = dy, act;
    if (gated || squared) act = f.keeps_activation ? body.leaf() : body.member("act", op, {x}, form);
    if (gated) da = body.member("da", Op::kMul, {dy, up});
    if (squared) {
      const Value product = body.member("product", Op::kMul, {dy, act});
      da = body.member("da", Op::kAdd, {product, product});
    }
    ends = {{gated ? "_dx" : "", body.member("dx", grad_op, {x, da}, form)}};
    if (gated) ends.emplace_back("_dup", body.member("dup", Op::kMul, {dy, act}));
  } else {
    if (has(f, "bias")) x = body.member("bias", Op::kAdd, {x, body.leaf()});
    const Value act = body.member("act", op, {x}, form);
    Value y = act;
    if (squared) y = body.member("y", Op::kMul, {act, act});
    if (gated) {
      const Value up = f.sliced ? body.builder().slice(whole, 1, f.cols + 8, 2 * f.cols + 8) : body.leaf();
      y = body.member("y", Op::kMul, {act, up});
    }
    ends = {{"", y}};
  }
  const auto reduce = [](const char* kind, const char* axis) {
    return Attrs{{"reduction", std::string(kind)}, {"axis", std::string(axis)}};
  };
  for (const auto& [suffix, y] : ends) {
    if (has(f, "sum")) body.member("sum" + suffix, Op::kReduce, {y}, reduce("sum", "rows"));
    if (has(f, "amax")) body.member("amax" + suffix, Op::kReduce, {y}, reduce("amax", "all"));
    if (!has(f, "quantize")) continue;
    std::vector<Value> in = {y};
    if (f.scaling == "tensor") in.push_back(body.leaf());
    body.member(
        "quantize" + suffix, Op::kQuantize, in,
        {{"format", std::string(dtype_name(f.format))}, {"scaling", f.scaling}, {"pow2", f.scaling == "1x128"}});
  }
  return body.take(f.results);
}

}  // namespace

cpu::Case activation_fusion_case(const ActivationFusion& f) {
  cpu::Case c{.op = Op::kFusion,
              .name = fmt::format("{}_{}x{}", f.kind, f.rows, f.cols),
              .inputs = operands(f),
              .dtypes = f.dtypes,
              .gradient = false};
  if (has(f, "quantize")) c.name += "_" + f.scaling + "_" + dtype_name(f.format);
  if (has(f, "gelu") && !f.tanh_form) c.name += "_erf";
  if (f.special) c.name += "_special";
  if (f.sliced) c.name += "_sliced";
  if (!f.keeps_activation) c.name += "_again";
  c.body = [f](const std::vector<TensorType>& types) { return make_body(f, types); };
  return c;
}

}  // namespace octet::cuda
