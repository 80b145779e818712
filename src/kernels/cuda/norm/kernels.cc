// The rows of the norms: which nodes and fusions the kernels take, and where their operands are.
#include <algorithm>

#include "kernels/cuda/collective/ranks.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/fusion_body.h"
#include "kernels/cuda/norm/norm.h"
#include "precision/recipe.h"

namespace octet::cuda {
namespace {

bool is_layer(const Node& node) { return node.op == Op::kLayerNorm || node.op == Op::kLayerNormGrad; }

bool has_types(const Graph& graph, const Node& node) {
  return is_f32_or_bf16(node.results[0].dtype) && std::all_of(node.inputs.begin(), node.inputs.end(), [&](Value input) {
           return is_f32_or_bf16(graph.dtype(input));
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

// Positions among the arguments; -1: not there.
struct NormPlaces : SinkPlaces {
  int x, addend = -1, weight, bias = -1, sum = -1, y, mean = -1, rstd;

  NormPlaces(const FusionBody& body, const Chain& chain) : SinkPlaces(body, chain.sinks[0]) {
    const Node &norm = *chain.core, *add = chain.residual;
    const bool layer = is_layer(norm);
    x = body.input(norm, 0), weight = body.input(norm, 1), y = body.result(norm, 0);
    if (layer) bias = body.input(norm, 2), mean = body.result(norm, 1);
    rstd = body.result(norm, layer ? 2 : 1);
    if (add != nullptr) x = body.input(*add, 0), addend = body.input(*add, 1), sum = body.result(*add, 0);
    if (chain.rank_sum == nullptr) return;
    if (x >= 0) addend = x;  // the other operand of the sum with the residual
    x = body.input(*chain.rank_sum, 0);
  }
};

// The sum over ranks in front of a norm: by the norm's kernel, or by the group into the workspace. No group: none.
struct RankSum {
  RankGroup* group = nullptr;
  int64_t bytes = 0;
  bool fused = false;

  const char* label() const { return fused ? "sums ranks, " : group != nullptr ? "sum of ranks, " : ""; }
  void launch(NormForward call, const NormPlan& plan, const KernelArgs& args) const {
    if (fused) return launch_norm_rank_sum(call, plan, *group->pads(bytes), args.stream);
    if (group != nullptr) {
      group->all_reduce(call.x, args.workspace.data(), call.rows * call.cols, call.dtype, args.stream);
      call.x = args.workspace.data();
    }
    launch_norm(call, plan, args.stream);
  }
};

BoundKernel bind_chain(DeviceContext& context, const FusionBody& body, const Chain& chain) {
  const NormPlaces where(body, chain);
  const Node* quantize = chain.sinks[0].quantize;
  RankSum ranks;
  if (chain.rank_sum != nullptr) {
    if (context.has_device())
      ranks.group = &context.ranks().group(parse_axes(chain.rank_sum->attr<std::string>("over")));
    ranks.bytes = chain.rank_sum->results[0].bytes();
  }
  NormForward fixed = describe_norm(context, body.graph(), *chain.core);
  if (quantize != nullptr) {
    fixed.quantize.scaling = parse_scale_layout(quantize->attr<std::string>("scaling"));
    fixed.quantize.format = quantize->results[0].dtype;
    fixed.quantize.formula = scale_formula(*quantize, fixed.quantize.format);
  }
  const NormPlan plan =
      choose(NormDesc{.rows = fixed.rows, .cols = fixed.cols, .dtype = fixed.dtype, .adds = where.addend >= 0},
             context.facts());
  const auto call_of = [fixed, where, summed = ranks.bytes](const KernelArgs& args) {
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
    call.statistics = reinterpret_cast<float*>(args.workspace.data() + summed);
    call.next_reads_ahead = args.next_reads_ahead;
    return call;
  };
  ranks.fused = ranks.group != nullptr && ranks.group->pads(ranks.bytes) != nullptr && fixed.dtype == DType::kBF16 &&
                plan.kernel == NormKernel::kBlockPerRow && where.amax < 0 &&
                (quantize == nullptr || fixed.quantize.scaling == ScaleLayout::kRow);
  return {[call_of, plan, ranks](const KernelArgs& args) { ranks.launch(call_of(args), plan, args); },
          [call_of, plan, ranks](const KernelArgs& args) {
            constexpr const char* kAfter[] = {"", "; transposed codes", "; tiles"};  // by NormPasses
            return ranks.label() + to_string(plan) + kAfter[static_cast<size_t>(norm_passes(call_of(args)))];
          },
          ranks.bytes + (quantize == nullptr ? 0 : 2 * fixed.rows * int64_t{sizeof(float)})};
}

BoundKernel bind_norm(DeviceContext& context, const Graph& graph, const Node& node) {
  return has_types(graph, node) ? bind_chain(context, {graph, node}, {.core = &node}) : BoundKernel();
}

// Positions among the arguments; -1: not there.
struct GradientPlaces {
  int x, weight, mean, rstd, dy, addend = -1, dx, dweight, dbias, sum = -1, amax, column_sum;

  GradientPlaces(const FusionBody& body, const Chain& chain) {
    const Node &grad = *chain.core, *add = chain.residual;
    const bool layer = is_layer(grad);
    x = body.input(grad, 0), weight = body.input(grad, 1), mean = layer ? body.input(grad, 2) : -1;
    rstd = body.input(grad, layer ? 3 : 2), dy = body.input(grad, layer ? 4 : 3);
    dx = body.result(grad, 0), dweight = body.result(grad, 1), dbias = layer ? body.result(grad, 2) : -1;
    amax = body.result(chain.sinks[0].amax), column_sum = body.result(chain.sinks[0].column_sum);
    if (add != nullptr) addend = body.input(*add, body.reads(*add, 0, grad) ? 1 : 0), sum = body.result(*add, 0);
  }
};

BoundKernel bind_gradient_chain(DeviceContext& context, const FusionBody& body, const Chain& chain) {
  const GradientPlaces where(body, chain);
  const TensorType& dx = chain.core->results[0];
  const NormGradientPlan plan = choose_norm_gradient(
      {.rows = dx.shape.rows(), .cols = dx.shape.cols(), .dtype = dx.dtype, .adds = where.addend >= 0},
      context.facts());
  const NormGradient fixed{.dtype = dx.dtype,
                           .weight_dtype = body.graph().dtype(chain.core->inputs[1]),
                           .layer = is_layer(*chain.core),
                           .rows = dx.shape.rows(),
                           .cols = dx.shape.cols()};
  const int sums = (fixed.layer ? 2 : 1) + (chain.sinks[0].column_sum != nullptr ? 1 : 0);
  return {[call = fixed, where, plan](const KernelArgs& args) mutable {
            call.x = at(args.in, where.x), call.weight = at(args.in, where.weight), call.dy = at(args.in, where.dy);
            call.mean = at<const float>(args.in, where.mean), call.rstd = at<const float>(args.in, where.rstd);
            call.addend = at(args.in, where.addend);
            call.dx = at(args.out, where.dx), call.sum = at(args.out, where.sum);
            call.dweight = at<float>(args.out, where.dweight), call.dbias = at<float>(args.out, where.dbias);
            call.amax = at<float>(args.out, where.amax), call.column_sum = at<float>(args.out, where.column_sum);
            call.partials = reinterpret_cast<float*>(args.workspace.data());
            launch_norm_gradient(call, plan, args.stream);
          },
          [plan](const KernelArgs&) { return to_string(plan); }, norm_gradient_scratch(plan, dx.shape.cols(), sums)};
}

BoundKernel bind_gradient(DeviceContext& context, const Graph& graph, const Node& node) {
  return has_types(graph, node) ? bind_gradient_chain(context, {graph, node}, {.core = &node}) : BoundKernel();
}

// --- fusions

bool same_types(const Graph& graph, const Node& node) {
  return std::all_of(node.inputs.begin(), node.inputs.end(),
                     [&](Value input) { return graph.type(input) == node.results[0]; });
}

// (all_reduce,) (add,) norm (, quantize or amax)
bool takes_norm_fusion(const FusionBody& body, const Chain& chain) {
  if (chain.sinks[0].column_sum != nullptr || !has_types(body.graph(), *chain.core) ||
      !norm_fits_registers(chain.core->results[0].shape.cols()))
    return false;
  if (chain.residual != nullptr && !same_types(body.graph(), *chain.residual)) return false;
  if (chain.rank_sum != nullptr && chain.rank_sum->results[0] != chain.core->results[0]) return false;
  const Node* quantize = chain.sinks[0].quantize;
  if (quantize == nullptr) return true;
  const ScaleLayout scaling = parse_scale_layout(quantize->attr<std::string>("scaling"));
  const bool transposed = body.result(*quantize, 2) >= 0 || body.result(*quantize, 3) >= 0;
  if (scaling == ScaleLayout::kTensor && body.input(*quantize, 1) < 0) return false;
  if (quantize->results[0].dtype == DType::kI8 && scaling != ScaleLayout::kRow) return false;
  return chain.sinks[0].amax == nullptr && scaling != ScaleLayout::kTile128 &&
         !(scaling == ScaleLayout::kRow && transposed);
}

BoundKernel bind_norm_fusion(DeviceContext& context, const Fusion& fusion) {
  return takes_norm_fusion(fusion.body, *fusion.chain) ? bind_chain(context, fusion.body, *fusion.chain)
                                                       : BoundKernel();
}

// norm_grad, add (, bias_grad) (, amax): one operand of the sum is dx, the other comes from outside.
BoundKernel bind_gradient_fusion(DeviceContext& context, const Fusion& fusion) {
  const Graph& body = fusion.body.graph();
  const Chain& chain = *fusion.chain;
  if (chain.residual == nullptr || chain.sinks[0].quantize != nullptr || !has_types(body, *chain.core) ||
      !same_types(body, *chain.residual) || !norm_fits_registers(chain.core->results[0].shape.cols()))
    return {};
  return bind_gradient_chain(context, fusion.body, chain);
}

constexpr KernelEntry kKernels[] = {
    {Op::kLayerNorm, "layer_norm_rows", bind_norm},
    {Op::kRmsNorm, "rms_norm_rows", bind_norm},
    {Op::kLayerNormGrad, "layer_norm_grad_rows", bind_gradient},
    {Op::kRmsNormGrad, "rms_norm_grad_rows", bind_gradient},
    {{Producer::kNorm}, "norm_fusion", bind_norm_fusion},
    {{Producer::kNormGrad}, "norm_gradient_fusion", bind_gradient_fusion},
};

}  // namespace

std::span<const KernelEntry> norm_kernels() { return kKernels; }

}  // namespace octet::cuda
