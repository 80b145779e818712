// Blocking and threading of our own GEMM. A task is one block of the output: it packs the operands' blocks along K one
// after the other, accumulates into a float32 tile, and writes the tile once.
#include "kernels/cpu/matmul/gemm.h"

#include <algorithm>
#include <type_traits>

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#include "base/codec.h"
#include "base/error.h"
#include "base/threads.h"
#include "kernels/cpu/kernel.h"

namespace octet::cpu {
namespace {

// A packed block of A [kBlockM, kBlockK], of B [kBlockK, kBlockN] and the sums [kBlockM, kBlockN] fit in L2 together.
constexpr int64_t kBlockM = 192, kBlockN = 512, kBlockK = 512;
constexpr int64_t kTilePadding = 16;  // floats between tile rows: avoids cache set conflicts in columns
constexpr int64_t kScratchPerThread = (kBlockM * kBlockK + kBlockK * kBlockN + kBlockM * (kBlockN + kTilePadding)) * 4;

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

struct Blocks {
  int64_t m = kBlockM, n = kBlockN;
};

// Smaller blocks if the output has fewer maximum-size blocks than threads.
Blocks choose_blocks(const GemmEngine& engine, int64_t rows, int64_t cols, int64_t threads) {
  Blocks blocks{std::min(kBlockM, round_up(rows, engine.mr)), std::min(kBlockN, round_up(cols, engine.nr))};
  auto tasks = [&] { return ((rows + blocks.m - 1) / blocks.m) * ((cols + blocks.n - 1) / blocks.n); };
  while (tasks() < threads || tasks() % threads != 0) {
    if (tasks() >= 4 * threads) break;
    const bool split_n = blocks.n >= 2 * blocks.m;
    int64_t& side = split_n ? blocks.n : blocks.m;
    const int64_t unit = split_n ? engine.nr : engine.mr;
    if (side <= 2 * unit) break;
    side = round_up(side / 2, unit);
  }
  return blocks;
}

struct NoAddend {};

// bf16 by the CPU's conversion instruction if available (results below 1.2e-38 become 0, as AMX's operands do).
template <typename Out>
void round_run(const float* values, Out* out, int64_t count) {
  int64_t i = 0;
#ifdef __AVX512BF16__
  if constexpr (std::is_same_v<Out, BF16>) {
    for (; i + 32 <= count; i += 32) {
      const __m512bh pair = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(values + i + 16), _mm512_loadu_ps(values + i));
      _mm512_storeu_si512(out + i, (__m512i)pair);
    }
  }
#endif
  for (; i < count; ++i) out[i] = codec::encode<Out>(values[i]);
}

// One row of the epilogue in runs that fit the L1 cache.
template <bool kScaled, typename Add, typename Out>
void store_row(const float* sums, float factor, const float* col_scale, const Add* c, Out* out, int64_t count) {
  constexpr int64_t kRun = 256;
  alignas(64) float run[kRun];
  for (int64_t begin = 0; begin < count; begin += kRun) {
    const int64_t length = std::min(kRun, count - begin);
    for (int64_t i = 0; i < length; ++i) {
      float value = sums[begin + i] * factor;
      if constexpr (kScaled) value *= col_scale[begin + i];
      if constexpr (!std::is_same_v<Add, NoAddend>) value += codec::decode(c[begin + i]);
      run[i] = value;
    }
    round_run(run, out + begin, length);
  }
}

// Rows [m0, m0 + rows) and columns [n0, n0 + cols) of the result, `width` columns wide.
template <typename Add, typename Out>
void store_tile(const GemmOutput& out, const float* tile, int64_t ld, int64_t m0, int64_t rows, int64_t n0,
                int64_t cols, int64_t width) {
  for (int64_t m = m0; m < m0 + rows; ++m, tile += ld) {
    const float factor = out.row_scale != nullptr ? out.factor * out.row_scale[m] : out.factor;
    const int64_t at = m * width + n0;
    const auto* c = static_cast<const Add*>(out.c) + (out.c == nullptr ? 0 : out.c_broadcast ? n0 : at);
    Out* to = static_cast<Out*>(out.data) + at;
    if (out.col_scale != nullptr) {
      store_row<true>(tile, factor, out.col_scale + n0, c, to, cols);
    } else {
      store_row<false>(tile, factor, nullptr, c, to, cols);
    }
  }
}

}  // namespace

StoreTile choose_store(const GemmOutput& out) {
  return with_wide_type(out.dtype, [&]<typename Out>(Out) -> StoreTile {
    if (out.c == nullptr) return store_tile<NoAddend, Out>;
    return with_wide_type(out.c_dtype, []<typename Add>(Add) -> StoreTile { return store_tile<Add, Out>; });
  });
}

void gemm(const GemmEngine& engine, const MatrixView& a, const MatrixView& b, const GemmOutput& out,
          std::span<std::byte> scratch) {
  const int64_t rows = a.transposed ? a.cols : a.rows, depth = a.transposed ? a.rows : a.cols;
  const int64_t cols = b.transposed ? b.rows : b.cols;
  const auto room = static_cast<int64_t>(scratch.size()) / kScratchPerThread;
  check(room >= 1, ErrorCode::kInternal, "gemm: {} bytes of scratch, needs {}", scratch.size(), kScratchPerThread);
  const int64_t threads = std::min<int64_t>(thread_count(), room);
  const Blocks blocks = choose_blocks(engine, rows, cols, threads);
  const int64_t blocks_m = (rows + blocks.m - 1) / blocks.m, blocks_n = (cols + blocks.n - 1) / blocks.n;
  const StoreTile store = choose_store(out);
  parallel_threads([&](int thread, int running) {
    const int64_t workers = std::min<int64_t>(threads, running);
    if (thread >= workers) return;
    std::byte* base = scratch.data() + thread * kScratchPerThread;
    void* packed_a = base;
    void* packed_b = base + kBlockM * kBlockK * 4;
    auto* tile = reinterpret_cast<float*>(base + (kBlockM * kBlockK + kBlockK * kBlockN) * 4);
    const int64_t tasks = blocks_m * blocks_n;
    for (int64_t task = tasks * thread / workers; task < tasks * (thread + 1) / workers; ++task) {
      const int64_t m0 = task % blocks_m * blocks.m, n0 = task / blocks_m * blocks.n;
      const int64_t m = std::min(blocks.m, rows - m0), n = std::min(blocks.n, cols - n0);
      const int64_t ld = round_up(n, engine.nr) + kTilePadding;
      for (int64_t k0 = 0; k0 < depth; k0 += kBlockK) {
        const int64_t ks = std::min(kBlockK, depth - k0);
        engine.pack_a(a, m0, m, k0, ks, packed_a);
        // If K is one block, the next block of the same columns reuses the packed B.
        if (depth > kBlockK || task % blocks_m == 0 || task == tasks * thread / workers) {
          engine.pack_b(b, n0, n, k0, ks, packed_b);
        }
        engine.multiply(packed_a, m, packed_b, n, ks, tile, ld, k0 > 0);
      }
      if (engine.integer_sums) {
        for (int64_t row = 0; row < m; ++row) {
          float* sums = tile + row * ld;
          for (int64_t i = 0; i < n; ++i) sums[i] = static_cast<float>(std::bit_cast<int32_t>(sums[i]));
        }
      }
      store(out, tile, ld, m0, m, n0, n, cols);
    }
  });
}

}  // namespace octet::cpu
