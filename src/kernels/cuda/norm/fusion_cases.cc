#include "kernels/cuda/norm/fusion_cases.h"

#include <map>

namespace octet::cuda {
namespace {

class Body {
 public:
  explicit Body(const std::string& kind) : graph_(kind) {}
  void leaf(const std::string& name, const TensorType& type) {
    made_[name] = graph_.add({.op = Op::kInput, .results = {type}, .name = name});
  }
  // Inputs are "leaf" or "member.result".
  void member(const std::string& name, Op op, const std::vector<std::string>& inputs, Attrs attrs = {}) {
    Node node{.op = op, .attrs = std::move(attrs), .name = name};
    for (const std::string& input : inputs) node.inputs.push_back(value(input));
    made_[name] = graph_.add(std::move(node));
  }
  void output(const std::string& name) { graph_.outputs().push_back({name, value(name)}); }
  Graph take() { return std::move(graph_); }

 private:
  Value value(const std::string& name) const {
    if (const auto leaf = made_.find(name); leaf != made_.end()) return {leaf->second, 0};
    const size_t dot = name.find('.');
    return {made_.at(name.substr(0, dot)), std::stoi(name.substr(dot + 1))};
  }
  Graph graph_;
  std::map<std::string, NodeId> made_;
};

struct Operand {
  std::string name;
  cpu::CaseInput input;
};

bool has(const std::string& kind, const char* part) { return kind.find(part) != std::string::npos; }

std::vector<Operand> operands(const NormFusion& f) {
  const Shape shape{f.rows, f.cols};
  const cpu::CaseInput channels = cpu::normal(DType::kF32, {f.cols}), statistic = cpu::normal(DType::kF32, {f.rows});
  std::vector<Operand> list = {{"x", cpu::x(shape)}, {"weight", channels}};
  if (has(f.kind, "grad")) {
    if (f.layer) list.push_back({"mean", statistic});
    list.push_back({"rstd", cpu::uniform(DType::kF32, {f.rows}, 0.5, 1.5)});
    list.push_back({"dy", cpu::x(shape)});
  } else if (f.layer) {
    list.push_back({"bias", channels});
  }
  if (has(f.kind, "add")) list.push_back({"addend", cpu::x(shape)});
  if (has(f.kind, "quantize") && f.scaling == "tensor") {
    list.push_back({"scale", cpu::given(DType::kF32, {1}, {37.25})});
  }
  return list;
}

Graph make_body(const NormFusion& f, const std::vector<Operand>& list, const std::vector<TensorType>& types) {
  Body body(f.kind);
  for (size_t i = 0; i < list.size(); ++i) body.leaf(list[i].name, types[i]);
  const Attrs eps = {{"eps", 1e-5}};
  if (has(f.kind, "grad")) {
    if (f.layer) {
      body.member("norm_grad", Op::kLayerNormGrad, {"x", "weight", "mean", "rstd", "dy"});
    } else {
      body.member("norm_grad", Op::kRmsNormGrad, {"x", "weight", "rstd", "dy"});
    }
    body.member("add", Op::kAdd, {"addend", "norm_grad.0"});
  } else {
    const bool add = has(f.kind, "add");
    if (add) body.member("add", Op::kAdd, {"x", "addend"});
    std::vector<std::string> in = {add ? "add.0" : "x", "weight"};
    if (f.layer) in.push_back("bias");
    body.member("norm", f.layer ? Op::kLayerNorm : Op::kRmsNorm, in, eps);
  }
  const std::string last = has(f.kind, "grad") ? "add.0" : "norm.0";
  if (has(f.kind, "amax")) {
    body.member("amax", Op::kReduce, {last}, {{"reduction", std::string("amax")}, {"axis", std::string("all")}});
  }
  if (has(f.kind, "bias")) {
    body.member("bias_grad", Op::kReduce, {last}, {{"reduction", std::string("sum")}, {"axis", std::string("rows")}});
  }
  if (has(f.kind, "quantize")) {
    std::vector<std::string> in = {last};
    if (f.scaling == "tensor") in.push_back("scale");
    body.member(
        "quantize", Op::kQuantize, in,
        {{"format", std::string(dtype_name(f.format))}, {"scaling", f.scaling}, {"pow2", f.scaling == "1x128"}});
  }
  for (const std::string& name : f.results) body.output(name);
  return body.take();
}

}  // namespace

cpu::Case norm_fusion_case(const NormFusion& f) {
  const std::vector<Operand> list = operands(f);
  cpu::Case c{.op = Op::kFusion,
              .name = fmt::format("{}_{}_{}x{}", f.kind, f.layer ? "layer" : "rms", f.rows, f.cols),
              .gradient = false};
  if (has(f.kind, "quantize")) c.name += "_" + f.scaling + "_" + dtype_name(f.format);
  for (const Operand& operand : list) c.inputs.push_back(operand.input);
  c.body = [f, list](const std::vector<TensorType>& types) { return make_body(f, list, types); };
  return c;
}

}  // namespace octet::cuda
