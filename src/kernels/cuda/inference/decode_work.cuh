// The work of tensor-core decoding as one sequence of units, split into equal runs by persistent CTAs.
//
// Lengths are known on the device only, so the grid is fixed. An item is (sequence, chunk of rows, group of
// key heads); its units are steps over its keys, in which each warp of a block takes one tile of kUnitKeys keys:
// head_warps neighbouring key heads by key_warps neighbouring tiles. Items lie one after the other; a block finds the
// start of its run by a prefix sum over the units of all sequences. Items of two or more blocks: decode_join.cuh.
#pragma once

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/inference/paged.cuh"

namespace octet::cuda::decode {

inline constexpr int kUnitShift = 4, kUnitKeys = 1 << kUnitShift;
static_assert(2 * kMaxBlocks * kWarps * 2 <= kDecodeCounters);

// How the work is split, as the kernel gets it besides the problem (DecodePlan).
static_assert(kDecodeQueries == 4);
struct Cut {
  int head_shift = 0;   // log2 of head_warps, which divides the key heads; the other factor of kWarps are tiles of keys
  int groups = 1;       // of head_warps key heads
  int rows = 8;         // (query, head of the group) pairs of a chunk
  int window = 0;       // keys a query sees
  uint64_t chunks = 0;  // of a sequence with n queries: bits 16 n - 16 to 16 n - 1

  __host__ __device__ int head_warps() const { return 1 << head_shift; }
  __host__ __device__ int key_shift() const { return kWarpShift - head_shift; }
  __host__ __device__ int key_warps() const { return 1 << key_shift(); }
  __host__ __device__ int chunks_of(int queries) const {  // none where nothing is to be decoded
    if (queries < 1 || queries > kDecodeQueries) return 0;
    return static_cast<int>(chunks >> (16 * (queries - 1)) & 0xffff);
  }
};

// Softmax state of a row over the keys of one warp or block: the largest score as a power of two, and the denominator.
struct Partial {
  float anchor, sum;
};

// Partial results of items that several blocks share: piece 2 b of an item begun before the run of block b, piece
// 2 b + 1 of one begun in it.
struct Pieces {
  Partial* parts;      // [2 blocks, head_warps, rows]
  float* sums;         // [2 blocks, head_warps, rows, dim]
  uint32_t* arrivals;  // [2 blocks, kWarps, 2], 0 before and after the kernel: counts of teams, by the first piece
};

// Rows `first` to `first` + `count` of a sequence's (query, head of the group) pairs, the same for each key head.
struct Rows {
  int begin, first, count;  // begin: the sequence's first query token

  __device__ int query(const PagedProblem& p, int r) const {
    const int row = first + r;
    return (row >= p.group ? 1 : 0) + (row >= 2 * p.group ? 1 : 0) + (row >= 3 * p.group ? 1 : 0);
  }
  // The element of q and out, [tokens, heads, dim], where row r of a key head begins.
  __device__ int64_t element(const PagedProblem& p, int kv_head, int r) const {
    const int at = query(p, r);
    return static_cast<int64_t>((begin + at) * p.heads + (kv_head - at) * p.group + first + r) * p.dim;
  }
};

// An item, as the arithmetic gets it.
struct alignas(16) Item {
  Rows rows;
  int kv_head;            // the first of the group
  int queries, length;    // of the sequence
  int first_tile, units;  // of keys that a query sees

  __device__ int position() const { return length - queries; }  // of the first query
  // The first key of unit `unit` for warp `key_lane` of those that share a head.
  __device__ int key(const Cut& cut, int unit, int key_lane) const {
    return (first_tile + (unit << cut.key_shift()) + key_lane) << kUnitShift;
  }
};

// A position among the units.
struct Place {
  PagedSequence sequence;
  int index;               // of the sequence
  int chunk, group, unit;  // of the sequence's items; of the item's units
  int chunks, units;       // of the sequence; of each of its items
  int oldest;              // the first key that a query sees

  __device__ void enter(const PagedProblem& p, const PagedOperands& x, const Cut& cut, int s) {
    index = s, sequence = PagedSequence::of(p, x, s);
    chunk = group = unit = 0;
    chunks = cut.chunks_of(sequence.queries);
    oldest = max(0, sequence.position(0) - cut.window + 1);
    const int tiles = ((sequence.length + kUnitKeys - 1) >> kUnitShift) - (oldest >> kUnitShift);
    units = chunks > 0 ? max(0, tiles + cut.key_warps() - 1) >> cut.key_shift() : 0;
  }
  __device__ int all_units(const Cut& cut) const { return units * chunks * cut.groups; }
  // To unit `offset` of the sequence.
  __device__ void skip(const Cut& cut, int offset) {
    const int item = offset / units;
    unit = offset - item * units, chunk = item / cut.groups, group = item - chunk * cut.groups;
  }
  // The next unit; there must be one.
  __device__ void advance(const PagedProblem& p, const PagedOperands& x, const Cut& cut) {
    if (++unit < units) return;
    unit = 0;
    if (++group < cut.groups) return;
    group = 0;
    if (++chunk < chunks) return;
    do enter(p, x, cut, index + 1);
    while (units == 0);
  }
  __device__ Item item(const PagedProblem& p, const Cut& cut) const {
    const int first = chunk * cut.rows;
    return {.rows = {sequence.begin, first, min(cut.rows, sequence.queries * p.group - first)},
            .kv_head = group << cut.head_shift,
            .queries = sequence.queries,
            .length = sequence.length,
            .first_tile = oldest >> kUnitShift,
            .units = units};
  }
  __device__ int key(const Cut& cut, int key_lane) const {
    return ((oldest >> kUnitShift) + (unit << cut.key_shift()) + key_lane) << kUnitShift;
  }
};

// A block's run of units.
struct Run {
  int begin, count, each;  // each: the run of a block that does not reach the end
  Place place;             // the first one
};

struct RunScratch {
  int warp_sums[kWarps];
  int sequence, before;  // where to look for the run; the units before that sequence
};

// All threads call it; false where nothing is left for this block. Reads what no kernel of a step writes, unless
// problem.inputs_ready is false.
__device__ __forceinline__ bool find_run(const PagedProblem& p, const PagedOperands& x, const Cut& cut,
                                         RunScratch& scratch, Run& run) {
  const int i = static_cast<int>(threadIdx.x), lane = i % 32, warp = i / 32;
  const int each = (p.sequences + kThreads - 1) / kThreads;
  const int from = min(i * each, p.sequences), to = min(from + each, p.sequences);
  int own = 0;
#pragma unroll 4
  for (int s = from; s < to; ++s) {
    Place place;
    place.enter(p, x, cut, s);
    own += place.all_units(cut);
  }
  int until = own;  // units up to and with this thread's sequences
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes <<= 1) {
    const int before = __shfl_up_sync(kWholeWarp, until, lanes);
    if (lane >= lanes) until += before;
  }
  if (lane == 31) scratch.warp_sums[warp] = until;
  __syncthreads();
  int total = 0;
  unroll<kWarps>([&](int w) {
    if (w < warp) until += scratch.warp_sums[w];
    total += scratch.warp_sums[w];
  });
  run.each = max(1, (total + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x));
  run.begin = static_cast<int>(blockIdx.x) * run.each;
  run.count = min(run.each, total - run.begin);
  if (run.count <= 0) return false;
  if (until - own <= run.begin && run.begin < until) scratch.sequence = from, scratch.before = until - own;
  __syncthreads();
  // Of the sequences of the thread that has it.
  int offset = run.begin - scratch.before;
  for (int s = scratch.sequence;; ++s) {
    run.place.enter(p, x, cut, s);
    const int units = run.place.all_units(cut);
    if (offset < units) break;
    offset -= units;
  }
  run.place.skip(cut, offset);
  return true;
}

// Rows of out [tokens, heads, dim] bf16 beyond the last sequence become 0: spread over all blocks.
__device__ __forceinline__ void clear_padding(const PagedProblem& p, const PagedOperands& x) {
  const int pieces = p.heads * p.dim / 8;  // of 16 bytes
  for (int token = x.segments[p.sequences] + static_cast<int>(blockIdx.x); token < p.tokens;
       token += static_cast<int>(gridDim.x)) {
    auto* row = static_cast<uint4*>(x.out.data) + static_cast<int64_t>(token) * pieces;
    for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kThreads) row[i] = uint4{};
  }
}

}  // namespace octet::cuda::decode
