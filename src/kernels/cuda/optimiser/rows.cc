// Rows of AdamW and of the global norm.
#include <algorithm>
#include <memory>

#include "kernels/cuda/context.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/optimiser/optimiser.h"

namespace octet::cuda {
namespace {

bool is_f32_or_bf16(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

bool accepts_adamw(const Graph& graph, const Node& node) { return is_f32_or_bf16(graph.dtype(node.inputs[1])); }

BoundKernel bind_adamw(DeviceContext& context, const Graph&, const Node& node) {
  const AdamwJob attrs{.beta1 = node.attrs.get<double>("beta1"),
                       .beta2 = node.attrs.get<double>("beta2"),
                       .eps = node.attrs.get<double>("eps"),
                       .weight_decay = node.attrs.get<double>("weight_decay")};
  return [attrs, sm_count = context.sm_count()](const KernelArgs& args) {
    const auto in = [&](size_t i) { return args.in[i].as<const float>(); };
    AdamwJob job = attrs;
    job.param = in(0), job.grad = args.in[1].data, job.m = in(2), job.v = in(3);
    job.grad_type = args.in[1].dtype(), job.count = args.in[0].elements();
    job.new_param = args.out[0].as<float>(), job.new_m = args.out[1].as<float>(), job.new_v = args.out[2].as<float>();
    job.lr = in(4), job.step = in(5), job.clip = in(6), job.finite = in(7);
    if (job.count > 0) launch_adamw(job, sm_count, args.stream);
  };
}

bool accepts_norm(const Graph& graph, const Node& node) {
  return std::all_of(node.inputs.begin(), node.inputs.end(), [&](Value v) { return is_f32_or_bf16(graph.dtype(v)); });
}

int64_t norm_launches(const Node& node) {
  return (static_cast<int64_t>(node.inputs.size()) + kNormInputs - 1) / kNormInputs;
}

int64_t norm_workspace(DeviceContext&, const Graph&, const Node& node) {
  return norm_launches(node) * kNormBlocks * static_cast<int64_t>(sizeof(NormPartial));
}

BoundKernel bind_norm(DeviceContext&, const Graph&, const Node& node) {
  const double max_norm = node.attrs.get_or<double>("max_norm", 0.0);
  return [max_norm, launches = norm_launches(node)](const KernelArgs& args) {
    auto* partials = reinterpret_cast<NormPartial*>(args.workspace.data());
    for (int64_t launch = 0; launch < launches; ++launch) {
      const auto begin = static_cast<size_t>(launch * kNormInputs);
      NormTable table;
      for (const Tensor& gradient : args.in.subspan(begin, std::min<size_t>(kNormInputs, args.in.size() - begin))) {
        const int64_t count = gradient.elements();
        if (count == 0) continue;
        table.inputs[table.count++] = {gradient.data, count, table.pieces, gradient.dtype() == DType::kBF16};
        table.pieces += static_cast<int32_t>((count + kNormPiece - 1) / kNormPiece);
      }
      launch_norm_partials(table, partials + launch * kNormBlocks, args.stream);
    }
    launch_norm_finish(partials, launches, max_norm, args.out[0].as<float>(), args.out[1].as<float>(),
                       args.out[2].as<float>(), args.stream);
  };
}

constexpr KernelRow kRows[] = {
    {Op::kAdamw, "adamw", accepts_adamw, bind_adamw},
    {Op::kGlobalNorm, "global_norm_pieces", accepts_norm, bind_norm, norm_workspace},
};

}  // namespace

std::span<const KernelRow> optimiser_rows() { return kRows; }

}  // namespace octet::cuda
