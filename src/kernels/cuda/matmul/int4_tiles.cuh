// Weights of 4 bits times x: y^T = W x^T, so that the codes become the left operand of wgmma, in registers, and x the
// right one, in shared memory. Tiles of both in shared memory, how they are copied, and the operands made of them.
#pragma once

#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/matmul/int4.h"
#include "kernels/cuda/matmul/int4_fragments.cuh"

namespace octet::cuda::int4 {

inline constexpr int kMultiplying = 256;
// Registers go from the copying warps to the multiplying ones by whole warp groups.
constexpr int threads(int tokens) { return kMultiplying + (tokens <= 32 ? 32 : 128); }
inline constexpr int kRows = static_cast<int>(kInt4Rows), kDepth = static_cast<int>(kInt4Depth);
inline constexpr int kCodeBytes = kRows * kDepth / 2, kMaxStages = kInt4MostStages;
inline constexpr int kSumStride = kRows + 4;  // floats, of a row of x, where blocks join

template <typename T>  // of x, e4m3 or bf16
inline constexpr DType kType = sizeof(T) == 1 ? DType::kE4M3 : DType::kBF16;
template <typename T, int kTokens, int kGroup>
struct Shape {
  static constexpr int kGroups = kDepth / kGroup;  // of a tile
  static constexpr int kXBytes = kTokens * kDepth * static_cast<int>(sizeof(T));
  static constexpr int kScaleBytes = kGroups * kRows * 4, kZeroBytes = kGroups * kRows;
  static constexpr int kStageBytes = static_cast<int>(int4_stage_bytes(kTokens, kType<T>, kGroup));
  static constexpr int kSumBytes = kTokens * kSumStride * 4;
  static constexpr int list_at(int stages) {  // behind all else
    const int tiles = stages * kStageBytes + (kTokens >= kInt4ManyRows ? static_cast<int>(kInt4StagingBytes) : 0);
    return tiles > kSumBytes ? tiles : kSumBytes;
  }
  static constexpr int bytes(int stages, int experts) {
    return list_at(stages) + (kTokens >= kInt4ManyRows ? static_cast<int>(int4_list_bytes(experts)) : 0) + 1024;
  }
};

// A stage in the order of its uses, and the parity of this one.
struct Turn {
  int stage = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ Turn next(int stages) const {
    return stage + 1 < stages ? Turn{stage + 1, phase} : Turn{0, phase ^ 1};
  }
};

struct Stage {
  uint32_t x, codes, scales, zeros;  // shared addresses
};
template <typename S>
__device__ __forceinline__ Stage stage_at(uint32_t base, int stage) {
  const uint32_t x = base + static_cast<uint32_t>(stage * S::kStageBytes);
  return {x, x + S::kXBytes, x + S::kXBytes + kCodeBytes, x + S::kXBytes + kCodeBytes + S::kScaleBytes};
}

template <typename V>
__device__ __forceinline__ V load_shared(uint32_t address) {
  return *static_cast<const V*>(__cvta_shared_to_generic(address));
}
__device__ __forceinline__ void bulk_load_at(uint32_t to, const void* from, uint32_t bytes, Mbarrier& barrier) {
  bulk_load(__cvta_shared_to_generic(to), from, bytes, barrier);
}

// Codes, scales and zeros of a tile.
template <typename S>
__device__ __forceinline__ void copy_weights(const Int4Product& p, int64_t row_tile, int64_t step, const Stage& to,
                                             Mbarrier& full) {
  const int64_t steps = p.k / kDepth, group = p.group == p.k ? 0 : step * S::kGroups;
  full.arrive_expect(
      static_cast<uint32_t>(S::kXBytes + kCodeBytes + S::kScaleBytes + (p.zeros != nullptr ? S::kZeroBytes : 0)));
  bulk_load_at(to.codes, static_cast<const std::byte*>(p.codes) + (row_tile * steps + step) * kCodeBytes, kCodeBytes,
               full);
  for (int g = 0; g < S::kGroups; ++g) {
    const int64_t at = (group + g) * p.n * p.experts + row_tile * kRows;
    bulk_load_at(to.scales + static_cast<uint32_t>(g * kRows * 4), p.scales + at, kRows * 4, full);
    if (p.zeros != nullptr) bulk_load_at(to.zeros + static_cast<uint32_t>(g * kRows), p.zeros + at, kRows, full);
  }
}

// Rows [first, first + kTokens) of x in K [128 step, ..), swizzled; rows that do not exist become zeros.
template <typename T, int kTokens>
__device__ __forceinline__ void copy_x(const CUtensorMap& x, int first, int step, uint32_t to, Mbarrier& full) {
  unroll<sizeof(T)>([&](int panel) {
    load_tile(to + static_cast<uint32_t>(panel * kTokens * 128), x, first, step * kDepth + panel * 64, full);
  });
}

// What a lane has of a tile's codes: by 32 of K, of rows g and g + 8.
struct Codes {
  uint32_t at[4][2];

  __device__ __forceinline__ void read(uint32_t codes) {
    unroll<2>([&](int piece) {
      const auto four = load_shared<uint4>(codes + static_cast<uint32_t>(piece * 2048));
      at[2 * piece][0] = four.x, at[2 * piece][1] = four.y, at[2 * piece + 1][0] = four.z,
             at[2 * piece + 1][1] = four.w;
    });
  }
};

// The left operands of kUnit of K, and the scales of rows g and g + 8 of its groups.
template <typename T, int kUnit, int kGroups>
struct Fragments {
  static constexpr int kProducts = kUnit * static_cast<int>(sizeof(T)) / 32;
  uint32_t a[kProducts][4];
  float scale[kGroups][2];

  // `unit` of a tile, whose first group is `first`; less zero points if `unpack` does so.
  template <bool kZeros>
  __device__ __forceinline__ void make(const Codes& codes, const Stage& tile, int unit, int first, int row,
                                       const Unpack<T, kZeros>& unpack) {
    constexpr int kChunks = kUnit / 32, kWords = 2 * kProducts / kChunks, kOfGroup = kChunks / kGroups;
    unroll<2>([&](int high) {
      unroll<kGroups>([&](int group) {
        const auto at = static_cast<uint32_t>((first + group) * kRows + row + 8 * high);
        scale[group][high] = load_shared<float>(tile.scales + at * 4) * Unpack<T, kZeros>::kOne;
        const auto of_row = unpack.row(kZeros ? load_shared<int8_t>(tile.zeros + at) + 8 : 8);
        unroll<kOfGroup>([&](int i) {
          const int n = group * kOfGroup + i;
          uint32_t words[kWords];
          unpack(of_row, codes.at[unit * kChunks + n][high], words);
          unroll<kWords>([&](int w) {
            asm volatile("" : "+r"(words[w]));  // made here, not between products
            a[(n * kWords + w) / 2][w % 2 * 2 + high] = words[w];
          });
        });
      });
    });
  }
};

}  // namespace octet::cuda::int4
