#include "kernels/cuda/activation/fusion_cases.h"

#include <cmath>
#include <map>

#include "ir/builder.h"

namespace octet::cuda {
namespace {

bool has(const std::string& kind, const char* part) { return kind.find(part) != std::string::npos; }

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
  const bool grad = has(f.kind, "grad"), swiglu = has(f.kind, "swiglu");
  std::vector<cpu::CaseInput> list = {matrix};
  if (has(f.kind, "bias_gelu")) list.push_back(cpu::normal(DType::kF32, {f.cols}));
  if (f.sliced) return list;
  if (swiglu || has(f.kind, "geglu") || has(f.kind, "gelu_grad")) list.push_back(matrix);
  if (swiglu && grad) list.push_back(matrix);
  if (swiglu && grad && f.keeps_silu) list.push_back(matrix);
  if (has(f.kind, "quantize") && f.scaling == "tensor") {
    list.push_back(cpu::given(DType::kF32, {1}, {37.25}));
    if (swiglu && grad) list.push_back(cpu::given(DType::kF32, {1}, {12.5}));
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
  const Attrs form = {{"approximate", f.tanh_form}};
  const bool grad = has(f.kind, "grad");
  std::vector<std::pair<std::string, Value>> ends;  // suffix of the last members' names, what they read
  const Value whole = body.leaf();
  Value x = whole;
  const auto up_leaf = [&] {
    return f.sliced ? body.builder().slice(whole, 1, f.cols + 8, 2 * f.cols + 8) : body.leaf();
  };
  if (f.sliced) x = body.builder().slice(whole, 1, 0, f.cols);
  if (f.kind.starts_with("swiglu") && grad) {
    const Value up = body.leaf(), dy = body.leaf();
    const Value silu = f.keeps_silu ? body.leaf() : body.member("silu", Op::kSilu, {x});
    const Value dsilu = body.member("dsilu", Op::kMul, {dy, up});
    ends = {{"_dgate", body.member("dgate", Op::kSiluGrad, {x, dsilu})},
            {"_dup", body.member("dup", Op::kMul, {dy, silu})}};
  } else if (f.kind.starts_with("swiglu")) {
    const Value up = up_leaf(), silu = body.member("silu", Op::kSilu, {x});
    ends = {{"", body.member("mul", Op::kMul, {silu, up})}};
  } else if (f.kind.starts_with("geglu")) {
    const Value up = up_leaf(), gelu = body.member("gelu", Op::kGelu, {x}, form);
    ends = {{"", body.member("mul", Op::kMul, {gelu, up})}};
  } else if (f.kind.starts_with("relu")) {
    ends = {{"", body.member("relu", Op::kRelu, {x})}};
  } else if (f.kind.starts_with("gelu_grad")) {
    const Value dy = body.leaf();
    ends = {{"", body.member("gelu_grad", Op::kGeluGrad, {x, dy}, form)}};
  } else if (f.kind.starts_with("bias_grad")) {
    ends = {{"", x}};
  } else {
    const Value sum = has(f.kind, "bias") ? body.member("bias", Op::kAdd, {x, body.leaf()}) : x;
    ends = {{"", body.member("gelu", Op::kGelu, {sum}, form)}};
  }
  const auto reduce = [](const char* kind, const char* axis) {
    return Attrs{{"kind", std::string(kind)}, {"axis", std::string(axis)}};
  };
  for (const auto& [suffix, y] : ends) {
    if (grad && has(f.kind, "bias")) body.member("bias_grad" + suffix, Op::kReduce, {y}, reduce("sum", "rows"));
    if (has(f.kind, "amax")) body.member("amax" + suffix, Op::kReduce, {y}, reduce("amax", "all"));
    if (!has(f.kind, "quantize")) continue;
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
              .attrs = {{"kind", f.kind}},
              .dtypes = f.dtypes,
              .gradient = false};
  if (has(f.kind, "quantize")) c.name += "_" + f.scaling + "_" + dtype_name(f.format);
  if ((has(f.kind, "gelu") || has(f.kind, "geglu")) && !f.tanh_form) c.name += "_erf";
  if (f.special) c.name += "_special";
  if (f.sliced) c.name += "_sliced";
  if (has(f.kind, "swiglu_grad") && !f.keeps_silu) c.name += "_again";
  c.body = [f](const std::vector<TensorType>& types) { return make_body(f, types); };
  return c;
}

}  // namespace octet::cuda
