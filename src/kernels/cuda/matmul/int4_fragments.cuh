// Codes of 4 bits, in an order "wgmma_..." of kernels/common/code_order.cc, as the left operand of wgmma: (code -
// zero), exact in every type. A word of codes is eight of one row.
#pragma once

#include "kernels/cuda/common/mma.cuh"

namespace octet::cuda::int4 {

__device__ __forceinline__ uint32_t select(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(low), "r"(high), "r"(selector));
  return r;
}
// Makes words of codes the left operands of T. A zero point is given as zero + 8. Constants that come from shared
// memory stay in registers, where instructions take more than one: threads below kMakers make them.
template <typename T, bool kZeros>
struct Unpack;

// Nibbles i and 4 + i become a pair. 0x43nn is 128 + nn in bf16, up to 127; a nibble with its sign flipped is a code
// + 8.
template <bool kZeros>
struct Unpack<bf16, kZeros> {
  static constexpr float kOne = 1;  // operands are codes over this
  struct Row {
    __nv_bfloat162 offset;
  };
  static constexpr int kMakers = 1, kConstants = 1;
  uint32_t exponent_and_signs;

  static __device__ __forceinline__ void make_constants(int, uint32_t* to) { *to = 0x43084308u; }
  __device__ __forceinline__ explicit Unpack(const uint32_t* constants) : exponent_and_signs(*constants) {}
  __device__ __forceinline__ Row row(int zero) const {
    return {__float2bfloat162_rn(-128.0f - static_cast<float>(kZeros ? zero : 8))};
  }
  __device__ __forceinline__ void operator()(const Row& row, uint32_t codes, uint32_t (&pairs)[4]) const {
    const __nv_bfloat162 one = __float2bfloat162_rn(1.0f);
    unroll<4>([&](int i) {
      const uint32_t a = (codes >> (4 * i) & 0x000f000fu) ^ exponent_and_signs;
      const __nv_bfloat162 x = __hfma2(reinterpret_cast<const __nv_bfloat162&>(a), one, row.offset);
      pairs[i] = reinterpret_cast<const uint32_t&>(x);
    });
  }
};

// Codes of e4m3 come in zigzag (0, -1, 1, -2, ..), nibble 2 i + h of a word for byte i of register h. Less zero points,
// a table of the 16 values gives them, one for every zero: two permutations look up among eight of them, a third
// chooses, two more part the registers.
template <>
struct Unpack<e4m3, true> {
  static constexpr float kOne = 1;
  using Row = uint4;
  static constexpr int kTables = 17, kMakers = kTables, kConstants = 4 * kTables + 1;
  const uint32_t* tables;
  uint32_t choices;

  static __device__ __forceinline__ void make_constants(int zero, uint32_t* to) {
    unroll<4>([&](int w) {
      uint32_t word = 0;
      unroll<4>([&](int i) {
        const int nibble = 4 * w + i, code = 8 + (nibble % 2 == 0 ? nibble : -nibble - 1) / 2;
        const uint32_t value = __nv_cvt_float_to_fp8(static_cast<float>(code - zero), __NV_SATFINITE, __NV_E4M3);
        word |= value << (8 * i);
      });
      to[4 * zero + w] = word;
    });
    if (zero == 0) to[4 * kTables] = 0x32103210u;
  }
  __device__ __forceinline__ explicit Unpack(const uint32_t* constants)
      : tables(constants), choices(constants[4 * kTables]) {}
  __device__ __forceinline__ Row row(int zero) const { return *reinterpret_cast<const uint4*>(tables + zero * 4); }
  __device__ __forceinline__ void operator()(const Row& table, uint32_t codes, uint32_t (&fours)[2]) const {
    const uint32_t in_eight = codes & 0x77777777u, of_eights = (codes >> 1 & 0x44444444u) | choices;
    uint32_t mixed[2];
    unroll<2>([&](int half) {
      const uint32_t selector = in_eight >> (16 * half);
      mixed[half] =
          select(select(table.x, table.y, selector), select(table.z, table.w, selector), of_eights >> (16 * half));
    });
    fours[0] = select(mixed[0], mixed[1], 0x6420u), fours[1] = select(mixed[0], mixed[1], 0x7531u);
  }
};

// Without zero points arithmetic does: up to 16, a byte n is n / 512 in e4m3, so that zigzag 2 v of v >= 0 is v / 256
// as it is, and 2 |v| - 1 of v < 0 becomes the same plus a sign: + 129.
template <>
struct Unpack<e4m3, false> {
  static constexpr float kOne = 256;
  static constexpr int kMakers = 0, kConstants = 1;
  struct Row {};

  static __device__ __forceinline__ void make_constants(int, uint32_t*) {}
  __device__ __forceinline__ explicit Unpack(const uint32_t*) {}
  __device__ __forceinline__ Row row(int) const { return {}; }
  __device__ __forceinline__ void operator()(const Row&, uint32_t codes, uint32_t (&fours)[2]) const {
    unroll<2>([&](int high) {
      const uint32_t nibbles = codes >> (4 * high);
      fours[high] = (nibbles & 0x0f0f0f0fu) + (nibbles & 0x01010101u) * 129u;
    });
  }
  // The same of a code - zero, four times.
  static __device__ __forceinline__ uint32_t minus(int zero) {
    return (2 * abs(zero) + (zero > 0 ? 128 : 0)) * 0x01010101u;
  }
};

}  // namespace octet::cuda::int4
