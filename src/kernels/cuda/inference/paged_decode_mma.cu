// Tensor-core decoding: the plan of a call's blocks and scratch, and the joining of items that several blocks share.
#include "kernels/cuda/attention/mma.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/inference/paged.cuh"
#include "kernels/cuda/inference/paged_decode_mma.h"

namespace octet::cuda {
namespace decode {
namespace {

constexpr int kJoinWarps = 16;

// A block joins the pieces of the item that block of the decode kernel began: teams of warps take a row, their members
// its pieces in turn, and sum up in order. Also clears the rows of out beyond the last sequence. Starts while the
// decode kernel is running.
__global__ void __launch_bounds__(32 * kJoinWarps)
    join_decode_pieces_kernel(PagedProblem p, PagedOperands x, Cut cut, Pieces pieces) {
  __shared__ float shared_sums[kJoinWarps][kLargestPagedDim];
  wait_for_previous();
  allow_next();
  const int64_t width = static_cast<int64_t>(p.heads) * p.dim;
  for (int64_t token = x.segments[p.sequences] + static_cast<int>(blockIdx.x); token < p.tokens; token += gridDim.x) {
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
      static_cast<bf16*>(x.out.data)[token * width + i] = from_float<bf16>(0.0f);
    }
  }
  const float v_scale = factor(x.v_scale);
  const SharedItem item = pieces.items[blockIdx.x];
  if (item.exists == 0) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first = static_cast<int>(blockIdx.x), count = item.last - first + 1;
  const int rows = item.rows << cut.head_shift;  // rows of one head after the other
  int members = 1;
  while (2 * members * rows <= kJoinWarps && 4 * members <= count) members *= 2;
  const int teams = kJoinWarps / members, member = warp % members;
  for (int base = 0; base < rows; base += teams) {
    const int i = base + warp / members, h = i / item.rows, r = i % item.rows,
              head = (item.group << cut.head_shift) + h;
    const bool exists = i < rows && head < p.kv_heads;
    float sum = 0;
    if (exists) {
      const auto place_of = [&](int n) {
        return (((static_cast<int64_t>(first + n) * 2 + (n == 0 ? 1 : 0)) << cut.head_shift) + h) * cut.rows + r;
      };
      float top = -INFINITY;
      for (int n = lane; n < count; n += 32) top = fmaxf(top, pieces.parts[place_of(n)].anchor);
      top = warp_reduce<Max>(fmaxf(top, Max::kIdentity));
      for (int n = lane; n < count; n += 32) {
        const Partial part = pieces.parts[place_of(n)];
        sum = fmaf(mma::power_of_two(part.anchor - top), part.sum, sum);
      }
      sum = warp_reduce<Sum>(sum);
      for (int d = 4 * lane; d < p.dim; d += 128) {
        float value[4] = {};
#pragma unroll 8
        for (int n = member; n < count; n += members) {
          const int64_t at = place_of(n);
          const float weight = mma::power_of_two(pieces.parts[at].anchor - top);
          float piece[4];
          load<4>(pieces.sums + at * p.dim + d, piece);
#pragma unroll
          for (int e = 0; e < 4; ++e) value[e] = fmaf(weight, piece[e], value[e]);
        }
        store<4>(&shared_sums[warp][d], value);
      }
    }
    __syncthreads();
    if (exists && member == 0) {
      const int row_in_sequence = item.chunk * cut.rows + r;
      const int64_t row = static_cast<int64_t>(item.begin + row_in_sequence / p.group) * p.heads + head * p.group +
                          row_in_sequence % p.group;
      for (int d = 4 * lane; d < p.dim; d += 128) {
        float value[4] = {};
        for (int m = 0; m < members; ++m) {
#pragma unroll
          for (int e = 0; e < 4; ++e) value[e] += shared_sums[warp + m][d + e];
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) value[e] *= v_scale / sum;
        store<4>(static_cast<bf16*>(x.out.data) + row * p.dim + d, value);
      }
    }
    __syncthreads();
  }
}

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
  return {.head_shift = head_shift,
          .groups = (p.kv_heads + (1 << head_shift) - 1) >> head_shift,
          .rows = min(instance.rows, p.group * queries)};
}
// Warps that share a key head join through shared memory.
size_t shared_bytes(const Instance& instance, const Cut& cut) {
  return static_cast<size_t>(instance.ring_bytes) +
         (cut.key_warps() > 1 ? sizeof(float) * kWarps * cut.rows * instance.dim : 0);
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
    const int64_t rows = piece_rows(cut, max(blocks, 1) * sm_count);
    plan = {.head_shift = head_shift,
            .blocks = max(blocks, 1) * sm_count,
            .scratch_bytes = aligned(max(blocks, 1) * sm_count * static_cast<int64_t>(sizeof(SharedItem))) +
                             aligned(rows * static_cast<int64_t>(sizeof(Partial))) +
                             rows * p.dim * static_cast<int64_t>(sizeof(float))};
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
  Pieces pieces;
  auto* bytes = static_cast<std::byte*>(scratch);
  pieces.items = reinterpret_cast<SharedItem*>(bytes);
  bytes += aligned(plan.blocks * static_cast<int64_t>(sizeof(SharedItem)));
  pieces.parts = reinterpret_cast<Partial*>(bytes);
  bytes += aligned(piece_rows(cut, plan.blocks) * static_cast<int64_t>(sizeof(Partial)));
  pieces.sums = reinterpret_cast<float*>(bytes);
  int block_shift = 0;
  while (1 << block_shift < p.block_size) ++block_shift;
  const auto blocks = static_cast<unsigned>(plan.blocks);
  launch_overlapped(instance.kernel, {blocks, kThreads, shared_bytes(instance, cut)}, stream, p, x, cut, block_shift,
                    pieces);
  launch_overlapped(join_decode_pieces_kernel, {blocks, 32 * kJoinWarps}, stream, p, x, cut, pieces);
}

}  // namespace octet::cuda
