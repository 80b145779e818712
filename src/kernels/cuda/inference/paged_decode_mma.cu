// Decode over the paged cache on tensor cores: queries of bf16, a cache of bf16, or of FP8 or int8 codes.
// Bound by reading the cache.
//
// A warp walks over tiles of 16 keys of one key head through its own ring of stages in shared memory (decode_copy.cuh),
// which runs ahead across the ends of items (decode_work.cuh), so that short contexts keep the memory as busy as long
// ones. What it makes of a tile is in decode_columns.cuh, how parts of an item become one result in decode_join.cuh.
// Loops are not peeled: one call runs through most of the code only once, and instruction cache misses of cold code
// cost more than the steps.
#include "kernels/cuda/inference/decode_columns.cuh"
#include "kernels/cuda/inference/decode_copy.cuh"
#include "kernels/cuda/inference/decode_join.cuh"

namespace octet::cuda {
namespace decode {
namespace {

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
      if constexpr (S::kScales) columns.multiply_by(values + S::kTileBytes, scores);
      if (p.alibi != 0) columns.add_biases(p, first_key, biases[warp], scores);
      columns.mask(p, cut, first_key, scores);
      columns.weigh(steps, scores);
      if constexpr (S::kScales) columns.multiply_by(values + S::kTileBytes + S::kScalesBytes, scores);
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

// block_shift: log2 of the size of the cache's blocks.
using Kernel = void (*)(PagedProblem p, PagedOperands x, Cut cut, int block_shift, Pieces pieces);
struct Instance {
  Kernel kernel;
  DecodeKernelFacts facts;
};

template <typename T, int kDim, int kTiles, int kStages, int kBlocks>
Instance instance() {
  using S = Shape<T, kDim, kStages>;
  return {.kernel = paged_decode_mma_kernel<T, kDim, kTiles, kStages, kBlocks>,
          .facts = {.rows = 8 * kTiles,
                    .ring_bytes = S::kRingBytes,
                    .sums_bytes = kSumsInStage<S, kDim, kTiles> ? 0 : kDim * static_cast<int>(sizeof(float))}};
}

Instance instance_of(const PagedProblem& p, DType cache) {
  const bool wide = p.group > 8;  // more than 8 rows
  Instance chosen;
  const auto choose_codes = [&]<typename T>(T) {
    if (p.dim <= 64) {
      chosen = wide ? instance<T, 64, 4, 4, 2>() : instance<T, 64, 1, 4, 3>();
    } else if (p.dim <= 128) {
      chosen = wide ? instance<T, 128, 2, 3, 2>() : instance<T, 128, 1, 3, 4>();
    } else {
      chosen = instance<T, 256, 1, 3, 2>();
    }
  };
  if (with_code_type(cache, choose_codes)) return chosen;
  if (p.dim <= 64) return wide ? instance<bf16, 64, 4, 3, 2>() : instance<bf16, 64, 1, 4, 3>();
  if (p.dim <= 128) return wide ? instance<bf16, 128, 2, 3, 2>() : instance<bf16, 128, 1, 3, 2>();
  return instance<bf16, 256, 1, 3, 1>();
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

DecodeKernelFacts decode_kernel_facts(const PagedProblem& p, DType cache) { return instance_of(p, cache).facts; }

DecodePlan plan_paged_decode_mma(const PagedProblem& p, DType cache, const DeviceFacts& device) {
  const Instance instance = instance_of(p, cache);
  const auto blocks_per_sm = [&](int64_t shared) {
    allow_shared(instance.kernel, static_cast<size_t>(shared));
    int blocks = 0;
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, instance.kernel, kThreads, static_cast<size_t>(shared));
    return blocks;
  };
  return choose(DecodeDesc{p, instance.facts, blocks_per_sm}, device);
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
