// Tensor-core decoding: the plan of a call's blocks and scratch, and the launch.
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/inference/decode_work.cuh"
#include "kernels/cuda/inference/paged_decode_mma.h"

namespace octet::cuda {
namespace decode {
namespace {

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

Instance instance_of(const PagedProblem& p, DType cache) {
  const bool wide = p.group > 8;
  switch (cache) {
    case DType::kE4M3: return instance_e4m3(p.dim, wide);
    case DType::kE5M2: return instance_e5m2(p.dim, wide);
    default: return instance_bf16(p.dim, wide);
  }
}
Cut cut_of(const PagedProblem& p, const Instance& instance, int head_shift) {
  // As many rows as the sequences need on average: those with more queries take several chunks.
  const int sequences = max(p.sequences, 1), queries = min(kDecodeQueries, (p.tokens + sequences - 1) / sequences);
  Cut cut{.head_shift = head_shift,
          .groups = p.kv_heads >> head_shift,
          .rows = min(instance.rows, p.group * queries),
          .window = p.window > 0 ? p.window : 1 << 30};
  for (int n = 1; n <= kDecodeQueries; ++n) {
    cut.chunks |= static_cast<uint64_t>((n * p.group + cut.rows - 1) / cut.rows) << (16 * (n - 1));
  }
  return cut;
}
// Warps that share a key head join through shared memory.
size_t shared_bytes(const Instance& instance, const Cut& cut) {
  return static_cast<size_t>(instance.ring_bytes + (cut.key_warps() > 1 ? kWarps * cut.rows * instance.sums_bytes : 0));
}
int64_t piece_rows(const Cut& cut, int blocks) { return (int64_t{blocks} * 2 * cut.rows) << cut.head_shift; }

}  // namespace
}  // namespace decode

using namespace decode;

DecodePlan plan_paged_decode_mma(const PagedProblem& p, DType cache, int sm_count) {
  const Instance instance = instance_of(p, cache);
  DecodePlan plan;
  const auto try_heads = [&](int head_shift) {
    const Cut cut = cut_of(p, instance, head_shift);
    const size_t shared = shared_bytes(instance, cut);
    allow_shared(instance.kernel, shared);
    int blocks = 0;
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, instance.kernel, kThreads, shared);
    plan = {.head_shift = head_shift, .blocks = min(max(blocks, 1) * sm_count, kMaxBlocks)};
    const int64_t rows = piece_rows(cut, plan.blocks);
    plan.scratch_bytes =
        aligned(rows * static_cast<int64_t>(sizeof(Partial))) + rows * p.dim * static_cast<int64_t>(sizeof(float));
    return cut.groups * p.sequences >= plan.blocks / 2;
  };
  // Neighbouring heads lie next to each other in memory, and warps that take whole heads need no joining; but where
  // items are few, each of them would be cut over many blocks.
  if (p.kv_heads % 4 == 0 && try_heads(2)) return plan;
  if (p.kv_heads % 2 == 0 && try_heads(1)) return plan;
  try_heads(0);
  return plan;
}

void launch_paged_decode_mma(const PagedProblem& p, const PagedOperands& x, const DecodePlan& plan, void* scratch,
                             cudaStream_t stream) {
  const Instance instance = instance_of(p, x.k.dtype);
  const Cut cut = cut_of(p, instance, plan.head_shift);
  auto* bytes = static_cast<std::byte*>(scratch);
  const int64_t parts = aligned(piece_rows(cut, plan.blocks) * static_cast<int64_t>(sizeof(Partial)));
  const Pieces pieces{.parts = reinterpret_cast<Partial*>(bytes),
                      .sums = reinterpret_cast<float*>(bytes + parts),
                      .arrivals = plan.counters};
  int block_shift = 0;
  while (1 << block_shift < p.block_size) ++block_shift;
  launch_overlapped(instance.kernel, {static_cast<unsigned>(plan.blocks), kThreads, shared_bytes(instance, cut)},
                    stream, p, x, cut, block_shift, pieces);
}

}  // namespace octet::cuda
