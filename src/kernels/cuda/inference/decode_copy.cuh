// The copying side of tensor-core decoding: a warp's tiles of keys and values, from the paged cache into its own ring
// of stages in shared memory, ahead of the arithmetic and across the ends of items. k, v: [slots, kv_heads, dim] T; of
// an int8 cache also their scales, [slots, kv_heads].
#pragma once

#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/inference/decode_work.cuh"

namespace octet::cuda::decode {

// A stage of a warp: 16 keys, then their values, rows of kDim elements in pieces of 16 bytes; of int8 then the scales
// of the keys and of the values.
template <typename T, int kDim, int kStages>
struct Shape {
  static constexpr int kRowBytes = kDim * static_cast<int>(sizeof(T)), kPieces = kRowBytes / 16;
  static constexpr bool kScales = std::is_same_v<T, int8_t>;
  static constexpr int kTileBytes = kUnitKeys * kRowBytes, kScalesBytes = kUnitKeys * static_cast<int>(sizeof(float));
  static constexpr int kStageBytes = 2 * (kTileBytes + (kScales ? kScalesBytes : 0));
  static constexpr int kStageCount = kStages, kRingBytes = kWarps * kStages * kStageBytes;

  // Swizzled so that the eight lanes of a phase of the fragments' reads take different banks.
  __device__ static uint32_t offset(int row, int piece) {
    if constexpr (sizeof(T) == 2) {
      return static_cast<uint32_t>(row * kRowBytes + ((piece ^ (row & 7)) << 4));
    } else if constexpr (kPieces >= 8) {
      return static_cast<uint32_t>(row * kRowBytes + ((piece ^ (row & 6) ^ (row & 1) << 2) << 4));
    } else {
      return static_cast<uint32_t>(row / 2 * 128 + ((((row & 1) << 2 | piece) ^ (row & 6)) << 4));
    }
  }
};

// As mma::copy16_async; L2 evicts first what is read once.
__device__ __forceinline__ void copy16_once_async(uint32_t to, const void* from, bool exists) {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;\n" ::"r"(to), "l"(from),
               "r"(exists ? 16 : 0), "l"(policy));
}

__device__ __forceinline__ void copy4_async(uint32_t to, const void* from, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(to), "l"(from), "r"(exists ? 4 : 0));
}

template <typename T, typename S>
struct Copier {
  Place place;       // the next unit
  int left;          // units of the run from there on
  bool fresh;        // the next one is the first of its item that is copied here
  int block;         // of the cache: of this warp's tile, looked up one unit ahead; -1: none
  const char* keys;  // what this lane copies of key 0 of block 0 of the cache, for the item's head
  int seen;          // keys from place.oldest on that this lane copies

  __device__ __forceinline__ void start(const Run& run, const Cut& cut, int block_shift) {
    place = run.place, left = run.count, fresh = true;
    look_up(cut, block_shift);
  }

  // This warp's tile of the next unit into the stage at `to`, zeros for keys that no query sees; nothing behind the
  // end. With an item's first tile the item goes to `items`, a ring of kStages with `next_item` the next to be written.
  __device__ __forceinline__ void copy(const PagedProblem& p, const PagedOperands& x, const Cut& cut, int block_shift,
                                       uint32_t to, Item* items, int& next_item) {
    if (left > 0) {
      const int lane = static_cast<int>(threadIdx.x) % 32;
      const int own_piece = lane % S::kPieces, own_row = lane / S::kPieces;
      const int row_bytes = p.kv_heads * p.dim * static_cast<int>(sizeof(T));
      if (fresh) {
        const Item item = place.item(p, cut);
        if (lane == 0) items[next_item] = item;
        next_item = next_item + 1 == S::kStageCount ? 0 : next_item + 1;
        point(p, x, cut, item, own_piece, own_row, row_bytes);
      }
      const int key = first_key(cut), slot = (block << block_shift) + (key & (p.block_size - 1));
      const bool exists = static_cast<uint32_t>(block) <= static_cast<uint32_t>(p.slots - 1) >> block_shift &&
                          slot + kUnitKeys <= p.slots;
      const char* from_keys = keys + static_cast<int64_t>(exists ? slot : 0) * row_bytes;
      const char* from_values =
          from_keys + (reinterpret_cast<intptr_t>(x.v.data) - reinterpret_cast<intptr_t>(x.k.data));
      const int row = key - place.oldest + own_row, end = exists ? seen : 0;
      constexpr int kRowsAtOnce = 32 / S::kPieces;
      unroll<kUnitKeys / kRowsAtOnce>([&](int n) {
        const bool copies = static_cast<uint32_t>(row + n * kRowsAtOnce) < static_cast<uint32_t>(end);
        const int64_t step = static_cast<int64_t>(row_bytes) * (n * kRowsAtOnce);
        const uint32_t offset = to + S::offset(own_row + n * kRowsAtOnce, own_piece);
        copy16_once_async(offset, from_keys + step, copies);
        copy16_once_async(offset + S::kTileBytes, from_values + step, copies);
      });
      if constexpr (S::kScales) {
        static_assert(2 * kUnitKeys == 32);
        const int at = key + lane % kUnitKeys, head = (place.group << cut.head_shift) + head_lane(cut);
        const bool copies = exists && at >= place.oldest && at < place.sequence.length;
        const float* from = (lane < kUnitKeys ? x.k_scales : x.v_scales) + head;
        const int64_t own_slot = copies ? slot + lane % kUnitKeys : 0;
        copy4_async(to + 2 * S::kTileBytes + static_cast<uint32_t>(4 * lane), from + own_slot * p.kv_heads, copies);
      }
      if (--left > 0) {
        place.advance(p, x, cut);
        fresh = place.unit == 0;
        look_up(cut, block_shift);
      }
    }
    mma::commit_copies();
  }

 private:
  __device__ __forceinline__ int first_key(const Cut& cut) const {
    return place.key(cut, static_cast<int>(threadIdx.x) / 32 >> cut.head_shift);
  }
  __device__ __forceinline__ static int head_lane(const Cut& cut) {
    return static_cast<int>(threadIdx.x) / 32 & (cut.head_warps() - 1);
  }
  __device__ __forceinline__ void look_up(const Cut& cut, int block_shift) {
    const int key = first_key(cut);
    block = key < place.sequence.length ? place.sequence.table[key >> block_shift] : -1;
  }
  // Also prefetches the item's rows of q [heads, dim] bf16: those of one query are contiguous.
  __device__ __forceinline__ void point(const PagedProblem& p, const PagedOperands& x, const Cut& cut, const Item& item,
                                        int own_piece, int own_row, int row_bytes) {
    const int head_bytes = p.dim * static_cast<int>(sizeof(T));
    const int head = item.kv_head + head_lane(cut);
    keys = static_cast<const char*>(x.k.data) + (own_row * row_bytes + head * head_bytes + own_piece * 16);
    seen = own_piece * 16 < head_bytes ? item.length - place.oldest : 0;
    const int ahead = static_cast<int>(threadIdx.x) % 32 * 128;
    if (item.queries == 1 && ahead < item.rows.count * p.dim * 2) {
      const char* from = static_cast<const char*>(x.q.data) + 2 * item.rows.element(p, head, 0);
      prefetch_line(from + ahead);
    }
  }
};

}  // namespace octet::cuda::decode
