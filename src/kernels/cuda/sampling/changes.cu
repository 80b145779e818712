// Small writes around sampling: ids fed back, logits adjusted.
#include "kernels/cuda/common/operand.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/sampling/sampling.h"

namespace octet::cuda {
namespace {

constexpr int kThreads = 256;

unsigned blocks_for(int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

__global__ void select_token_ids_kernel(const int32_t* ids, const int32_t* sampled, const int32_t* from, int tokens,
                                        int sequences, int32_t* out) {
  griddep_wait();
  griddep_launch_dependents();
  const int t = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (t >= tokens) return;
  const int32_t source = from[t];
  out[t] = source >= 0 && source < sequences ? max(sampled[source], 0) : ids[t];
}

__global__ void adjust_entries_kernel(LogitChanges c) {
  griddep_wait();
  griddep_launch_dependents();
  const int e = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (e >= c.count) return;
  const int row = c.entries[2 * e], token = c.entries[2 * e + 1];
  if (row < 0 || row >= c.rows || token < 0 || token >= c.vocab) return;
  const float bias = c.values[3 * e], repetition = c.values[3 * e + 1], penalty = c.values[3 * e + 2];
  const int64_t at = static_cast<int64_t>(row) * c.vocab + token;
  const float x = load(c.logits, at) + bias;
  store(c.logits, at, (x > 0 ? x / repetition : x * repetition) - penalty);
}

// A thread has a word of the mask, 32 tokens; words of ones are left alone.
__global__ void adjust_masks_kernel(LogitChanges c) {
  griddep_wait();
  griddep_launch_dependents();
  const int row = static_cast<int>(blockIdx.y), mask = c.mask_rows[row];
  if (mask < 0 || mask >= c.mask_count) return;
  const int words = (c.vocab + 31) / 32;
  // Neighbouring lanes take neighbouring tokens: a warp loads 32 words, then walks them.
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int first = (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) / 32 * 32;
  const uint32_t mine = first + lane < words ? c.masks[static_cast<int64_t>(mask) * words + first + lane] : 0xffffffffu;
  for (int i = 0; i < 32; ++i) {
    const uint32_t word = __shfl_sync(0xffffffffu, mine, i);
    const int token = (first + i) * 32 + lane;
    if ((word >> lane & 1) == 0 && token < c.vocab) {
      store(c.logits, static_cast<int64_t>(row) * c.vocab + token, __uint_as_float(0xff800000u));
    }
  }
}

}  // namespace

void launch_select_token_ids(const int32_t* ids, const int32_t* sampled, const int32_t* from, int tokens, int sequences,
                             int32_t* out, cudaStream_t stream) {
  if (tokens == 0) return;
  launch_overlapped(select_token_ids_kernel, {blocks_for(tokens), kThreads}, stream, ids, sampled, from, tokens,
                    sequences, out);
}

void launch_adjust_logits(const LogitChanges& changes, cudaStream_t stream) {
  if (changes.rows == 0) return;
  if (changes.count > 0) {
    launch_overlapped(adjust_entries_kernel, {blocks_for(changes.count), kThreads}, stream, changes);
  }
  if (changes.masks == nullptr || changes.mask_count == 0) return;
  const dim3 grid(blocks_for((changes.vocab + 31) / 32), static_cast<unsigned>(changes.rows));
  launch_overlapped(adjust_masks_kernel, {grid, kThreads}, stream, changes);
}

}  // namespace octet::cuda
