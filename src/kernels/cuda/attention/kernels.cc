// attention, attention_grad; not causal without linear biases. Of bf16 through cuDNN, or by our own tensor-core kernels
// where cuDNN is not there, refuses the shape, has no ALiBi, or would draw other dropout bits; the tiled float32
// kernels take every type and head dim.
#include "kernels/common/keep_rule.h"
#include "kernels/cuda/attention/cudnn_kernels.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/families.h"

namespace octet::cuda {
namespace {

constexpr int64_t kLargestDim = 4096;  // sums of a warp's row are in shared memory

bool takes_tiled(const Graph& graph, const Node& node) {
  return runs_with(graph, node, is_wide_float) && node.attrs.get<int64_t>("head_dim") <= kLargestDim;
}

bool takes_tensor_cores(const Graph& graph, const Node& node) {
  const int64_t dim = node.attrs.get<int64_t>("head_dim");
  return runs_with(graph, node, is_bf16) && dim % 8 == 0 && dim <= kLargestMmaDim &&
         node.attrs.get<double>("scale") > 0;
}
bool drops_by_words(const Node& node) { return node.attr<double>("dropout") > 0 && node.attr<int64_t>("bits") == 32; }

bool takes_mma(const Graph& graph, const Node& node) { return takes_tensor_cores(graph, node) && drops_by_words(node); }
bool takes_wgmma(const Graph& graph, const Node& node) {
  return takes_tensor_cores(graph, node) && !drops_by_words(node);
}

enum class Core : uint8_t { kTiled, kMma, kWgmma };

template <Core kCore>
BoundKernel bind(DeviceContext&, const Graph& graph, const Node& node) {
  const bool backward = node.op == Op::kAttentionGrad;
  const auto run = [p = attention_problem(graph, node), backward](const KernelArgs& args) {
    AttentionOperands x{.q = operand(args.in[0]), .k = operand(args.in[1]), .v = operand(args.in[2])};
    x.segments = args.in[3].as<const int32_t>();
    if (p.dropout) x.rng = args.in[backward ? 7 : 4].as<const int64_t>();
    if (!backward) {
      x.out = operand(args.out[0]), x.lse = args.out[1].as<float>();
      constexpr auto kLaunch = kCore == Core::kTiled ? launch_attention_tiled
                               : kCore == Core::kMma ? launch_attention_mma
                                                     : launch_attention_wgmma;
      return kLaunch(p, x, args.stream);
    }
    x.out = operand(args.in[4]), x.lse = args.in[5].as<float>(), x.dout = operand(args.in[6]);
    x.dq = operand(args.out[0]), x.dk = operand(args.out[1]), x.dv = operand(args.out[2]);
    auto* delta = reinterpret_cast<float*>(args.workspace.data());
    if (kCore == Core::kWgmma) return launch_attention_grad_wgmma(p, x, delta, args.stream);
    launch_attention_delta(p, x, delta, args.stream);
    (kCore == Core::kMma ? launch_attention_grad_mma : launch_attention_grad_tiled)(p, x, delta, args.stream);
  };
  return {run, backward ? graph.shape(node.inputs[5]).elements() * int64_t{sizeof(float)} : 0};
}

constexpr KernelEntry kKernels[] = {
    {Op::kAttention, "attention_cudnn", bind_cudnn},
    {Op::kAttention, "attention_mma", bind_if<takes_mma, bind<Core::kMma>>},
    {Op::kAttention, "attention_wgmma", bind_if<takes_wgmma, bind<Core::kWgmma>>},
    {Op::kAttention, "attention_tiled", bind_if<takes_tiled, bind<Core::kTiled>>},
    {Op::kAttentionGrad, "attention_grad_cudnn", bind_cudnn},
    {Op::kAttentionGrad, "attention_grad_mma", bind_if<takes_mma, bind<Core::kMma>>},
    {Op::kAttentionGrad, "attention_grad_wgmma", bind_if<takes_wgmma, bind<Core::kWgmma>>},
    {Op::kAttentionGrad, "attention_grad_tiled", bind_if<takes_tiled, bind<Core::kTiled>>},
};

}  // namespace

AttentionProblem attention_problem(const Graph& graph, const Node& node) {
  AttentionProblem p;
  p.tokens = static_cast<int>(graph.shape(node.inputs[0]).rows());
  p.heads = static_cast<int>(node.attrs.get<int64_t>("heads"));
  p.kv_heads = static_cast<int>(node.attrs.get<int64_t>("kv_heads"));
  p.dim = static_cast<int>(node.attrs.get<int64_t>("head_dim"));
  p.window = static_cast<int>(std::min<int64_t>(node.attr<int64_t>("window"), p.tokens));
  p.causal = node.attr<bool>("causal");
  p.segments = static_cast<int>(graph.shape(node.inputs[3]).elements() - 1);
  p.first_head = static_cast<int>(node.attr<int64_t>("first_head"));
  p.all_heads = std::max(p.heads, static_cast<int>(node.attr<int64_t>("all_heads")));
  p.scale = static_cast<float>(node.attrs.get<double>("scale"));
  p.alibi = static_cast<float>(node.attr<double>("alibi"));
  if (p.alibi > 0) {
    p.alibi_scale = static_cast<float>(node.attr<double>("alibi_scale") / node.attrs.get<double>("scale"));
  }
  const double dropout = node.attr<double>("dropout");
  if (dropout > 0) {
    p.dropout = true;
    p.max_length = node.attrs.get<int64_t>("max_length");
    p.key = static_cast<uint32_t>(node.attrs.get<int64_t>("key"));
    const KeepRule rule(node, dropout);
    p.bytes = rule.bytes, p.threshold = rule.threshold;
    p.kept_factor = static_cast<float>(rule.factor);
  }
  return p;
}

BoundKernel bind_attention_own(DeviceContext& context, const Graph& graph, const Node& node) {
  const bool forward = node.op == Op::kAttention;
  const auto bound = [&](BindNode bind_core, const char* name, const char* grad_name) {
    BoundKernel kernel = bind_core(context, graph, node);
    kernel.fallback_kernel = forward ? name : grad_name;
    return kernel;
  };
  if (takes_wgmma(graph, node)) return bound(bind<Core::kWgmma>, "attention_wgmma", "attention_grad_wgmma");
  if (takes_mma(graph, node)) return bound(bind<Core::kMma>, "attention_mma", "attention_grad_mma");
  return bound(bind<Core::kTiled>, "attention_tiled", "attention_grad_tiled");
}

std::span<const KernelEntry> attention_kernels() { return kKernels; }

}  // namespace octet::cuda
