// wgmma whose left operand is in registers: 64 rows by 2 kCount columns, float32 sums.
#pragma once

#include <type_traits>

#include "kernels/cuda/inference/wgmma.cuh"

namespace octet::cuda::wgmma {

#define OCTET_SUMS_4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define OCTET_SUMS_8(i) OCTET_SUMS_4(i), OCTET_SUMS_4((i) + 4)
#define OCTET_SUMS_16(i) OCTET_SUMS_8(i), OCTET_SUMS_8((i) + 8)
#define OCTET_SUMS_32(i) OCTET_SUMS_16(i), OCTET_SUMS_16((i) + 16)
#define OCTET_SUMS_64(i) OCTET_SUMS_32(i), OCTET_SUMS_32((i) + 32)
#define OCTET_NAMES_4 "%0,%1,%2,%3"
#define OCTET_NAMES_8 \
  OCTET_NAMES_4       \
  ","                 \
  "%4,%5,%6,%7"
#define OCTET_NAMES_16 \
  OCTET_NAMES_8        \
  ","                  \
  "%8,%9,%10,%11,%12,%13,%14,%15"
#define OCTET_NAMES_32 \
  OCTET_NAMES_16       \
  ","                  \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define OCTET_NAMES_64                                                                                            \
  OCTET_NAMES_32                                                                                                  \
  ","                                                                                                             \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%" \
  "59,%60,%61,%62,%63"
// a0 .. a3, b, accumulate: operands after the sums
#define OCTET_WGMMA(shape, type, transposed, count, a0, a1, a2, a3, bd, acc)                        \
  asm volatile("{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, " acc                            \
               ", 0;\n"                                                                             \
               "wgmma.mma_async.sync.aligned." shape ".f32." type "." type " {" OCTET_NAMES_##count \
               "}, {" a0 "," a1 "," a2 "," a3 "}, " bd ", accumulate, 1, 1" transposed ";\n}\n"     \
               : OCTET_SUMS_##count(0)                                                              \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate))
#define OCTET_WGMMA_COUNT(count, n, a0, a1, a2, a3, bd, acc)                    \
  if constexpr (kCount == count && std::is_same_v<T, e4m3>)                     \
    OCTET_WGMMA("m64n" n "k32", "e4m3", "", count, a0, a1, a2, a3, bd, acc);    \
  if constexpr (kCount == count && std::is_same_v<T, bf16>)                     \
    OCTET_WGMMA("m64n" n "k16", "bf16", ", 0", count, a0, a1, a2, a3, bd, acc); \
  if constexpr (kCount == count && std::is_same_v<T, f16>)                      \
  OCTET_WGMMA("m64n" n "k16", "f16", ", 0", count, a0, a1, a2, a3, bd, acc)

// d (+)= 64 rows of 32 bytes along the contraction, in registers, by as many of 2 kCount rows in shared memory.
template <typename T, int kCount>
__device__ __forceinline__ void multiply_registers(float (&d)[kCount], const uint32_t (&a)[4], uint64_t b,
                                                   int accumulate) {
  static_assert(kCount == 4 || kCount == 8 || kCount == 16 || kCount == 32 || kCount == 64);
  OCTET_WGMMA_COUNT(4, "8", "%4", "%5", "%6", "%7", "%8", "%9");
  OCTET_WGMMA_COUNT(8, "16", "%8", "%9", "%10", "%11", "%12", "%13");
  OCTET_WGMMA_COUNT(16, "32", "%16", "%17", "%18", "%19", "%20", "%21");
  OCTET_WGMMA_COUNT(32, "64", "%32", "%33", "%34", "%35", "%36", "%37");
  OCTET_WGMMA_COUNT(64, "128", "%64", "%65", "%66", "%67", "%68", "%69");
}

#undef OCTET_WGMMA_COUNT
#undef OCTET_WGMMA
#undef OCTET_NAMES_4
#undef OCTET_SUMS_4
#undef OCTET_NAMES_8
#undef OCTET_SUMS_8
#undef OCTET_NAMES_16
#undef OCTET_SUMS_16
#undef OCTET_NAMES_32
#undef OCTET_SUMS_32
#undef OCTET_NAMES_64
#undef OCTET_SUMS_64

}  // namespace octet::cuda::wgmma
