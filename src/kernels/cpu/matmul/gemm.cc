// Blocking and threading of our own GEMM. A task is one block of the output: it packs the operands' blocks along K one
// after the other, accumulates into a float32 tile, and writes the tile once.
#include "kernels/cpu/matmul/gemm.h"

#include <algorithm>
#include <type_traits>

#include "base/codec.h"
#include "base/error.h"
#include "base/integers.h"
#include "base/threads.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/simd.h"

namespace octet::cpu {
namespace {

// What a thread packs of A and of B, and the sums of a block, fit in L2 together.
constexpr int64_t kBlockM = 192, kBlockN = 512;
constexpr int64_t kRoomOfB = 1280 << 10;
constexpr int64_t kDepthInTurn = 512;  // packed at once where the depth is more than the engine's
constexpr int64_t kTilePadding = 16;   // floats between tile rows: avoids cache set conflicts in columns
constexpr int64_t kScratchPerThread = kRoomOfA + kRoomOfB + kBlockM * (kBlockN + kTilePadding) * 4;
static_assert(kScratchPerThread <= kWorkspacePerThread);

struct Blocks {
  int64_t m = kBlockM, n = kBlockN;
};

// Smaller blocks if what is packed of them takes too much room, or the output has fewer blocks than threads share
// alike.
Blocks choose_blocks(const GemmEngine& engine, int64_t rows, int64_t cols, int64_t depth, int64_t threads) {
  const int64_t bytes = engine.packed_bytes(depth <= engine.depth ? depth : kDepthInTurn);
  const auto fitting = [&](int64_t count, int64_t most, int64_t room, int64_t unit) {  // alike, as few as do
    most = std::max(std::min(most, room / std::max<int64_t>(bytes, 1)) / unit * unit, unit);
    const int64_t blocks = std::max<int64_t>((count + most - 1) / most, 1);
    return std::max(round_up((count + blocks - 1) / blocks, unit), unit);
  };
  Blocks blocks{fitting(rows, kBlockM, kRoomOfA, engine.mr), fitting(cols, kBlockN, kRoomOfB, engine.nr)};
  auto tasks = [&] { return ((rows + blocks.m - 1) / blocks.m) * ((cols + blocks.n - 1) / blocks.n); };
  while (tasks() < threads || tasks() % threads != 0) {
    if (tasks() >= 8 * threads) break;
    const bool split_n = blocks.n >= 4 * blocks.m;  // B is packed once for all blocks of its columns
    int64_t& side = split_n ? blocks.n : blocks.m;
    const int64_t unit = split_n ? engine.nr : engine.mr;
    if (side <= 2 * unit) break;
    side = round_up(side / 2, unit);
  }
  return blocks;
}

struct NoAddend {};

int64_t count_of(simd::Full) { return simd::kLanes; }
int64_t count_of(simd::Part part) { return part.count; }

template <typename T, typename Lanes>
OCTET_SIMD simd::Floats load_addend(const T* from, Lanes lanes) {
  if constexpr (std::is_same_v<T, F16>) {
    float values[simd::kLanes] = {};
    for (int64_t i = 0; i < count_of(lanes); ++i) values[i] = codec::decode(from[i]);
    return simd::load(values, simd::Full{});
  } else {
    return simd::load(from, lanes);
  }
}

template <typename T, typename Lanes>
OCTET_SIMD void store_rounded(T* to, simd::Floats values, Lanes lanes) {
  if constexpr (std::is_same_v<T, F16>) {
    for (int64_t i = 0; i < count_of(lanes); ++i) to[i] = codec::encode<F16>(values[i]);
  } else {
    simd::store(to, values, lanes);
  }
}

// One row of the epilogue.
template <bool kScaled, typename Add, typename Out>
void store_row(const float* sums, float factor, const float* col_scale, const Add* c, Out* out, int64_t count) {
  simd::for_lanes(count, [&](int64_t i, auto lanes) {
    simd::Floats value = simd::load(sums + i, lanes) * factor;
    if constexpr (kScaled) value *= simd::load(col_scale + i, lanes);
    if constexpr (!std::is_same_v<Add, NoAddend>) value += load_addend(c + i, lanes);
    store_rounded(out + i, value, lanes);
  });
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

const GemmEngine& float_engine(int64_t rows) {
  constexpr int64_t kRows = 128;
  const GemmEngine* amx = rows >= kRows ? amx_float_engine() : nullptr;
  return amx != nullptr ? *amx : vector_engine();
}

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
  const int64_t threads = threads_with_room("gemm", std::ssize(scratch), kScratchPerThread);
  const Blocks blocks = choose_blocks(engine, rows, cols, depth, threads);
  const int64_t blocks_m = (rows + blocks.m - 1) / blocks.m, blocks_n = (cols + blocks.n - 1) / blocks.n;
  const int64_t a_row = engine.stored_row != nullptr ? engine.stored_row(a) : 0;
  const StoreTile choose = choose_store(out);
  const auto store = [&](float* tile, int64_t ld, int64_t m0, int64_t m, int64_t n0, int64_t n) {
    for (int64_t row = 0; engine.integer_sums && row < m; ++row) {
      float* sums = tile + row * ld;
      for (int64_t i = 0; i < n; ++i) sums[i] = static_cast<float>(std::bit_cast<int32_t>(sums[i]));
    }
    choose(out, tile, ld, m0, m, n0, n, cols);
  };
  parallel_threads([&](int thread, int running) {
    const int64_t workers = std::min<int64_t>(threads, running);
    if (thread >= workers) return;
    std::byte *packed_a = scratch.data() + thread * kScratchPerThread, *packed_b = packed_a + kRoomOfA;
    auto* tile = reinterpret_cast<float*>(packed_b + kRoomOfB);
    const int64_t tasks = blocks_m * blocks_n, first = tasks * thread / workers;
    if (engine.begin != nullptr) engine.begin();
    for (int64_t task = first; task < tasks * (thread + 1) / workers; ++task) {
      const int64_t m0 = task % blocks_m * blocks.m, n0 = task / blocks_m * blocks.n;
      const int64_t m = std::min(blocks.m, rows - m0), n = std::min(blocks.n, cols - n0);
      const int64_t ld = round_up(n, engine.nr) + kTilePadding;
      if (depth <= engine.depth) {  // panel after panel of rows, whose sums are stored at once
        const int64_t stored = a_row > 0 ? m / engine.mr * engine.mr : 0;  // rows that are read where they lie
        if (stored < m) engine.pack_a(a, m0 + stored, m - stored, 0, depth, packed_a);
        // The next block of the same columns reuses the packed B.
        if (task % blocks_m == 0 || task == first) engine.pack_b(b, n0, n, 0, depth, packed_b);
        const int64_t bytes = engine.packed_bytes(depth);
        for (int64_t i = 0; i < m; i += engine.mr) {
          const std::byte* left =
              i < stored ? static_cast<const std::byte*>(a.data) + (m0 + i) * a_row : packed_a + (i - stored) * bytes;
          const int64_t height = std::min(engine.mr, m - i);
          engine.multiply(left, i < stored ? a_row : 0, height, packed_b, n, depth, tile, ld, false);
          store(tile, ld, m0 + i, height, n0, n);
        }
        continue;
      }
      for (int64_t k0 = 0; k0 < depth; k0 += kDepthInTurn) {
        const int64_t ks = std::min(kDepthInTurn, depth - k0);
        engine.pack_a(a, m0, m, k0, ks, packed_a);
        engine.pack_b(b, n0, n, k0, ks, packed_b);
        engine.multiply(packed_a, 0, m, packed_b, n, ks, tile, ld, k0 > 0);
      }
      store(tile, ld, m0, m, n0, n);
    }
    if (engine.end != nullptr) engine.end();
  });
}

}  // namespace octet::cpu
