// The rows of the norms: which nodes and fusions the kernels take, and where their operands are.
#include <algorithm>

#include "kernels/cuda/context.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/fusion_body.h"
#include "kernels/cuda/norm/norm.h"
#include "precision/recipe.h"

namespace octet::cuda {
namespace {

bool is_activation(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

bool is_layer(const Node& node) { return node.op == Op::kLayerNorm || node.op == Op::kLayerNormGrad; }

bool accepts_norm(const Graph& graph, const Node& node) {
  return is_activation(node.results[0].dtype) && std::all_of(node.inputs.begin(), node.inputs.end(), [&](Value input) {
           return is_activation(graph.dtype(input));
         });
}

// What the node says of the call; pointers come with the arguments.
NormForward describe_norm(DeviceContext& context, const Graph& graph, const Node& norm) {
  NormForward call{.dtype = norm.results[0].dtype,
                   .weight_dtype = graph.dtype(norm.inputs[1]),
                   .layer = is_layer(norm),
                   .rows = norm.results[0].shape.rows(),
                   .cols = norm.results[0].shape.cols(),
                   .eps = static_cast<float>(norm.attrs.get<double>("eps")),
                   .counters = context.counters()};
  if (call.layer) call.bias_dtype = graph.dtype(norm.inputs[2]);
  return call;
}

NormPlan plan_of(const DeviceContext& context, const NormForward& call, bool adds) {
  return choose_norm({.rows = call.rows, .cols = call.cols, .dtype = call.dtype, .adds = adds}, context.facts());
}

BoundKernel bind_norm(DeviceContext& context, const Graph& graph, const Node& node) {
  const NormForward fixed = describe_norm(context, graph, node);
  const NormPlan plan = plan_of(context, fixed, false);
  BoundKernel kernel = [call = fixed, plan](const KernelArgs& args) mutable {
    call.x = args.in[0].data, call.weight = args.in[1].data;
    if (call.layer) call.bias = args.in[2].data;
    call.y = args.out[0].data;
    call.mean = call.layer ? args.out[1].as<float>() : nullptr;
    call.rstd = args.out[call.layer ? 2 : 1].as<float>();
    launch_norm(call, plan, args.stream);
  };
  kernel.variant = [plan](const KernelArgs&) { return to_string(plan); };
  return kernel;
}

NormGradient describe_gradient(const Graph& graph, const Node& node) {
  return {.dtype = node.results[0].dtype,
          .weight_dtype = graph.dtype(node.inputs[1]),
          .layer = is_layer(node),
          .rows = node.results[0].shape.rows(),
          .cols = node.results[0].shape.cols()};
}

NormGradientPlan gradient_plan(const DeviceContext& context, const Node& grad, bool adds) {
  const TensorType& dx = grad.results[0];
  return choose_norm_gradient({.rows = dx.shape.rows(), .cols = dx.shape.cols(), .dtype = dx.dtype, .adds = adds},
                              context.facts());
}

int64_t gradient_workspace(DeviceContext& context, const Graph&, const Node& node) {
  return norm_gradient_scratch(gradient_plan(context, node, false), node.results[0].shape.cols(),
                               is_layer(node) ? 2 : 1);
}

BoundKernel bind_gradient(DeviceContext& context, const Graph& graph, const Node& node) {
  const NormGradientPlan plan = gradient_plan(context, node, false);
  BoundKernel kernel = [call = describe_gradient(graph, node), plan](const KernelArgs& args) mutable {
    call.x = args.in[0].data, call.weight = args.in[1].data;
    call.mean = call.layer ? args.in[2].as<float>() : nullptr;
    call.rstd = args.in[call.layer ? 3 : 2].as<float>();
    call.dy = args.in[call.layer ? 4 : 3].data;
    call.dx = args.out[0].data;
    call.dweight = args.out[1].as<float>();
    call.dbias = call.layer ? args.out[2].as<float>() : nullptr;
    call.partials = reinterpret_cast<float*>(args.workspace.data());
    launch_norm_gradient(call, plan, args.stream);
  };
  kernel.variant = [plan](const KernelArgs&) { return to_string(plan); };
  return kernel;
}

// --- fusions

bool same_types(const Graph& graph, const Node& node) {
  return std::all_of(node.inputs.begin(), node.inputs.end(),
                     [&](Value input) { return graph.type(input) == node.results[0]; });
}

CodeScaling scaling_of(const Node& quantize) {
  const std::string scaling = quantize.attrs.get_or<std::string>("scaling", "tensor");
  if (scaling == "tensor") return CodeScaling::kTensor;
  if (scaling == "row") return CodeScaling::kRow;
  return scaling == "1x128" ? CodeScaling::kRow128 : CodeScaling::kNone;
}

// (add,) norm (, quantize or amax)
bool accepts_norm_fusion(const Graph&, const Node& node) {
  const std::optional<Chain> chain = chain_of(node, Producer::kNorm);
  if (!chain || chain->sinks[0].column_sum != nullptr) return false;
  const FusionBody body(node);
  if (!accepts_norm(body.graph(), *chain->core) || !norm_fits_registers(chain->core->results[0].shape.cols()))
    return false;
  if (chain->residual != nullptr && !same_types(body.graph(), *chain->residual)) return false;
  const Node* quantize = chain->sinks[0].quantize;
  if (quantize == nullptr) return true;
  const CodeScaling scaling = scaling_of(*quantize);
  const bool transposed = body.result(*quantize, 2) >= 0 || body.result(*quantize, 3) >= 0;
  if (scaling == CodeScaling::kTensor && body.input(*quantize, 1) < 0) return false;
  return chain->sinks[0].amax == nullptr && scaling != CodeScaling::kNone &&
         !(scaling == CodeScaling::kRow && transposed);
}

int64_t norm_fusion_workspace(DeviceContext&, const Graph&, const Node& node) {
  const Chain chain = chain_of(node, Producer::kNorm).value();
  return chain.sinks[0].quantize == nullptr ? 0 : 2 * chain.core->results[0].shape.rows() * int64_t{sizeof(float)};
}

// Positions among the arguments; -1: not there.
struct NormPlaces : SinkPlaces {
  int x, addend = -1, weight, bias = -1;
  int sum = -1, y, mean = -1, rstd;

  NormPlaces(const FusionBody& body, const Chain& chain) : SinkPlaces(body, chain.sinks[0]) {
    const Node &norm = *chain.core, *add = chain.residual;
    const bool layer = is_layer(norm);
    x = body.input(norm, 0), weight = body.input(norm, 1), y = body.result(norm, 0);
    if (layer) bias = body.input(norm, 2), mean = body.result(norm, 1);
    rstd = body.result(norm, layer ? 2 : 1);
    if (add != nullptr) x = body.input(*add, 0), addend = body.input(*add, 1), sum = body.result(*add, 0);
  }
};

BoundKernel bind_norm_fusion(DeviceContext& context, const Graph&, const Node& node) {
  const FusionBody body(node);
  const Chain chain = chain_of(node, Producer::kNorm).value();
  NormForward fixed = describe_norm(context, body.graph(), *chain.core);
  if (const Node* quantize = chain.sinks[0].quantize; quantize != nullptr) {
    fixed.quantize.scaling = scaling_of(*quantize);
    fixed.quantize.format = quantize->results[0].dtype;
    fixed.quantize.format_max = static_cast<float>(dtype_max(fixed.quantize.format));
    fixed.quantize.margin = static_cast<int>(quantize->attrs.get_or<int64_t>("margin", 0));
    fixed.quantize.pow2 = quantize->attrs.get_or<bool>("pow2", false);
  }
  const NormPlaces where(body, chain);
  const NormPlan plan = plan_of(context, fixed, where.addend >= 0);
  const auto call_of = [fixed, where](const KernelArgs& args) {
    NormForward call = fixed;
    call.x = at(args.in, where.x), call.addend = at(args.in, where.addend);
    call.weight = at(args.in, where.weight), call.bias = at(args.in, where.bias);
    call.sum = at(args.out, where.sum), call.y = at(args.out, where.y);
    call.mean = at<float>(args.out, where.mean), call.rstd = at<float>(args.out, where.rstd);
    call.amax = at<float>(args.out, where.amax);
    call.quantize.scale = at<const float>(args.in, where.scale);
    call.quantize.codes = at(args.out, where.codes), call.quantize.codes_t = at(args.out, where.codes_t);
    call.quantize.scale_inv = at<float>(args.out, where.scale_inv);
    call.quantize.scale_inv_t = at<float>(args.out, where.scale_inv_t);
    call.statistics = reinterpret_cast<float*>(args.workspace.data());
    return call;
  };
  BoundKernel kernel = [call_of, plan](const KernelArgs& args) { launch_norm(call_of(args), plan, args.stream); };
  kernel.variant = [call_of, plan](const KernelArgs& args) {
    constexpr const char* kAfter[] = {"", "; transposed codes", "; tiles"};  // by NormPasses
    return to_string(plan) + kAfter[static_cast<size_t>(norm_passes(call_of(args)))];
  };
  return kernel;
}

// norm_grad, add (, bias_grad) (, amax): one operand of the sum is dx, the other comes from outside.
bool accepts_gradient_fusion(const Graph&, const Node& node) {
  const std::optional<Chain> chain = chain_of(node, Producer::kNormGrad);
  return chain && chain->residual != nullptr && chain->sinks[0].quantize == nullptr &&
         accepts_norm(*node.body, *chain->core) && same_types(*node.body, *chain->residual) &&
         norm_fits_registers(chain->core->results[0].shape.cols());
}

int64_t gradient_fusion_workspace(DeviceContext& context, const Graph& graph, const Node& node) {
  const Chain chain = chain_of(node, Producer::kNormGrad).value();
  const Shape& shape = chain.core->results[0].shape;
  const int sums = (is_layer(*chain.core) ? 2 : 1) + (chain.sinks[0].column_sum != nullptr ? 1 : 0);
  return norm_gradient_scratch(gradient_plan(context, *chain.core, true), shape.cols(), sums);
}

BoundKernel bind_gradient_fusion(DeviceContext& context, const Graph&, const Node& node) {
  const FusionBody body(node);
  const Chain chain = chain_of(node, Producer::kNormGrad).value();
  const Node &grad = *chain.core, &add = *chain.residual;
  const bool layer = is_layer(grad);
  struct Operands {
    int x, weight, mean, rstd, dy, addend, dx, dweight, dbias, sum, amax, column_sum;
  };
  const Operands where{.x = body.input(grad, 0),
                       .weight = body.input(grad, 1),
                       .mean = layer ? body.input(grad, 2) : -1,
                       .rstd = body.input(grad, layer ? 3 : 2),
                       .dy = body.input(grad, layer ? 4 : 3),
                       .addend = body.input(add, body.reads(add, 0, grad) ? 1 : 0),
                       .dx = body.result(grad, 0),
                       .dweight = body.result(grad, 1),
                       .dbias = layer ? body.result(grad, 2) : -1,
                       .sum = body.result(add, 0),
                       .amax = body.result(chain.sinks[0].amax),
                       .column_sum = body.result(chain.sinks[0].column_sum)};
  const NormGradientPlan plan = gradient_plan(context, grad, true);
  BoundKernel kernel = [fixed = describe_gradient(body.graph(), grad), where, plan](const KernelArgs& args) {
    NormGradient call = fixed;
    call.x = at(args.in, where.x), call.weight = at(args.in, where.weight), call.dy = at(args.in, where.dy);
    call.mean = at<const float>(args.in, where.mean), call.rstd = at<const float>(args.in, where.rstd);
    call.addend = at(args.in, where.addend);
    call.dx = at(args.out, where.dx), call.sum = at(args.out, where.sum);
    call.dweight = at<float>(args.out, where.dweight), call.dbias = at<float>(args.out, where.dbias);
    call.amax = at<float>(args.out, where.amax), call.column_sum = at<float>(args.out, where.column_sum);
    call.partials = reinterpret_cast<float*>(args.workspace.data());
    launch_norm_gradient(call, plan, args.stream);
  };
  kernel.variant = [plan](const KernelArgs&) { return to_string(plan); };
  return kernel;
}

constexpr KernelEntry kKernels[] = {
    {Op::kLayerNorm, "layer_norm_rows", accepts_norm, bind_norm},
    {Op::kRmsNorm, "rms_norm_rows", accepts_norm, bind_norm},
    {Op::kLayerNormGrad, "layer_norm_grad_rows", accepts_norm, bind_gradient, gradient_workspace},
    {Op::kRmsNormGrad, "rms_norm_grad_rows", accepts_norm, bind_gradient, gradient_workspace},
    {Op::kFusion, "norm_fusion", accepts_norm_fusion, bind_norm_fusion, norm_fusion_workspace},
    {Op::kFusion, "norm_gradient_fusion", accepts_gradient_fusion, bind_gradient_fusion, gradient_fusion_workspace},
};

}  // namespace

std::span<const KernelEntry> norm_kernels() { return kKernels; }

}  // namespace octet::cuda
