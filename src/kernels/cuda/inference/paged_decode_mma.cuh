// Decode over the paged cache on tensor cores: queries of bf16, a cache of bf16 or FP8 codes. Bound by reading the
// cache.
//
// A warp walks over tiles of 16 keys of one key head through its own ring of stages in shared memory (decode_copy.cuh),
// which runs ahead across the ends of items (decode_work.cuh), so that short contexts keep the memory as busy as long
// ones. What it makes of a tile is in decode_columns.cuh, how parts of an item become one result in decode_join.cuh.
// Loops are not peeled: one call runs through most of the code only once, and instruction cache misses of cold code
// cost more than the steps.
#pragma once

#include "kernels/cuda/inference/decode_columns.cuh"
#include "kernels/cuda/inference/decode_copy.cuh"
#include "kernels/cuda/inference/decode_join.cuh"
#include "kernels/cuda/inference/paged_decode_mma.h"

namespace octet::cuda::decode {

// Where warps that share heads store their sums for each other: in the stage they have just read, if the maximum rows
// fit, else in shared memory of their own.
template <typename S, int kDim, int kTiles>
inline constexpr bool kSumsInStage = 8 * kTiles* kDim* static_cast<int>(sizeof(float)) <= S::kStageBytes;

template <typename T, int kDim, int kTiles, int kStages, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    paged_decode_mma_kernel(PagedProblem p, PagedOperands x, Cut cut, int block_shift, Pieces pieces) {
  using S = Shape<T, kDim, kStages>;
  extern __shared__ uint4 shared_pieces[];
  __shared__ RunScratch run_scratch;
  __shared__ Partial warp_parts[kWarps][8 * kTiles];
  __shared__ float biases[kWarps][8 * kTiles];
  __shared__ Item items[kWarps][kStages];  // of each warp: those from the arithmetic's to the copying side's
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int head_lane = warp & (cut.head_warps() - 1), key_lane = warp >> cut.head_shift;
  const bool wide = cut.key_warps() > 1;  // warps share heads
  const Team team{.wide = wide, .head = wide ? 0 : head_lane, .heads = wide ? cut.head_warps() : 1};

  if (!p.inputs_ready) griddep_wait();
  Run run;
  const bool works = find_run(p, x, cut, run_scratch, run);
  Copier<T, S> copier;
  if (works) copier.start(run, cut, block_shift);
  griddep_wait();
  griddep_launch_dependents();
  clear_padding(p, x);
  if (!works) return;

  const uint32_t ring = shared_address(shared_pieces) + static_cast<uint32_t>(warp * kStages * S::kStageBytes);
  float k_scale = 1, v_scale = 1, steps = 0;  // steps: scores as powers of two
  Columns<T, kDim, kTiles> columns;
  columns.clear();
  bool entering = true;
  int unit_begin = -run.place.unit;             // of the item, counted from the run's first
  int first_key = 0, length = 0, item_end = 0;  // of the next unit; of the sequence; behind the item's last unit
  int stage = 0, next_item = 0, own_item = 0;   // stage: of the step before
#pragma unroll 1
  for (int unit = 1 - kStages; unit < run.count; ++unit) {  // units are copied kStages - 1 ahead
    if (unit >= 0) {
      if (entering) {
        __syncwarp();
        const Item& item = items[warp][own_item];
        first_key = item.key(cut, unit - unit_begin, key_lane), length = item.length;
        item_end = unit_begin + item.units;
        if (unit == 0) {
          k_scale = factor(x.k_scale), v_scale = factor(x.v_scale), steps = p.scale * k_scale * kLog2E;
        }
        columns.enter(p, x, cut, item, item.kv_head + head_lane);
        if (p.alibi != 0) columns.make_biases(p, item.kv_head + head_lane, p.scale * k_scale, biases[warp]);
        entering = false;
      }
      mma::wait_copies<kStages - 2>();
      __syncwarp();
    }
    copier.copy(p, x, cut, block_shift, ring + static_cast<uint32_t>(stage * S::kStageBytes), items[warp], next_item);
    stage = stage + 1 == kStages ? 0 : stage + 1;
    if (unit < 0) continue;
    const uint32_t keys = ring + static_cast<uint32_t>(stage * S::kStageBytes), values = keys + S::kTileBytes;
    if (first_key < length) {
      float scores[kTiles][4] = {};
      columns.template multiply_keys<S>(keys, scores);
      if (p.alibi != 0) columns.add_biases(p, first_key, biases[warp], scores);
      columns.mask(p, cut, first_key, scores);
      columns.weigh(steps, scores);
      columns.template add_values<S>(values, scores);
    }
    first_key += kUnitKeys << cut.key_shift();
    if (unit + 1 < min(item_end, run.count)) continue;

    // The item's result, or this block's piece of it.
    __syncwarp();
    const Item item = items[warp][own_item];
    const int block = static_cast<int>(blockIdx.x), begin = run.begin + unit_begin;
    const Share share = share_of(run, begin, item.units);
    const int piece = ((2 * block + (share.first == block ? 1 : 0) << cut.head_shift) + team.head) * cut.rows;
    columns.sum_denominators();
    if (wide) {
      constexpr bool kInStage = kSumsInStage<S, kDim, kTiles>;
      const int from = kInStage ? stage * S::kStageBytes : S::kRingBytes;
      const int stride = kInStage ? kStages * S::kStageBytes / 4 : cut.rows * kDim;  // of warps
      float* warp_sums = reinterpret_cast<float*>(shared_pieces) + from / 4;
      columns.template store_rows<true>(kDim, steps, warp_sums + warp * stride, warp_parts[warp]);
      __syncthreads();
      join_warps<kDim>(p, x, cut, pieces, item, share.count == 1, v_scale, warp_parts, warp_sums, stride, piece);
    } else if (share.count == 1) {
      columns.store_results(p, item, item.kv_head + head_lane, v_scale, static_cast<bf16*>(x.out.data));
    } else {
      columns.template store_rows<false>(p.dim, steps, pieces.sums + static_cast<int64_t>(piece) * p.dim,
                                         pieces.parts + piece);
    }
    if (share.count > 1) join_blocks<kDim>(p, x, cut, pieces, item, share, team, v_scale);
    if (unit + 1 == run.count) break;
    if (wide) __syncthreads();  // warp_sums and warp_parts have been read
    columns.clear();
    unit_begin = unit + 1, entering = true;
    own_item = own_item + 1 == kStages ? 0 : own_item + 1;
  }
  mma::wait_copies<0>();
}

template <typename T, int kDim, int kTiles, int kStages, int kBlocks>
Instance instance() {
  using S = Shape<T, kDim, kStages>;
  return {.kernel = paged_decode_mma_kernel<T, kDim, kTiles, kStages, kBlocks>,
          .facts = {.rows = 8 * kTiles,
                    .ring_bytes = S::kRingBytes,
                    .sums_bytes = kSumsInStage<S, kDim, kTiles> ? 0 : kDim * static_cast<int>(sizeof(float))}};
}

}  // namespace octet::cuda::decode
