// rope: frequencies are computed when the node is bound and live on the device as long as its kernel.
#include "kernels/cpu/position/rope_frequencies.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/position/rope_of_node.h"

namespace octet::cuda {
namespace {

bool accepts(const Graph& graph, const Node& node) {
  const DType dtype = node.results[0].dtype;
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

std::shared_ptr<const double> upload(const std::vector<double>& values) {
  void* data = nullptr;
  const size_t bytes = values.size() * sizeof(double);
  check_cuda(cudaMalloc(&data, bytes), "allocating the frequencies of rope");
  std::shared_ptr<const double> owner(static_cast<const double*>(data),
                                      [](const double* p) { cudaFree(const_cast<double*>(p)); });
  check_cuda(cudaMemcpy(data, values.data(), bytes, cudaMemcpyHostToDevice), "uploading the frequencies of rope");
  return owner;
}

BoundKernel bind(DeviceContext&, const Graph&, const Node& node) {
  return [rope = rope_of_node(node), dtype = node.results[0].dtype](const KernelArgs& args) {
    launch_rope(dtype, rope.plan, args.in[0].data, args.in[1].as<const int32_t>(), args.out[0].data, args.stream);
  };
}

}  // namespace

BoundRope rope_of_node(const Node& node) {
  const std::vector<double> values = cpu::rope_frequencies(node.attrs);
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

std::span<const KernelRow> position_rows() {
  static const KernelRow rows[] = {{Op::kRope, "rope_rows", accepts, bind}};
  return rows;
}

}  // namespace octet::cuda
