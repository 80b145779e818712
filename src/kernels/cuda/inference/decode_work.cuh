// The work of tensor-core decoding as one line of units that the blocks of a fixed grid cut into equal runs.
//
// Lengths are known on the device only, so the grid cannot follow them. An item is (sequence, chunk of rows, group of
// key heads); its units are steps over its keys, in which each warp of a block takes one tile of kUnitKeys keys:
// head_warps neighbouring key heads by key_warps neighbouring tiles. Items lie one after the other; a block finds the
// start of its run by summing the units of all sequences, and an item that two or more blocks share is joined later.
#pragma once

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/inference/paged.cuh"
#include "kernels/cuda/inference/paged_decode_mma.h"

namespace octet::cuda::decode {

// A place in the line of units.
struct Place {
  PagedSequence sequence;
  int index;               // of the sequence
  int chunk, group, unit;  // of the sequence's items; of the item's units
  int chunks, units;       // of the sequence; of each of its items
  int oldest, first_tile;  // key and tile of keys that the first query sees

  __device__ void enter(const PagedProblem& p, const PagedOperands& x, const Cut& cut, int s) {
    index = s, sequence = PagedSequence::of(p, x, s);
    const bool decoded = sequence.queries > 0 && sequence.queries <= kDecodeQueries;
    chunk = group = unit = chunks = 0;
    for (int rows = decoded ? sequence.queries * p.group : 0; rows > 0; rows -= cut.rows) ++chunks;
    oldest = sequence.first_key(p, 0), first_tile = oldest / kUnitKeys;
    const int tiles = (sequence.length + kUnitKeys - 1) / kUnitKeys - first_tile;
    units = decoded ? max(0, tiles + cut.key_warps() - 1) * cut.head_warps() / kWarps : 0;
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
};

// A block's run of units.
struct Run {
  int begin, count, each;  // each: the run of a block that does not reach the end
  Place place;             // the first one
};

struct RunScratch {
  int warp_sums[kWarps];
  int sequence, offset;
};

// All threads call it; false where nothing is left for this block.
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
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) until += scratch.warp_sums[w];
    total += scratch.warp_sums[w];
  }
  run.each = max(1, (total + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x));
  run.begin = static_cast<int>(blockIdx.x) * run.each;
  run.count = min(run.each, total - run.begin);
  if (run.count <= 0) return false;
  if (until - own <= run.begin && run.begin < until) {
    int before = until - own, s = from;
    for (;; ++s) {
      Place place;
      place.enter(p, x, cut, s);
      const int units = place.all_units(cut);
      if (run.begin < before + units) break;
      before += units;
    }
    scratch.sequence = s, scratch.offset = run.begin - before;
  }
  __syncthreads();
  run.place.enter(p, x, cut, scratch.sequence);
  run.place.skip(cut, scratch.offset);
  return true;
}

}  // namespace octet::cuda::decode
