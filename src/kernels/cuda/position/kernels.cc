// rope: frequencies are computed when the node is bound and live on the device as long as its kernel.
#include "kernels/common/rope_frequencies.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/fusion_body.h"
#include "kernels/cuda/position/rope_of_node.h"

namespace octet::cuda {
namespace {

bool accepts(const Graph& graph, const Node& node) { return is_wide_float(node.results[0].dtype); }

std::shared_ptr<const double> upload(const std::vector<double>& values) {
  void* data = nullptr;
  const size_t bytes = values.size() * sizeof(double);
  check_cuda(cudaMalloc(&data, bytes), "allocating the frequencies of rope");
  std::shared_ptr<const double> owner(static_cast<const double*>(data),
                                      [](const double* p) { cudaFree(const_cast<double*>(p)); });
  check_cuda(cudaMemcpy(data, values.data(), bytes, cudaMemcpyHostToDevice), "uploading the frequencies of rope");
  return owner;
}

BoundKernel bind(DeviceContext& context, const Graph&, const Node& node) {
  return [rope = rope_of_node(node), dtype = node.results[0].dtype,
          sm_count = context.sm_count()](const KernelArgs& args) {
    launch_rope(dtype, rope.plan, args.in[0].data, args.in[1].as<const int32_t>(), args.out[0].data, nullptr, nullptr,
                sm_count, args.stream);
  };
}

bool accepts_amax(const Graph&, const Node& node) {
  const std::optional<Chain> chain = chain_of(node, Producer::kRope);
  return chain && chain->sinks[0].amax != nullptr && chain->sinks[0].quantize == nullptr &&
         chain->sinks[0].column_sum == nullptr && accepts(*node.body, *chain->core);
}

BoundKernel bind_amax(DeviceContext& context, const Graph&, const Node& node) {
  const FusionBody body(node);
  const Chain chain = chain_of(node, Producer::kRope).value();
  const Node &member = *chain.core, &reduce = *chain.sinks[0].amax;
  const auto x = static_cast<size_t>(body.input(member, 0)), positions = static_cast<size_t>(body.input(member, 1));
  const int y = body.result(member, 0), amax = body.result(reduce, 0);
  return [=, sm_count = context.sm_count(), rope = rope_of_node(member),
          dtype = member.results[0].dtype](const KernelArgs& args) {
    launch_rope(dtype, rope.plan, args.in[x].data, args.in[positions].as<const int32_t>(), at(args.out, y),
                at<float>(args.out, amax), reinterpret_cast<uint32_t*>(args.workspace.data()), sm_count, args.stream);
  };
}

int64_t amax_workspace(DeviceContext&, const Graph&, const Node& node) {
  const FusionBody body(node);
  return body.member(Op::kRope)->results[0].shape.rows() * int64_t{sizeof(uint32_t)};
}

}  // namespace

BoundRope rope_of_node(const Node& node) {
  const std::vector<double> values = rope_frequencies(node);
  BoundRope rope{.plan = {}, .frequencies = upload(values)};
  rope.plan.tokens = static_cast<int>(node.results[0].shape.rows());
  rope.plan.heads = static_cast<int>(node.attrs.get<int64_t>("heads"));
  rope.plan.dim = static_cast<int>(node.attrs.get<int64_t>("head_dim"));
  rope.plan.pairs = static_cast<int>(values.size());
  rope.plan.interleaved = node.attrs.get_or<bool>("interleaved", false);
  rope.plan.sign = node.attrs.get_or<bool>("inverse", false) ? -1.0f : 1.0f;
  rope.plan.frequencies = rope.frequencies.get();
  return rope;
}

std::span<const KernelEntry> position_kernels() {
  static const KernelEntry kernels[] = {{Op::kRope, "rope_rows", accepts, bind},
                                        {Op::kFusion, "rope_amax", accepts_amax, bind_amax, amax_workspace}};
  return kernels;
}

}  // namespace octet::cuda
