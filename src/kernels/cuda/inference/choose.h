// How decode over the paged cache is split over the device: pure functions of the problem and of the device, tested
// without a GPU and printed in profiles (to_string).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "kernels/cuda/choose.h"

namespace octet::cuda {

struct PagedProblem {
  int tokens = 0, sequences = 0, heads = 0, kv_heads = 0, dim = 0;
  int window = 0, block_size = 0, blocks = 0, slots = 0;  // blocks: of the table, a sequence; slots: of the cache
  int group = 1;                                          // heads / kv_heads
  int first_head = 0, all_heads = 0;                      // the place of these heads among those of the whole
  int max_query_len = 0;                                  // of a sequence; 0: any number
  bool inputs_ready = false;  // segments, lengths and table are inputs of the graph: no kernel of a step writes them
  float scale = 1;
  double alibi = 0, alibi_scale = 1;  // as kernels/common/alibi.h; 0: none
};

// Sequences of up to this many queries are decoded (memory-bound: all heads of a key head share one walk over its
// keys, split over the context); longer ones are prefilled (tiles of 64 queries).
inline constexpr int kDecodeQueries = 4;
inline bool may_prefill(const PagedProblem& p) {
  return p.tokens > kDecodeQueries && (p.max_query_len == 0 || p.max_query_len > kDecodeQueries);
}

// Decode in float32, any type and head dim: a block takes one split of the context of one (sequence, key head) and
// kDecodeRows of its (query, head of the group) pairs.
inline constexpr int kDecodeWarps = 4, kDecodeRows = 4, kDecodeKeys = 32;  // of a block; of a warp's turn
inline constexpr int kMaxDecodeSplits = 128;
struct SplitDecodePlan {
  int lanes = 8;                     // that read a key, 8 elements each
  int splits = 1;                    // of the context
  std::array<int64_t, 3> grid = {};  // sequences, key heads * chunks of rows, splits
  int64_t scratch_bytes = 0;         // sums, maxima and denominators of every split
};
SplitDecodePlan choose_decode(const PagedProblem& problem, const DeviceFacts& device);
std::string to_string(const SplitDecodePlan& plan);

// Decode on tensor cores: persistent blocks, each with an equal share of all tiles of keys. Lengths are known on the
// device only: one plan is for all of them.
namespace decode {
inline constexpr int kWarpShift = 2, kWarps = 1 << kWarpShift, kThreads = 32 * kWarps;
inline constexpr int kFanShift = 5, kFan = 1 << kFanShift;  // pieces joined at once
inline constexpr int kMaxBlocks = kFan * kFan;              // joined in two steps at most
}  // namespace decode
inline constexpr int64_t kDecodePartialBytes = 8;  // of a row of a piece: anchor and denominator
// Facts of a compiled kernel: maximum rows of a chunk; shared memory of its rings, and of each row's and warp's sums.
struct DecodeKernelFacts {
  int rows = 8, ring_bytes = 0, sums_bytes = 0;
};
struct DecodePlan {
  int head_shift = 0;       // log2 of the key heads that a block's warps share out; 2: one each
  int groups = 1;           // of 1 << head_shift key heads
  int rows = 8;             // (query, head of the group) pairs of a chunk
  int blocks = 0;           // of the grid
  int64_t shared = 0;       // bytes of dynamic shared memory
  int64_t parts_bytes = 0;  // of the scratch: before the sums
  int64_t scratch_bytes = 0;
  uint32_t* counters = nullptr;  // kDecodeCounters of them, 0 before and after: the caller sets it
};
struct DecodeDesc {
  PagedProblem problem = {};
  DecodeKernelFacts kernel = {};
  std::function<int(int64_t shared)> blocks_per_sm = {};  // with so many bytes of dynamic shared memory
};
std::vector<DecodePlan> candidates(const DecodeDesc& desc, const DeviceFacts& device);
std::string to_string(const DecodePlan& plan);

}  // namespace octet::cuda
