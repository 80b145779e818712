// What a warp group does with the tiles: 64 columns of y for all rows of x.
#pragma once

#include "kernels/cuda/matmul/int4_tiles.cuh"

namespace octet::cuda::int4 {

// Few rows leave the tensor cores time: e4m3 codes' zero points are products of their own with x, which costs less than
// tables.
template <typename T, int kTokens, bool kZeros>
inline constexpr bool kZerosMultiplied = kZeros && sizeof(T) == 1 && kTokens < kInt4ManyRows;
template <typename T, int kTokens, bool kZeros>
using UnpackOf = Unpack<T, kZeros && !kZerosMultiplied<T, kTokens, kZeros>>;

// A warp group's share of the tiles of few rows of x, by units of K: operands of a unit are made while the one before
// is multiplied.
template <typename T, int kTokens, int kGroup, bool kZeros>
__device__ __forceinline__ void multiply_few(uint32_t base, int stages, int steps, Mbarrier* full, Mbarrier* empty,
                                             const uint32_t* constants, float (&sums)[kTokens / 2]) {
  using S = Shape<T, kTokens, kGroup>;
  constexpr int kMaxUnit = 128 / static_cast<int>(sizeof(T)), kUnit = kGroup < kMaxUnit ? kGroup : kMaxUnit;
  constexpr int kUnits = kDepth / kUnit, kOfGroup = kGroup / kUnit;
  using F = Fragments<T, kUnit, 1>;
  const int thread = static_cast<int>(threadIdx.x) % 128, side = static_cast<int>(threadIdx.x) / 128;
  const int lane = thread % 32, row = side * 64 + thread / 32 * 16 + lane / 4;
  const uint64_t descriptors = wgmma::descriptor(base);  // of x of stage 0
  constexpr bool kMultiplied = kZerosMultiplied<T, kTokens, kZeros>;
  const UnpackOf<T, kTokens, kZeros> unpack(constants);
  float part[kTokens / 2];
  Codes codes;
  struct Unit : F {
    uint32_t zeros[4];
  } first, second;
  int stage = 0, phase = 0;
  const auto make = [&](Unit& f, int unit) {
    if (unit == 0) {
      full[stage].wait(static_cast<uint32_t>(phase));
      codes.read(stage_at<S>(base, stage).codes + static_cast<uint32_t>(side * kCodeBytes / 2 + thread * 16));
    }
    f.make(codes, stage_at<S>(base, stage), unit, unit / kOfGroup, row, unpack);
    if constexpr (kMultiplied) {
      unroll<2>([&](int high) {
        const auto at = static_cast<uint32_t>(unit / kOfGroup * kRows + row + 8 * high);
        f.zeros[high] = unpack.minus(load_shared<int8_t>(stage_at<S>(base, stage).zeros + at));
        // A copy that the compiler does not know for one: of two equal registers of an operand it serializes products.
        asm volatile("prmt.b32 %0, %1, %1, 0x3210;" : "=r"(f.zeros[2 + high]) : "r"(f.zeros[high]));
      });
    }
  };
  const auto start = [&](const Unit& f, int unit) {
    const uint64_t x = descriptors + static_cast<uint64_t>(stage * (S::kStageBytes / 16));
    wgmma::pin(part);
    wgmma::fence();
    const auto multiply = [&](const uint32_t(&a)[4], int i, int accumulate) {
      const int byte = (unit * F::kProducts + i) * 32;  // along K, of a row of x
      wgmma::multiply_registers<T>(part, a, x + static_cast<uint64_t>((byte / 128 * kTokens * 128 + byte % 128) / 16),
                                   accumulate);
    };
    unroll<F::kProducts>([&](int i) { multiply(f.a[i], i, i > 0 || unit % kOfGroup > 0 ? 1 : 0); });
    if constexpr (kMultiplied) unroll<F::kProducts>([&](int i) { multiply(f.zeros, i, 1); });
    wgmma::commit();
  };
  const auto end = [&](const Unit& f, int unit, int of) {
    wgmma::wait<0>();
    wgmma::pin(part);
    if (unit == kUnits - 1) {
      __syncwarp();
      if (lane == 0) empty[of].arrive();
    }
    if (unit % kOfGroup < kOfGroup - 1) return;
    unroll<kTokens / 2>([&](int e) { sums[e] = fmaf(f.scale[0][e % 4 / 2], part[e], sums[e]); });
  };
  // From a unit under way to the next.
  const auto go_on = [&](const Unit& now, Unit& next, int unit) {
    const int of = stage, next_unit = (unit + 1) % kUnits;
    if (next_unit == 0 && ++stage == stages) stage = 0, phase ^= 1;
    make(next, next_unit);
    end(now, unit, of);
    start(next, next_unit);
  };
  make(first, 0);
  start(first, 0);
  if constexpr (kUnits > 1) {
#pragma unroll 1
    for (int step = 1; step < steps; ++step)
      unroll<kUnits / 2>([&](int n) { go_on(first, second, 2 * n), go_on(second, first, 2 * n + 1); });
    unroll<kUnits / 2>([&](int n) {
      go_on(first, second, 2 * n);
      if (2 * n + 2 < kUnits) go_on(second, first, 2 * n + 1);
    });
    end(second, kUnits - 1, stage);
  } else {
#pragma unroll 1
    for (int step = 2; step < steps; step += 2) go_on(first, second, 0), go_on(second, first, 0);
    if (steps % 2 == 0) {
      go_on(first, second, 0);
      end(second, 0, stage);
    } else {
      end(first, 0, stage);
    }
  }
}

// The same of many rows: a unit is multiplied in pieces, a group of K by up to 64 rows of x each; while one is scaled,
// the next is multiplied. Operands are made while the other warp group's products run; the codes of the next tile are
// read ahead.
template <typename T, int kTokens, int kGroup, bool kZeros>
__device__ __forceinline__ void multiply_many(uint32_t base, int stages, int steps, Mbarrier* full, Mbarrier* empty,
                                              Turn& turn, const uint32_t* constants, float (&sums)[kTokens / 2]) {
  using S = Shape<T, kTokens, kGroup>;
  constexpr int kUnit = 128 / static_cast<int>(sizeof(T)), kUnits = kDepth / kUnit;
  constexpr int kGroups = kUnit > kGroup ? kUnit / kGroup : 1;   // of a unit
  constexpr int kOfGroup = kGroup > kUnit ? kGroup / kUnit : 1;  // units of a group
  constexpr int kRowPieces = kTokens > 128 ? kTokens / 64 : 2, kCount = kTokens / 2 / kRowPieces;
  constexpr int kPieces = kGroups * kRowPieces;
  static_assert(kOfGroup == 1 || kPieces == 2);
  using F = Fragments<T, kUnit, kGroups>;
  const int thread = static_cast<int>(threadIdx.x) % 128, side = static_cast<int>(threadIdx.x) / 128;
  const int lane = thread % 32, row = side * 64 + thread / 32 * 16 + lane / 4;
  const uint64_t descriptors = wgmma::descriptor(base);  // of x of stage 0
  const UnpackOf<T, kTokens, kZeros> unpack(constants);
  float part[2][kCount];
  Codes codes;
  F f;
  const auto start = [&](int unit, int piece) {
    constexpr int kProducts = F::kProducts / kGroups;
    const int rows = piece % kRowPieces, at = piece / kRowPieces * kProducts;
    const uint64_t x = descriptors + static_cast<uint64_t>(turn.stage * (S::kStageBytes / 16));
    wgmma::pin(part[piece % 2]);
    wgmma::fence();
    unroll<kProducts>([&](int i) {
      const int byte = (unit * F::kProducts + at + i) * 32;  // along K, of a row of x
      wgmma::multiply_registers<T>(
          part[piece % 2], f.a[at + i],
          x + static_cast<uint64_t>((rows * kCount * 256 + byte / 128 * kTokens * 128 + byte % 128) / 16),
          i > 0 || unit % kOfGroup > 0 ? 1 : 0);
    });
    wgmma::commit();
  };
  const auto end = [&](int unit, int piece) {
    wgmma::pin(part[piece % 2]);
    if (unit % kOfGroup < kOfGroup - 1) return;
    unroll<kCount>([&](int e) {
      float& sum = sums[piece % kRowPieces * kCount + e];
      sum = fmaf(f.scale[piece / kRowPieces][e % 4 / 2], part[piece % 2][e], sum);
    });
  };
  const auto read_codes = [&](const Turn& from) {
    full[from.stage].wait(from.phase);
    codes.read(stage_at<S>(base, from.stage).codes + static_cast<uint32_t>(side * kCodeBytes / 2 + thread * 16));
  };
  read_codes(turn);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const Turn next = turn.next(stages);
    unroll<kUnits>([&](int unit) {
      f.make(codes, stage_at<S>(base, turn.stage), unit, unit * kUnit / kGroup, row, unpack);
      start(unit, 0), start(unit, 1);
      if (unit == kUnits - 1 && step + 1 < steps) read_codes(next);
      unroll<kPieces - 2>([&](int piece) {
        wgmma::wait<1>();
        end(unit, piece);
        start(unit, piece + 2);
      });
      wgmma::wait<1>();
      end(unit, kPieces - 2);
      wgmma::wait<0>();
      wgmma::pin(part[1]);
      if (unit == kUnits - 1) {
        __syncwarp();
        if (lane == 0) empty[turn.stage].arrive();
      }
      end(unit, kPieces - 1);
    });
    turn = next;
  }
}

}  // namespace octet::cuda::int4
