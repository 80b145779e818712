#include "passes/precision_plan.h"

#include "base/error.h"

namespace octet {
namespace {

// Products with weights that the recipe decides on: those of linears, and of the output head where it says so.
bool is_planned_gemm(const Node& node, bool with_head) {
  if (node.op != Op::kMatmul || !node.attrs.has("gemm") || !node.attrs.has("role")) return false;
  return with_head || !node.attr<bool>("head");
}

// Why this shape cannot run in FP8 on the target, or "". Any number of tokens can: only weight gradients contract over
// them, and a weight has one form in all graphs of a serving program.
std::string unsupported_shape(const GemmPlan& gemm, const Target& target, bool serving) {
  int64_t align = target.fp8_alignment;
  bool m_fits = serving || gemm.m % align == 0;
  if (align <= 1 || (m_fits && gemm.n % align == 0 && gemm.k % align == 0)) return "";
  return fmt::format("{}x{}x{} (M x N x K) is not a multiple of {} in every dim, as {} needs for FP8", gemm.m, gemm.n,
                     gemm.k, align, target.name);
}

}  // namespace

DType quantized_format(const Recipe& recipe, Quantization quantization) {
  return quantization.gradient && quantization.scaling != Scaling::kBlock ? recipe.gradient_format
                                                                          : recipe.forward_format;
}

PrecisionPlan plan_precision(const Graph& graph, const CompileOptions& options, bool serving) {
  PrecisionPlan plan;
  std::unordered_map<std::string, Value> activations;  // the x of each linear
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(NodeId{i});
    if (!is_planned_gemm(node, serving && options.recipe.head)) continue;
    GemmPlan gemm;
    gemm.gemm = node.attr<std::string>("gemm");
    gemm.role = parse_gemm_role(node.attr<std::string>("role"));
    gemm.wanted = options.recipe.decide(gemm.gemm, gemm.role);
    gemm.used = gemm.wanted;
    const Shape& a = graph.shape(node.inputs[0]);
    gemm.m = node.results[0].shape.rows();
    gemm.n = node.results[0].shape.cols();
    gemm.k = node.attr<bool>("trans_a") ? a.rows() : a.cols();
    if (gemm.wanted.codes) gemm.reason = unsupported_shape(gemm, options.target, serving);
    if (!gemm.reason.empty()) gemm.used = {};
    if (gemm.role == GemmRole::kFprop) activations.emplace(gemm.gemm, node.inputs[0]);
    for (int side = 0; side < 2; ++side) {
      Value value = node.inputs[static_cast<size_t>(side)];
      auto x = activations.find(gemm.gemm);
      bool forward = gemm.role == GemmRole::kFprop || (x != activations.end() && x->second == value);
      OperandKind kind = graph.node(value).op == Op::kParam ? OperandKind::kWeight
                         : forward                          ? OperandKind::kActivation
                                                            : OperandKind::kGradient;
      gemm.operands[side] = kind;
      if (kind == OperandKind::kWeight) {
        gemm.operand_names[side] = graph.node(value).name;
        continue;
      }
      bool gradient = kind == OperandKind::kGradient;
      gemm.operand_names[side] = plan.keys.emplace(value, gemm.gemm + (gradient ? ".dy" : ".x")).first->second;
      if (gemm.used.codes) plan.quantizations[value].insert({gemm.used.scaling, gradient});
    }
    plan.order.push_back(NodeId{i});
    plan.gemms.emplace(i, std::move(gemm));
  }
  return plan;
}

}  // namespace octet
