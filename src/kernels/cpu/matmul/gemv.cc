// GEMV and few-row GEMMs. A Dot multiplies two runs of elements into a vector of sums with the instructions of this
// CPU. The rest is shared: tiles of several rows of a by several of b, so that each row of b is loaded once and there
// are enough independent accumulators; prefetching of the next rows of b into L2; dynamic scheduling of column runs
// over threads.
#include "kernels/cpu/matmul/gemm.h"

#include <algorithm>
#include <atomic>
#include <tuple>
#include <type_traits>
#include <utility>

#include "base/codec.h"
#include "base/error.h"
#include "base/threads.h"
#include "kernels/cpu/simd.h"

namespace octet::cpu {
namespace {

constexpr int64_t kPieceCols = 64;  // columns of the result per unit of work
constexpr int64_t kPrefetchBytes = 8192;

// Rows of a and of b in a tile: as many accumulators as leave registers for operands, of 32 or 16.
#ifdef __AVX512F__
constexpr int kMaxRows = 8, kMaxSums = 24;
#else
constexpr int kMaxRows = 4, kMaxSums = 8;
#endif
constexpr int columns_of(int rows) { return std::min(4, kMaxSums / rows); }

// --- Dots: kStep elements of a row at a time. Rows of a are first packed to Packed, padded with zeros to whole steps.

// One float32 multiply-add per lane and step.
struct FloatDot {
  using B = BF16;
  using Packed = float;
  using Run = simd::Floats;
  using Sums = simd::Floats;
  static constexpr int64_t kStep = simd::kLanes;
  static Run load_a(const Packed* a) { return simd::load(a, simd::Full{}); }
  template <typename Count>
  static Run load_b(const B* b, Count count) {
    return simd::load(b, count);
  }
  static Sums add(Run a, Run b, Sums sums) { return simd::fma(a, b, sums); }
};

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
// Two products per lane and step, rounded by the instruction (denormals are zeros).
struct Bf16Dot {
  using B = BF16;
  using Packed = BF16;
  using Run = __m512bh;
  using Sums = simd::Floats;
  static constexpr int64_t kStep = 32;
  static Run load_a(const Packed* a) { return load_b(a, simd::Full{}); }
  static Run load_b(const B* b, simd::Full) { return (__m512bh)_mm512_loadu_si512(b); }
  static Run load_b(const B* b, simd::Part part) {
    return (__m512bh)_mm512_maskz_loadu_epi16((__mmask32{1} << part.count) - 1, b);
  }
  static Sums add(Run a, Run b, Sums sums) { return (Sums)_mm512_dpbf16_ps((__m512)sums, a, b); }
};
#else
using Bf16Dot = FloatDot;
#endif

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
// The instruction multiplies unsigned by signed bytes: it gets b + 128, and 128 times the sum of a is subtracted from
// the accumulators, which may wrap around in between.
struct Int8Dot {
  using B = int8_t;
  using Packed = int8_t;
  using Run = __m512i;
  using Sums = simd::Ints;
  static constexpr int64_t kStep = 64;
  static constexpr int32_t kOffset = 128;
  static Run load_a(const Packed* a) { return _mm512_loadu_si512(a); }
  static Run load_b(const B* b, simd::Full) { return shifted(_mm512_loadu_si512(b)); }
  static Run load_b(const B* b, simd::Part part) {
    return shifted(_mm512_maskz_loadu_epi8((__mmask64{1} << part.count) - 1, b));
  }
  static Run shifted(Run b) { return _mm512_xor_si512(b, _mm512_set1_epi8(static_cast<char>(0x80))); }
  static Sums add(Run a, Run b, Sums sums) { return (Sums)_mm512_dpbusd_epi32((__m512i)sums, b, a); }
};
#else
// Bytes widened to int16 pairs.
struct Int8Dot {
  using B = int8_t;
  using Packed = int16_t;
  using Run = simd::Ints;
  using Sums = simd::Ints;
  static constexpr int64_t kStep = 2 * simd::kLanes;
  static constexpr int32_t kOffset = 0;
  typedef int8_t Bytes __attribute__((vector_size(kStep)));
  typedef int16_t Shorts __attribute__((vector_size(2 * kStep)));
  static Run load_a(const Packed* a) {
    Run run;
    std::memcpy(&run, a, sizeof run);
    return run;
  }
  static Run load_b(const B* b, simd::Full) { return widened(b, kStep); }
  static Run load_b(const B* b, simd::Part part) { return widened(b, part.count); }
  static Run widened(const B* b, int64_t count) {
    Bytes bytes = {};
    std::memcpy(&bytes, b, static_cast<size_t>(count));
    return std::bit_cast<Run>(__builtin_convertvector(bytes, Shorts));
  }
  static Sums add(Run a, Run b, Sums sums) { return simd::dot_pairs(a, b, sums); }
};
#endif

// Rows of a, interleaved by step: rows a power of two apart would conflict in the L1 cache.
template <typename Dot>
struct Rows {
  const typename Dot::Packed* packed;  // [steps][kR][kStep]
  const int32_t* correction;           // [kR], subtracted from integer sums
};

template <typename Dot>
struct Weights {
  const typename Dot::B* b;  // [N, depth]
  int64_t depth;
  int64_t ahead;  // prefetch distance in elements
};

// sums[r * ld + c] = dot(row r of a, row n + c of b).
template <typename Dot, int kR, int kC>
void dot_tile(const Rows<Dot>& rows, const Weights<Dot>& weights, int64_t n, float* to, int64_t ld) {
  const auto* a = rows.packed;
  const auto* b = weights.b + n * weights.depth;
  typename Dot::Sums sums[kR][kC] = {};
  const auto step = [&](int64_t k, auto count) __attribute__((always_inline)) {
    typename Dot::Run right[kC];
#pragma GCC unroll 4
    for (int c = 0; c < kC; ++c) {
      const auto* run = b + c * weights.depth + k;
      _mm_prefetch(reinterpret_cast<const char*>(run + weights.ahead), _MM_HINT_T1);
      right[c] = Dot::load_b(run, count);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r, a += Dot::kStep) {
      const typename Dot::Run left = Dot::load_a(a);
#pragma GCC unroll 4
      for (int c = 0; c < kC; ++c) sums[r][c] = Dot::add(left, right[c], sums[r][c]);
    }
  };
  int64_t k = 0;
  for (; k + Dot::kStep <= weights.depth; k += Dot::kStep) step(k, simd::Full{});
  if (k < weights.depth) step(k, simd::Part{weights.depth - k});
  for (int r = 0; r < kR; ++r) {
    for (int c = 0; c < kC; ++c) {
      const auto total = simd::sum(sums[r][c]);
      if constexpr (std::is_integral_v<decltype(total)>) {
        const uint32_t exact = static_cast<uint32_t>(total) - static_cast<uint32_t>(rows.correction[r]);
        to[r * ld + c] = static_cast<float>(static_cast<int32_t>(exact));
      } else {
        to[r * ld + c] = total;
      }
    }
  }
}

// Columns [begin, end) of kR rows: sums[r * ld + (n - begin)].
template <typename Dot, int kR>
void dot_columns(const Rows<Dot>& rows, const Weights<Dot>& weights, int64_t begin, int64_t end, float* sums,
                 int64_t ld) {
  constexpr int kC = columns_of(kR);
  int64_t n = begin;
  for (; n + kC <= end; n += kC) dot_tile<Dot, kR, kC>(rows, weights, n, sums + (n - begin), ld);
  for (; n < end; ++n) dot_tile<Dot, kR, 1>(rows, weights, n, sums + (n - begin), ld);
}

template <typename Dot>
using DotColumns = void (*)(const Rows<Dot>&, const Weights<Dot>&, int64_t, int64_t, float*, int64_t);

template <typename Dot>
DotColumns<Dot> dot_columns_of(int64_t rows) {
  return [rows]<size_t... kI>(std::index_sequence<kI...>) {
    constexpr DotColumns<Dot> kTable[] = {dot_columns<Dot, kI + 1>...};
    return kTable[rows - 1];
  }
  (std::make_index_sequence<kMaxRows>{});
}

template <typename Packed, typename A>
Packed packed_element(A value) {
  if constexpr (std::is_same_v<Packed, float>) {
    return codec::decode(value);
  } else {
    return value;
  }
}

// Packs rows of a, [rows, depth], into `to`; returns the end of the packed data.
template <typename Dot, typename A>
typename Dot::Packed* pack_rows(const A* a, int64_t rows, int64_t depth, typename Dot::Packed* to) {
  for (int64_t k = 0; k < depth; k += Dot::kStep) {
    const int64_t count = std::min(Dot::kStep, depth - k);
    for (int64_t r = 0; r < rows; ++r, to += Dot::kStep) {
      const A* from = a + r * depth + k;
      for (int64_t i = 0; i < count; ++i) to[i] = packed_element<typename Dot::Packed>(from[i]);
      for (int64_t i = count; i < Dot::kStep; ++i) to[i] = {};
    }
  }
  return to;
}

// Work units for threads: long runs first, so that prefetches beyond a unit mostly belong to the same thread's next
// one, and single units last, for load balance.
class PieceQueue {
 public:
  PieceQueue(int64_t pieces, int64_t threads) : pieces_(pieces), threads_(threads) {}
  // [first, last) of a run; empty if none is left.
  std::pair<int64_t, int64_t> take() {
    int64_t first = next_.load(std::memory_order_relaxed), last = 0;
    do {
      last = std::min(pieces_, first + std::max<int64_t>(1, (pieces_ - first) / (2 * threads_)));
    } while (first < last && !next_.compare_exchange_weak(first, last, std::memory_order_relaxed));
    return {first, last};
  }

 private:
  int64_t pieces_, threads_;
  std::atomic<int64_t> next_{0};
};

template <typename Dot, typename A>
void run(const MatrixView& a_view, const MatrixView& b_view, const GemmOutput& out, std::span<std::byte> scratch) {
  const int64_t count = a_view.rows, depth = a_view.cols, cols = b_view.rows;
  const A* a = static_cast<const A*>(a_view.data);
  auto* packed = reinterpret_cast<typename Dot::Packed*>(scratch.data());
  int32_t corrections[kGemvRows] = {};
  Rows<Dot> groups[(kGemvRows + kMaxRows - 1) / kMaxRows];
  for (int64_t m = 0; m < count; m += kMaxRows) {
    groups[m / kMaxRows] = {packed, corrections + m};
    packed = pack_rows<Dot>(a + m * depth, std::min<int64_t>(kMaxRows, count - m), depth, packed);
  }
  if constexpr (std::is_integral_v<A>) {
    for (int64_t m = 0; m < count; ++m) {
      int32_t sum = 0;
      for (int64_t k = 0; k < depth; ++k) sum += a[m * depth + k];
      corrections[m] = sum * Dot::kOffset;
    }
  }
  // Prefetches the next rows or, if rows are short, later ones.
  const int64_t group = columns_of(static_cast<int>(std::min<int64_t>(count, kMaxRows))) * depth;
  const int64_t least = kPrefetchBytes / static_cast<int64_t>(sizeof(typename Dot::B));
  const Weights<Dot> weights{.b = static_cast<const typename Dot::B*>(b_view.data),
                             .depth = depth,
                             .ahead = group * ((least + group - 1) / group)};
  const StoreTile store = choose_store(out);
  const int64_t pieces = (cols + kPieceCols - 1) / kPieceCols;
  PieceQueue queue(pieces, thread_count());
  parallel_for(pieces, 1, [&](int64_t, int64_t) {
    alignas(64) float sums[kGemvRows * kPieceCols];
    for (auto [piece, last] = queue.take(); piece < last;) {
      const int64_t begin = piece * kPieceCols, end = std::min(begin + kPieceCols, cols);
      for (int64_t m = 0; m < count; m += kMaxRows) {
        const auto columns = dot_columns_of<Dot>(std::min<int64_t>(kMaxRows, count - m));
        columns(groups[m / kMaxRows], weights, begin, end, sums + m * kPieceCols, kPieceCols);
      }
      store(out, sums, kPieceCols, 0, count, begin, end - begin, cols);
      if (++piece == last) std::tie(piece, last) = queue.take();
    }
  });
}

}  // namespace

int64_t gemv_scratch_bytes(int64_t rows, int64_t depth) { return rows * (depth + 64) * 4; }

bool gemv_takes(DType a, DType b) {
  return (b == DType::kBF16 && (a == DType::kBF16 || a == DType::kF32)) || (a == DType::kI8 && b == DType::kI8);
}

void gemv(const MatrixView& a, const MatrixView& b, const GemmOutput& out, std::span<std::byte> scratch) {
  check(a.rows <= kGemvRows && !a.transposed && b.transposed && a.cols == b.cols && gemv_takes(a.dtype, b.dtype) &&
            static_cast<int64_t>(scratch.size()) >= gemv_scratch_bytes(a.rows, a.cols),
        ErrorCode::kInternal, "gemv: {} [{}, {}] times {} [{}, {}] with {} bytes of scratch", dtype_name(a.dtype),
        a.rows, a.cols, dtype_name(b.dtype), b.rows, b.cols, scratch.size());
  if (a.dtype == DType::kI8) return run<Int8Dot, int8_t>(a, b, out, scratch);
  if (a.dtype == DType::kBF16) return run<Bf16Dot, BF16>(a, b, out, scratch);
  run<FloatDot, float>(a, b, out, scratch);
}

}  // namespace octet::cpu
