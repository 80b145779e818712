// A panel is 16 outputs, a lane for each. A step takes 4 bytes of each: 8 codes along K, whose even ones are in the low
// halves. Codes plus 8 are unsigned, as the instruction wants; 8 plus the zero point times the sum of x is subtracted.
#include "kernels/cpu/matmul/group_gemm.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/threads.h"
#include "kernels/cpu/simd.h"

namespace octet::cpu {
namespace {

constexpr int kPanel = 16;
constexpr int kMaxRows = 8;  // of x at once: as many sums of integers and of floats as there are registers
constexpr int64_t kStep = 8;
constexpr int64_t kPanelStep = kPanel * kStep / 2;  // bytes
constexpr int64_t kAhead = 4096;                    // of prefetches, in bytes

// A block of up to kMaxRows rows: [steps][rows] of 4 even and 4 odd codes, and the sums of their groups [groups][rows].
struct Block {
  const int32_t* steps;
  const int32_t* sums;
};

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
using Ints16 = __m512i;
using Floats16 = __m512;

struct Codes {
  __m512i even, odd;
  explicit Codes(const std::byte* at) {
    const __m512i low = _mm512_set1_epi8(15);
    const __m512i codes = _mm512_xor_si512(_mm512_loadu_si512(at), _mm512_set1_epi8(static_cast<char>(0x88)));
    even = _mm512_and_si512(codes, low), odd = _mm512_and_si512(_mm512_srli_epi16(codes, 4), low);
  }
};
Ints16 add_dot(Ints16 sums, const Codes& codes, const int32_t* x) {
  sums = _mm512_dpbusd_epi32(sums, codes.even, _mm512_set1_epi32(x[0]));
  return _mm512_dpbusd_epi32(sums, codes.odd, _mm512_set1_epi32(x[1]));
}
// 8, plus the zero points.
Ints16 shifts(const int8_t* zero) {
  const __m512i eight = _mm512_set1_epi32(8);
  if (zero == nullptr) return eight;
  typedef int8_t Bytes __attribute__((vector_size(16)));
  Bytes bytes;
  std::memcpy(&bytes, zero, sizeof bytes);
  return _mm512_add_epi32(eight, (__m512i) __builtin_convertvector(bytes, simd::Ints));
}
Floats16 add_group(Floats16 total, Ints16 sums, Ints16 shift, int32_t x_sum, const float* scales) {
  const __m512i exact = _mm512_sub_epi32(sums, _mm512_mullo_epi32(shift, _mm512_set1_epi32(x_sum)));
  const auto sum = (__m512) __builtin_convertvector((simd::Ints)exact, simd::Floats);
  return _mm512_fmadd_ps(sum, _mm512_loadu_ps(scales), total);
}
void store(Floats16 total, float* to) { _mm512_storeu_ps(to, total); }
#else
#pragma GCC diagnostic ignored "-Wpsabi"  // vectors of 64 bytes are passed within this file alone
typedef int32_t Ints16 __attribute__((vector_size(64)));
typedef float Floats16 __attribute__((vector_size(64)));

struct Codes {
  Ints16 codes;
  explicit Codes(const std::byte* at) {
    std::memcpy(&codes, at, sizeof codes);
    codes ^= static_cast<int32_t>(0x88888888u) - Ints16{};
  }
};
Ints16 add_dot(Ints16 sums, const Codes& codes, const int32_t* x) {
  for (int byte = 0; byte < 4; ++byte) {
    sums += (codes.codes >> 8 * byte & 15) * static_cast<int8_t>(x[0] >> 8 * byte);
    sums += (codes.codes >> (8 * byte + 4) & 15) * static_cast<int8_t>(x[1] >> 8 * byte);
  }
  return sums;
}
Ints16 shifts(const int8_t* zero) {
  Ints16 shift = 8 - Ints16{};
  for (int lane = 0; zero != nullptr && lane < kPanel; ++lane) shift[lane] += zero[lane];
  return shift;
}
Floats16 add_group(Floats16 total, Ints16 sums, Ints16 shift, int32_t x_sum, const float* scales) {
  const Floats16 exact = __builtin_convertvector(sums - shift * x_sum, Floats16);
  for (int lane = 0; lane < kPanel; ++lane) total[lane] = __builtin_fmaf(exact[lane], scales[lane], total[lane]);
  return total;
}
void store(Floats16 total, float* to) { std::memcpy(to, &total, sizeof total); }
#endif

// to [kRows, 16] of the panel's outputs.
template <int kRows>
void multiply_panel(const Block& block, const GroupedWeights& weights, int64_t panel, float* to) {
  const auto* codes = static_cast<const std::byte*>(weights.codes) + panel * kPanel * weights.depth / 2;
  const int64_t n = panel * kPanel, groups = weights.depth / weights.group, steps = weights.group / kStep;
  const int32_t* x = block.steps;
  Floats16 totals[kRows] = {};
  for (int64_t g = 0; g < groups; ++g) {
    Ints16 sums[kRows] = {};
    for (int64_t step = 0; step < steps; ++step, codes += kPanelStep) {
      _mm_prefetch(reinterpret_cast<const char*>(codes + kAhead), _MM_HINT_T0);
      const Codes run(codes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r, x += 2) sums[r] = add_dot(sums[r], run, x);
    }
    const int64_t at = g * weights.stride + n;
    const Ints16 shift = shifts(weights.zero != nullptr ? weights.zero + at : nullptr);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
      totals[r] = add_group(totals[r], sums[r], shift, block.sums[g * kRows + r], weights.scales + at);
  }
  for (int r = 0; r < kRows; ++r) store(totals[r], to + r * kPanel);
}

using MultiplyPanel = void (*)(const Block&, const GroupedWeights&, int64_t, float*);
template <size_t... kI>
constexpr std::array<MultiplyPanel, kMaxRows> panel_table(std::index_sequence<kI...>) {
  return {multiply_panel<static_cast<int>(kI) + 1>...};
}
constexpr std::array<MultiplyPanel, kMaxRows> kMultiply = panel_table(std::make_index_sequence<kMaxRows>{});

// Words of a packed row: its steps and the sums of its groups.
int64_t row_words(const GroupedWeights& weights) { return weights.depth / 4 + weights.depth / weights.group; }

void pack(const int8_t* x, int64_t rows, const GroupedWeights& weights, int32_t* to) {
  int32_t* sums = to + rows * (weights.depth / 4);
  for (int64_t k = 0; k < weights.depth; k += kStep)
    for (int64_t r = 0; r < rows; ++r, to += 2) {
      const int8_t* from = x + r * weights.depth + k;
      const int8_t apart[kStep] = {from[0], from[2], from[4], from[6], from[1], from[3], from[5], from[7]};
      std::memcpy(to, apart, sizeof apart);
    }
  for (int64_t k = 0; k < weights.depth; k += weights.group)
    for (int64_t r = 0; r < rows; ++r) {
      int32_t sum = 0;
      for (int64_t i = 0; i < weights.group; ++i) sum += x[r * weights.depth + k + i];
      *sums++ = sum;
    }
}

}  // namespace

int64_t group_gemm_scratch_bytes(int64_t rows, const GroupedWeights& weights) { return rows * row_words(weights) * 4; }

void group_gemm(const int8_t* x, int64_t rows, const GroupedWeights& weights, const GemmOutput& out,
                std::span<std::byte> scratch) {
  const int64_t fits = std::ssize(scratch) / (row_words(weights) * 4) / kMaxRows * kMaxRows;
  check(fits > 0 && weights.outputs % kPanel == 0 && weights.group % kStep == 0 && weights.depth % weights.group == 0,
        ErrorCode::kInternal, "group_gemm: {} outputs, {} inputs in groups of {}, {} bytes of scratch", weights.outputs,
        weights.depth, weights.group, scratch.size());
  const StoreTile store_tile = choose_store(out);
  auto* packed = reinterpret_cast<int32_t*>(scratch.data());
  for (int64_t first = 0; first < rows; first += fits) {
    const int64_t count = std::min(fits, rows - first), blocks = (count + kMaxRows - 1) / kMaxRows;
    const auto rows_of = [&](int64_t b) { return std::min<int64_t>(kMaxRows, count - b * kMaxRows); };
    const auto place_of = [&](int64_t b) { return packed + b * kMaxRows * row_words(weights); };
    parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b)
        pack(x + (first + b * kMaxRows) * weights.depth, rows_of(b), weights, place_of(b));
    });
    parallel_for(weights.outputs / kPanel, 1, [&](int64_t begin, int64_t end) {
      alignas(64) float sums[kMaxRows * kPanel];
      for (int64_t panel = begin; panel < end; ++panel)
        for (int64_t b = 0; b < blocks; ++b) {
          const int64_t length = rows_of(b);
          const Block block{place_of(b), place_of(b) + length * (weights.depth / 4)};
          kMultiply[static_cast<size_t>(length - 1)](block, weights, panel, sums);
          store_tile(out, sums, kPanel, first + b * kMaxRows, length, panel * kPanel, kPanel, weights.outputs);
        }
    });
  }
}

}  // namespace octet::cpu
