// The schedule of tiles (common/quantize_tile.cuh): a producer fills a thread's part, then codes, amaxes and column
// sums are made of what is in registers.
//
//   struct Producer {
//     static constexpr int kMatrices = 1;  // that it makes; a CTA makes one tile of matrix `which`
//     static constexpr int kBlocks = 3;    // an SM
//     __device__ void make(TilePart<bf16>& part, const Spot& spot, int which) const;  // 0 beyond the edges
//   };
//
// CTAs of the same tile of two matrices are neighbours: what both read comes from L2.
#include "kernels/cuda/activation/activation.h"
#include "kernels/cuda/activation/groups.cuh"
#include "kernels/cuda/common/column_sums.cuh"
#include "kernels/cuda/common/column_walk.cuh"
#include "kernels/cuda/common/overlap.cuh"

namespace octet::cuda {
namespace {

using Form = ActivationForm;

struct Spot {
  int64_t rows, cols, r0, c0;  // of the matrix; where the tile begins
  __device__ __forceinline__ int64_t row() const { return r0 + TilePart<bf16>::row(); }
  __device__ __forceinline__ int64_t col() const { return c0 + TilePart<bf16>::col(); }
  __device__ __forceinline__ bool holds(int i) const { return row() + i < rows && col() < cols; }
};

// Row i of a thread's part: 16 elements, 0 beyond the edges.
using Run = Packed<bf16, kPartCols>;
__device__ __forceinline__ Run load_run(int i, const bf16* x, const Spot& spot) {
  uint4 low = {0, 0, 0, 0}, high = {0, 0, 0, 0};
  if (spot.holds(i)) {
    const auto* from = reinterpret_cast<const uint4*>(x + (spot.row() + i) * spot.cols + spot.col());
    low = from[0], high = from[1];
  }
  return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}
__device__ __forceinline__ void store_run(const Run& run, int i, bf16* y, const Spot& spot) {
  if (y == nullptr || !spot.holds(i)) return;
  auto* to = reinterpret_cast<uint4*>(y + (spot.row() + i) * spot.cols + spot.col());
  to[0] = {run.words[0], run.words[1], run.words[2], run.words[3]};
  to[1] = {run.words[4], run.words[5], run.words[6], run.words[7]};
}
__device__ __forceinline__ void set_run(TilePart<bf16>& part, int i, const Run& run) {
  unroll<Run::kWords>([&](int w) { part.at[i][w] = run.words[w]; });
}

// TileEnd as a kernel takes it.
struct EndJob {
  QuantizeJob job;
  float* partial;         // [partial_rows, cols], or null
  uint32_t* tile_amaxes;  // [tiles], or null: then the amax is raised
};

struct NoCodes {};

template <ScaleLayout kLayout, typename Code>
__device__ __forceinline__ void end_tile(const TilePart<bf16>& part, const Spot& spot, const EndJob& end,
                                         TileScratch& scratch) {
  if (end.partial != nullptr) {
    float held[kPartCols];
    unroll<kPartCols>([&](int k) {
      held[k] = 0.0f;
      unroll<kPartRows>([&](int i) { held[k] = SumOf::join(held[k], part.value(i, k)); });
    });
    join_columns<SumOf>(held, reinterpret_cast<float*>(scratch.codes_t),
                        end.partial + 2 * (spot.r0 / kTile) * spot.cols + spot.c0, spot.cols, spot.cols - spot.c0);
    __syncthreads();
  }
  if constexpr (std::is_same_v<Code, NoCodes>) {
    if (end.job.amax == nullptr) return;
    using M = Magnitudes<bf16>;
    uint32_t most = 0;
    unroll<kPartRows>([&](int i) {
#pragma unroll
      for (uint32_t word : part.at[i]) most = M::max(most, word & M::kMask);
    });
    if (end.tile_amaxes == nullptr) return block_amax(M::bits(most), end.job.amax);
    most = block_max(M::bits(most), scratch.amax);
    if (threadIdx.x == 0) {
      const int64_t across = (spot.cols + kTile - 1) / kTile;
      end.tile_amaxes[spot.r0 / kTile * across + spot.c0 / kTile] = most;
    }
  } else {
    quantize_tile<kLayout, Code, true>(part, spot.r0, spot.c0, end.job, scratch);
  }
}

template <ScaleLayout kLayout, typename Code, typename Producer>
__global__ void __launch_bounds__(kTileThreads, Producer::kBlocks)
    tiles_kernel(const __grid_constant__ Producer producer, const __grid_constant__ EndJob first,
                 const __grid_constant__ EndJob second) {
  __shared__ TileScratch scratch;
  griddep_wait();
  griddep_launch_dependents();
  const int which = Producer::kMatrices == 2 ? static_cast<int>(blockIdx.x % 2) : 0;
  const EndJob& end = which == 0 ? first : second;
  const int64_t rows = first.job.rows, cols = first.job.cols;
  const unsigned tile = blockIdx.x / Producer::kMatrices, across = static_cast<unsigned>((cols + kTile - 1) / kTile);
  const Spot spot{rows, cols, int64_t{tile / across} * kTile, int64_t{tile % across} * kTile};
  TilePart<bf16> part;
  producer.make(part, spot, which);
  end_tile<kLayout, Code>(part, spot, end, scratch);
}

template <typename Code>
EndJob prepare(const TileEnd& end, cudaStream_t stream) {
  EndJob job{end.job, nullptr, nullptr};
  job.job.vector = true;
  if (end.column_sums != nullptr) job.partial = end.scratch;
  if (end.job.amax == nullptr) return job;
  if (std::is_same_v<Code, NoCodes> && end.column_sums != nullptr) {
    job.tile_amaxes = reinterpret_cast<uint32_t*>(end.scratch + partial_rows(end.job.rows) * end.job.cols);
  } else {
    cudaMemsetAsync(end.job.amax, 0, sizeof(float), stream);
  }
  return job;
}

template <ScaleLayout kLayout, typename Code, typename Producer>
void launch_tiles(const Producer& producer, const TileEnd& first, const TileEnd& second, cudaStream_t stream) {
  const int64_t rows = first.job.rows, cols = first.job.cols, tiles = tiles_of(rows) * tiles_of(cols);
  const EndJob one = prepare<Code>(first, stream), two = prepare<Code>(second, stream);
  const auto blocks = static_cast<unsigned>(Producer::kMatrices * tiles);
  launch_overlapped(tiles_kernel<kLayout, Code, Producer>, {blocks, kTileThreads}, stream, producer, one, two);
  if (first.column_sums == nullptr) return;
  launch_finish_rows<SumOf>(first.scratch, first.column_sums, rows, cols, stream,
                            {one.tile_amaxes, tiles, first.job.amax});
}

// Of the groupings and formats of takes_codes.
template <bool kGradient, typename Producer>
void launch_code_tiles(const Producer& producer, const TileEnd& first, const TileEnd& second, cudaStream_t stream) {
  if (first.grouping == ScaleLayout::kTensor) {
    launch_tiles<ScaleLayout::kTensor, std::conditional_t<kGradient, e5m2, e4m3>>(producer, first, second, stream);
  } else {
    launch_tiles<ScaleLayout::kRow128, e4m3>(producer, first, second, stream);
  }
}

// --- (bias,) activation (, gate), quantize
template <typename Fn, Form kForm>
struct ForwardTiles {
  static constexpr int kMatrices = 1, kBlocks = 3;
  const bf16 *x, *up;
  const void* bias;
  bool bias_f32;
  bf16 *biased, *a, *y;

  __device__ __forceinline__ void load_bias(float (&to)[kPartCols], const Spot& spot) const {
    if (spot.col() >= spot.cols) return;
#pragma unroll
    for (int k = 0; k < kPartCols; k += 8) {
      float few[8];
      if (bias_f32) {
        load(static_cast<const float*>(bias) + spot.col() + k, few);
      } else {
        load(static_cast<const bf16*>(bias) + spot.col() + k, few);
      }
      unroll<8>([&](int j) { to[k + j] = few[j]; });
    }
  }
  __device__ __forceinline__ void make(TilePart<bf16>& part, const Spot& spot, int) const {
    Run runs[kPartRows], factors[kForm == Form::kGated ? kPartRows : 1];
    unroll<kPartRows>([&](int i) {
      runs[i] = load_run(i, x, spot);
      if constexpr (kForm == Form::kGated) factors[i] = load_run(i, up, spot);
    });
    const bool biases = kForm != Form::kGated && bias != nullptr;
    if (biases) {
      float b[kPartCols] = {};
      load_bias(b, spot);
      unroll<kPartRows>([&](int i) {
        runs[i] = plus(runs[i], b);
        store_run(runs[i], i, biased, spot);
      });
    }
    unroll<kPartRows>([&](int i) {
      const Run act = activate<Fn>(runs[i]);
      if constexpr (kForm != Form::kPlain) store_run(act, i, a, spot);
      Run made = of_form<kForm>(act, factors[kForm == Form::kGated ? i : 0]);
      if (biases && spot.row() + i >= spot.rows) made = {};  // not fn(bias)
      store_run(made, i, y, spot);
      set_run(part, i, made);
    });
  }
};

// --- gradients of activations with column sums, an amax, codes; of gates with codes of both results
template <typename Fn, Form kForm>
struct GradientTiles {
  static constexpr int kMatrices = kForm == Form::kGated ? 2 : 1, kBlocks = 3;  // dx, dup
  // Rows at a time: what is read of all four rows of three operands would not fit the registers of three CTAs.
  static constexpr int kRows = kForm == Form::kPlain ? kPartRows : 2;
  const bf16 *x, *up, *dy, *a;
  bf16* dx;

  __device__ __forceinline__ void make(TilePart<bf16>& part, const Spot& spot, int which) const {
    which == 0 ? make_dx(part, spot) : make_dup(part, spot);
  }

  __device__ __forceinline__ void make_dx(TilePart<bf16>& part, const Spot& spot) const {
#pragma unroll
    for (int first = 0; first < kPartRows; first += kRows) {
      Run xs[kRows], dys[kRows], factors[kForm == Form::kPlain ? 1 : kRows];
      unroll<kRows>([&](int r) {
        xs[r] = load_run(first + r, x, spot), dys[r] = load_run(first + r, dy, spot);
        if constexpr (kForm == Form::kGated) factors[r] = load_run(first + r, up, spot);
        if constexpr (kForm == Form::kSquared) {
          if (a != nullptr) factors[r] = load_run(first + r, a, spot);
        }
      });
      unroll<kRows>([&](int r) {
        Run& factor = factors[kForm == Form::kPlain ? 0 : r];
        if (kForm == Form::kSquared && a == nullptr) factor = activate<Fn>(xs[r]);
        const Run made = times_slope<Fn>(gradient_of_a<kForm>(dys[r], factor), xs[r]);
        if constexpr (kForm != Form::kGated) store_run(made, first + r, dx, spot);
        set_run(part, first + r, made);
      });
    }
  }

  __device__ __forceinline__ void make_dup(TilePart<bf16>& part, const Spot& spot) const {
    Run dys[kPartRows], acts[kPartRows];
    unroll<kPartRows>(
        [&](int i) { dys[i] = load_run(i, dy, spot), acts[i] = load_run(i, a != nullptr ? a : x, spot); });
    unroll<kPartRows>([&](int i) { set_run(part, i, times(dys[i], a != nullptr ? acts[i] : activate<Fn>(acts[i]))); });
  }
};

// --- a gradient's column sums with its amax or codes: no activation, the same tiles
struct PlainTiles {
  static constexpr int kMatrices = 1, kBlocks = 4;
  const bf16* x;

  __device__ __forceinline__ void make(TilePart<bf16>& part, const Spot& spot, int) const {
    unroll<kPartRows>([&](int i) { set_run(part, i, load_run(i, x, spot)); });
  }
};

}  // namespace

void launch_activation_tiles(const ActivationForward& job, const TileEnd& end, cudaStream_t stream) {
  with_activation_form(job.fn, job.form, [&]<typename Fn, Form kForm>(Fn, std::integral_constant<Form, kForm>) {
    const ForwardTiles<Fn, kForm> tiles{
        static_cast<const bf16*>(job.x), static_cast<const bf16*>(job.up), job.bias,
        job.bias_type == DType::kF32,    static_cast<bf16*>(job.biased),   static_cast<bf16*>(job.a),
        static_cast<bf16*>(job.y)};
    launch_code_tiles<false>(tiles, end, {}, stream);
  });
}

void launch_activation_grad_tiles(const ActivationGradient& job, const TileEnd& dx, const TileEnd& dup,
                                  cudaStream_t stream) {
  with_activation_form(job.fn, job.form, [&]<typename Fn, Form kForm>(Fn, std::integral_constant<Form, kForm>) {
    const GradientTiles<Fn, kForm> tiles{static_cast<const bf16*>(job.x), static_cast<const bf16*>(job.up),
                                         static_cast<const bf16*>(job.dy), static_cast<const bf16*>(job.a),
                                         static_cast<bf16*>(job.dx)};
    if (dx.quantizes) return launch_code_tiles<true>(tiles, dx, dup, stream);
    if constexpr (kForm != Form::kGated) launch_tiles<ScaleLayout::kTensor, NoCodes>(tiles, dx, dup, stream);
  });
}

int64_t tile_end_scratch(int64_t rows, int64_t cols) {
  return (partial_rows(rows) * cols + tiles_of(rows) * tiles_of(cols)) * static_cast<int64_t>(sizeof(float));
}

bool takes_codes(bool gradient, ScaleLayout grouping, DType format) {
  if (grouping == ScaleLayout::kTensor) return format == (gradient ? DType::kE5M2 : DType::kE4M3);
  return grouping == ScaleLayout::kRow128 && format == DType::kE4M3;
}

void launch_plain_tiles(const void* x, const TileEnd& end, uint32_t* counters, cudaStream_t stream) {
  const PlainTiles tiles{static_cast<const bf16*>(x)};
  const int64_t rows = end.job.rows, cols = end.job.cols;
  if (end.quantizes) {
    launch_code_tiles<true>(tiles, end, {}, stream);
  } else if (end.job.amax != nullptr && walks_columns<bf16>(rows, cols)) {
    launch_column_walk<SumOf, bf16, true>(
        {x, rows, cols, end.scratch, end.column_sums, counters + kAmaxWords, {end.job.amax, counters}}, stream);
  } else {
    launch_tiles<ScaleLayout::kTensor, NoCodes>(tiles, end, {}, stream);
  }
}

}  // namespace octet::cuda
