// Tensor-core decoding: the plan of a call's blocks and scratch, and the launch.
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/inference/decode_work.cuh"
#include "kernels/cuda/inference/paged_decode_mma.h"

namespace octet::cuda {
namespace decode {
namespace {

Instance instance_of(const PagedProblem& p, DType cache) {
  const bool wide = p.group > 8;
  switch (cache) {
    case DType::kE4M3: return instance_e4m3(p.dim, wide);
    case DType::kE5M2: return instance_e5m2(p.dim, wide);
    default: return instance_bf16(p.dim, wide);
  }
}
Cut cut_of(const PagedProblem& p, const DecodePlan& plan) {
  Cut cut{.head_shift = plan.head_shift,
          .groups = plan.groups,
          .rows = plan.rows,
          .window = p.window > 0 ? p.window : 1 << 30};
  for (int n = 1; n <= kDecodeQueries; ++n) {
    cut.chunks |= static_cast<uint64_t>((n * p.group + cut.rows - 1) / cut.rows) << (16 * (n - 1));
  }
  return cut;
}

}  // namespace
}  // namespace decode

using namespace decode;

DecodePlan plan_paged_decode_mma(const PagedProblem& p, DType cache, const DeviceFacts& device) {
  const Instance instance = instance_of(p, cache);
  return choose_decode_mma(p, instance.facts, device, [&](int64_t shared) {
    allow_shared(instance.kernel, static_cast<size_t>(shared));
    int blocks = 0;
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, instance.kernel, kThreads, static_cast<size_t>(shared));
    return blocks;
  });
}

void launch_paged_decode_mma(const PagedProblem& p, const PagedOperands& x, const DecodePlan& plan, void* scratch,
                             cudaStream_t stream) {
  static_assert(sizeof(Partial) == kDecodePartialBytes);
  auto* bytes = static_cast<std::byte*>(scratch);
  const Pieces pieces{.parts = reinterpret_cast<Partial*>(bytes),
                      .sums = reinterpret_cast<float*>(bytes + plan.parts_bytes),
                      .arrivals = plan.counters};
  int block_shift = 0;
  while (1 << block_shift < p.block_size) ++block_shift;
  const Grid grid{static_cast<unsigned>(plan.blocks), kThreads, static_cast<size_t>(plan.shared)};
  launch_overlapped(instance_of(p, x.k.dtype).kernel, grid, stream, p, x, cut_of(p, plan), block_shift, pieces);
}

}  // namespace octet::cuda
