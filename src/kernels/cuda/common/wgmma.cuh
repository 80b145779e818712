// Hopper's products of a warp group (wgmma): 64 rows by 2 kCount columns, float32 sums, int32 of int8 codes; 32 bytes
// along the contraction.
//
// Tiles in shared memory are panels: rows of 128 bytes, piece c of 16 bytes of row r at c ^ (r % 8), which is the
// hardware's 128-byte swizzle when a panel begins at a multiple of 1024 bytes. Element d[4 n + e] of a lane's sums is
// laid out as in mma.cuh: warp w of the group holds rows 16 w .. 16 w + 15, of every 8 columns n.
#pragma once

#include <type_traits>

#include "kernels/cuda/common/mma.cuh"

namespace octet::cuda::wgmma {

__device__ __forceinline__ uint32_t panel_offset(int row, int piece) {
  return static_cast<uint32_t>(row * 128 + ((piece ^ (row & 7)) << 4));
}

// Of an operand in shared memory; panel_bytes is the way from a panel to the next where columns, not the contraction,
// run along its rows.
__device__ __forceinline__ uint64_t descriptor(uint32_t address, uint32_t panel_bytes = 16) {
  return static_cast<uint64_t>((address & 0x3ffffu) >> 4) | static_cast<uint64_t>(panel_bytes >> 4) << 16 |
         static_cast<uint64_t>(1024 >> 4) << 32 | 1ull << 62;
}

__device__ __forceinline__ void fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ __forceinline__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}
// Writes of this thread, or seen by it, become visible to products that read shared memory.
__device__ __forceinline__ void fence_shared() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }
// Keeps the compiler from moving accesses of sums over the products that write them.
template <int kCount>
__device__ __forceinline__ void pin(float (&d)[kCount]) {
  unroll<kCount>([&](int i) { asm volatile("" : "+f"(d[i])::"memory"); });
}
template <int kCount>
__device__ __forceinline__ void pin(int32_t (&d)[kCount]) {
  unroll<kCount>([&](int i) { asm volatile("" : "+r"(d[i])::"memory"); });
}

// The sums as operands of an instruction, and their names.
#define OCTET_SUMS_4(in, i) in(d[i]), in(d[(i) + 1]), in(d[(i) + 2]), in(d[(i) + 3])
#define OCTET_SUMS_8(in, i) OCTET_SUMS_4(in, i), OCTET_SUMS_4(in, (i) + 4)
#define OCTET_SUMS_16(in, i) OCTET_SUMS_8(in, i), OCTET_SUMS_8(in, (i) + 8)
#define OCTET_SUMS_32(in, i) OCTET_SUMS_16(in, i), OCTET_SUMS_16(in, (i) + 16)
#define OCTET_SUMS_64(in, i) OCTET_SUMS_32(in, i), OCTET_SUMS_32(in, (i) + 32)
#define OCTET_SUMS_128(in, i) OCTET_SUMS_64(in, i), OCTET_SUMS_64(in, (i) + 64)
#define OCTET_SUMS_48(in, i) OCTET_SUMS_32(in, i), OCTET_SUMS_16(in, (i) + 32)
#define OCTET_SUMS_96(in, i) OCTET_SUMS_64(in, i), OCTET_SUMS_32(in, (i) + 64)
#define OCTET_NAMES_4 "%0,%1,%2,%3"
#define OCTET_NAMES_8 OCTET_NAMES_4 ",%4,%5,%6,%7"
#define OCTET_NAMES_16 OCTET_NAMES_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define OCTET_NAMES_32 OCTET_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define OCTET_NAMES_48 OCTET_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define OCTET_NAMES_64 OCTET_NAMES_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define OCTET_NAMES_96                                                                                             \
  OCTET_NAMES_64                                                                                                   \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%" \
  "91,%92,%93,%94,%95"
#define OCTET_NAMES_128                                                                                          \
  OCTET_NAMES_96                                                                                                 \
  ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%" \
  "118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
// `left` and its operands: a descriptor or four registers. `in`: the registers of sums; float32 sums have factors of
// both operands.
#define OCTET_WGMMA(shape, types, in, count, left, right, accumulates, suffix, ...)                                    \
  asm volatile("{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, " accumulates                                       \
               ", 0;\n"                                                                                                \
               "wgmma.mma_async.sync.aligned." shape "." types " {" OCTET_NAMES_##count "}, " left ", " right          \
                                                                                        ", accumulate" suffix ";\n}\n" \
               : OCTET_SUMS_##count(in, 0)                                                                             \
               : __VA_ARGS__, "l"(b), "r"(accumulate))
#define OCTET_WGMMA_TYPES(count, n, left, right, accumulates, suffix, ...)                                             \
  if constexpr (kCount == count && std::is_same_v<T, e4m3>)                                                            \
    OCTET_WGMMA("m64n" n "k32", "f32.e4m3.e4m3", "+f", count, left, right, accumulates, ", 1, 1", __VA_ARGS__);        \
  if constexpr (kCount == count && std::is_same_v<T, bf16>)                                                            \
    OCTET_WGMMA("m64n" n "k16", "f32.bf16.bf16", "+f", count, left, right, accumulates, ", 1, 1" suffix, __VA_ARGS__); \
  if constexpr (kCount == count && std::is_same_v<T, int8_t>)                                                          \
    OCTET_WGMMA("m64n" n "k32", "s32.s8.s8", "+r", count, left, right, accumulates, "", __VA_ARGS__);                  \
  if constexpr (kCount == count && std::is_same_v<T, f16>)                                                             \
  OCTET_WGMMA("m64n" n "k16", "f32.f16.f16", "+f", count, left, right, accumulates, ", 1, 1" suffix, __VA_ARGS__)

// What sums are: int32 of int8 codes, which is exact, float32 of the rest.
template <typename T>
using Sum = std::conditional_t<std::is_same_v<T, int8_t>, int32_t, float>;

#define OCTET_PANELS "l"(a), "n"(kTransA), "n"(kTransB)
// d (+)= 64 rows by 2 kCount rows, both in shared memory, the contraction along rows; of a transposed operand, of 16
// bits, 64 or 2 kCount columns, the contraction down the panels.
template <typename T, int kTransA = 0, int kTransB = 0, int kCount>
__device__ __forceinline__ void multiply_rows(Sum<T> (&d)[kCount], uint64_t a, uint64_t b, int accumulate) {
  static_assert(kCount == 16 || kCount == 32 || kCount == 48 || kCount == 64 || kCount == 96 || kCount == 128);
  static_assert(sizeof(T) == 2 || kTransA + kTransB == 0);
  OCTET_WGMMA_TYPES(16, "32", "%16", "%19", "%20", ", %17, %18", OCTET_PANELS);
  OCTET_WGMMA_TYPES(32, "64", "%32", "%35", "%36", ", %33, %34", OCTET_PANELS);
  OCTET_WGMMA_TYPES(48, "96", "%48", "%51", "%52", ", %49, %50", OCTET_PANELS);
  OCTET_WGMMA_TYPES(64, "128", "%64", "%67", "%68", ", %65, %66", OCTET_PANELS);
  OCTET_WGMMA_TYPES(96, "192", "%96", "%99", "%100", ", %97, %98", OCTET_PANELS);
  OCTET_WGMMA_TYPES(128, "256", "%128", "%131", "%132", ", %129, %130", OCTET_PANELS);
}

#define OCTET_REGISTERS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
// d (+)= 64 rows in registers by 2 kCount rows in shared memory, the contraction along rows.
template <typename T, int kCount>
__device__ __forceinline__ void multiply_registers(Sum<T> (&d)[kCount], const uint32_t (&a)[4], uint64_t b,
                                                   int accumulate) {
  static_assert(kCount == 4 || kCount == 8 || kCount == 16 || kCount == 32 || kCount == 64);
  OCTET_WGMMA_TYPES(4, "8", "{%4,%5,%6,%7}", "%8", "%9", ", 0", OCTET_REGISTERS);
  OCTET_WGMMA_TYPES(8, "16", "{%8,%9,%10,%11}", "%12", "%13", ", 0", OCTET_REGISTERS);
  OCTET_WGMMA_TYPES(16, "32", "{%16,%17,%18,%19}", "%20", "%21", ", 0", OCTET_REGISTERS);
  OCTET_WGMMA_TYPES(32, "64", "{%32,%33,%34,%35}", "%36", "%37", ", 0", OCTET_REGISTERS);
  OCTET_WGMMA_TYPES(64, "128", "{%64,%65,%66,%67}", "%68", "%69", ", 0", OCTET_REGISTERS);
}

// d += 64 x 16 in registers by 16 rows of 64 columns in shared memory.
template <typename T>
__device__ __forceinline__ void multiply_columns(Sum<T> (&d)[32], const uint32_t (&a)[4], uint64_t b) {
  constexpr int kCount = 32, accumulate = 1;
  OCTET_WGMMA_TYPES(32, "64", "{%32,%33,%34,%35}", "%36", "%37", ", 1", OCTET_REGISTERS);
}

#undef OCTET_REGISTERS
#undef OCTET_PANELS
#undef OCTET_WGMMA_TYPES
#undef OCTET_WGMMA
#undef OCTET_NAMES_4
#undef OCTET_NAMES_8
#undef OCTET_NAMES_16
#undef OCTET_NAMES_32
#undef OCTET_NAMES_48
#undef OCTET_NAMES_64
#undef OCTET_NAMES_96
#undef OCTET_NAMES_128
#undef OCTET_SUMS_4
#undef OCTET_SUMS_8
#undef OCTET_SUMS_16
#undef OCTET_SUMS_32
#undef OCTET_SUMS_48
#undef OCTET_SUMS_64
#undef OCTET_SUMS_96
#undef OCTET_SUMS_128

}  // namespace octet::cuda::wgmma
