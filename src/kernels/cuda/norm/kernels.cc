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
  int x = 0, addend = -1, weight = 1, bias = -1;
  int sum = -1, y = 0, mean = -1, rstd = 1;

  explicit NormPlaces(bool layer) {  // of a norm alone
    if (layer) bias = 2, mean = 1, rstd = 2;
  }
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

BoundKernel bind_norm_at(DeviceContext& context, const Graph& graph, const Node& norm, const Node* quantize,
                         const NormPlaces& where, RankSum ranks = {}) {
  NormForward fixed = describe_norm(context, graph, norm);
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
          }};
}

BoundKernel bind_norm(DeviceContext& context, const Graph& graph, const Node& node) {
  if (!has_types(graph, node)) return {};
  return bind_norm_at(context, graph, node, nullptr, NormPlaces(is_layer(node)));
}

// Positions among the arguments; -1: not there.
struct GradientPlaces {
  int x, weight, mean, rstd, dy, addend = -1, dx, dweight, dbias, sum = -1, amax = -1, column_sum = -1;

  // input(slot) and result(index) of the gradient give the node's.
  template <typename Input, typename Result>
  GradientPlaces(bool layer, const Input& input, const Result& result)
      : x(input(0)),
        weight(input(1)),
        mean(layer ? input(2) : -1),
        rstd(input(layer ? 3 : 2)),
        dy(input(layer ? 4 : 3)),
        dx(result(0)),
        dweight(result(1)),
        dbias(layer ? result(2) : -1) {}
};

BoundKernel bind_gradient_at(DeviceContext& context, const Graph& graph, const Node& grad, const GradientPlaces& where,
                             bool column_sum = false) {
  const TensorType& dx = grad.results[0];
  const NormGradientPlan plan = choose_norm_gradient(
      {.rows = dx.shape.rows(), .cols = dx.shape.cols(), .dtype = dx.dtype, .adds = where.addend >= 0},
      context.facts());
  const int sums = (is_layer(grad) ? 2 : 1) + (column_sum ? 1 : 0);
  const NormGradient fixed{.dtype = dx.dtype,
                           .weight_dtype = graph.dtype(grad.inputs[1]),
                           .layer = is_layer(grad),
                           .rows = dx.shape.rows(),
                           .cols = dx.shape.cols()};
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
  if (!has_types(graph, node)) return {};
  const auto same = [](int i) { return i; };
  return bind_gradient_at(context, graph, node, {is_layer(node), same, same});
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
  const FusionBody& body = fusion.body;
  const Chain& chain = *fusion.chain;
  if (!takes_norm_fusion(body, chain)) return {};
  RankSum ranks;
  if (chain.rank_sum != nullptr) {
    if (context.has_device())
      ranks.group = &context.ranks().group(parse_axes(chain.rank_sum->attr<std::string>("over")));
    ranks.bytes = chain.rank_sum->results[0].bytes();
  }
  BoundKernel kernel =
      bind_norm_at(context, body.graph(), *chain.core, chain.sinks[0].quantize, NormPlaces(body, chain), ranks);
  kernel.workspace = ranks.bytes;
  if (chain.sinks[0].quantize != nullptr)
    kernel.workspace += 2 * chain.core->results[0].shape.rows() * int64_t{sizeof(float)};
  return kernel;
}

// norm_grad, add (, bias_grad) (, amax): one operand of the sum is dx, the other comes from outside.
BoundKernel bind_gradient_fusion(DeviceContext& context, const Fusion& fusion) {
  const FusionBody& body = fusion.body;
  const Chain& chain = *fusion.chain;
  if (chain.residual == nullptr || chain.sinks[0].quantize != nullptr || !has_types(body.graph(), *chain.core) ||
      !same_types(body.graph(), *chain.residual) || !norm_fits_registers(chain.core->results[0].shape.cols()))
    return {};
  const Node &grad = *chain.core, &add = *chain.residual;
  GradientPlaces where(
      is_layer(grad), [&](size_t slot) { return body.input(grad, slot); },
      [&](int result) { return body.result(grad, result); });
  where.addend = body.input(add, body.reads(add, 0, grad) ? 1 : 0), where.sum = body.result(add, 0);
  where.amax = body.result(chain.sinks[0].amax), where.column_sum = body.result(chain.sinks[0].column_sum);
  return bind_gradient_at(context, body.graph(), grad, where, chain.sinks[0].column_sum != nullptr);
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
