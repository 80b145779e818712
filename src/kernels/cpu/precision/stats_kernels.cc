// Fast row of tensor_stats: amax in one pass, then bands of 128 rows in tiles of 128 columns. A tile is read once as
// float32 and encoded and decoded in cache under each of the scalings. Each band writes its sums to the workspace; they
// are combined in order, so results do not depend on the number of threads.
#include <cmath>

#include "ir/scale_layout.h"
#include "ir/tensor_stats.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/precision/scale_formula.h"

namespace octet::cpu {
namespace {

constexpr int kScalings = 3;  // one scale, blocks, blocks of the transpose
constexpr int64_t kTile = kScaleBlock;
constexpr uint32_t kInfinity = 0x7f800000u;

struct Band {
  double row_noise[kScalings], col_noise[kScalings];
  int64_t rows, cols;  // runs of 128 that are not all zeros
  int64_t not_finite, non_zero, blocks, block_binades;
  int64_t underflow[kScalings], saturated[kScalings];
  uint32_t low;  // bits of the smallest non-zero magnitude
};

int64_t binades(uint32_t low, uint32_t high) {
  return std::ilogb(std::bit_cast<float>(high)) - std::ilogb(std::bit_cast<float>(low)) + 1;
}

// The smallest non-zero magnitude of a tile's row, in bits.
uint32_t smallest(const float* x) {
  uint32_t low = kInfinity;
  for (int64_t i = 0; i < kTile; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu;
    low = std::min(low, bits == 0 ? kInfinity : bits);
  }
  return low;
}

double sum_of(const double* x) {
  double lanes[8] = {};
  for (int64_t i = 0; i < kTile; i += 8) {
    for (int64_t j = 0; j < 8; ++j) lanes[j] += x[i + j];
  }
  for (int64_t j = 1; j < 8; ++j) lanes[0] += lanes[j];
  return lanes[0];
}

// Rows and columns beyond the tensor are zeros, which are not counted.
struct Tile {
  alignas(64) float x[kTile][kTile];
  double row_signal[kTile], col_signal[kTile];
  float row_scale[kTile], col_scale[kTile], tile_scale;
};

struct StatsJob {
  const void* x;
  int64_t rows, cols;
  bool tiles;  // blocks of 128x128
  ScaleFormula tensor, block;
  float scale = 1;  // of the tensor
};

template <typename T>
void load_tile(const StatsJob& job, int64_t r0, int64_t c0, Tile& tile, Band& band) {
  const int64_t rows = std::min(kTile, job.rows - r0), cols = std::min(kTile, job.cols - c0);
  uint32_t col_amax[kTile] = {}, tile_amax = 0, tile_low = kInfinity;
  std::fill_n(tile.col_signal, kTile, 0.0);
  for (int64_t r = 0; r < kTile; ++r) {
    float* row = tile.x[r];
    std::fill_n(row, kTile, 0.0f);
    if (r >= rows) {
      tile.row_signal[r] = 0;
      tile.row_scale[r] = 1;
      continue;
    }
    const T* from = static_cast<const T*>(job.x) + (r0 + r) * job.cols + c0;
    double squares[kTile] = {};
    int64_t finite = 0, non_zero = 0;
    for (int64_t c = 0; c < cols; ++c) {
      const float value = codec::decode(from[c]);
      const bool keep = (std::bit_cast<uint32_t>(value) & kInfinity) != kInfinity;
      row[c] = std::bit_cast<float>(codec::select(keep, std::bit_cast<uint32_t>(value), 0));
      finite += keep;
      non_zero += (std::bit_cast<uint32_t>(row[c]) & 0x7fffffffu) != 0;
      squares[c] = static_cast<double>(row[c]) * static_cast<double>(row[c]);
      tile.col_signal[c] += squares[c];
    }
    band.not_finite += cols - finite;
    band.non_zero += non_zero;
    tile.row_signal[r] = sum_of(squares);
    const uint32_t amax = amax_run(row, kTile), low = smallest(row);
    amax_columns(row, kTile, col_amax);
    tile.row_scale[r] = job.block(amax);
    tile_amax = std::max(tile_amax, amax);
    tile_low = std::min(tile_low, low);
    if (!job.tiles && amax > 0) ++band.blocks, band.block_binades += binades(low, amax);
  }
  for (int64_t c = 0; c < kTile; ++c) tile.col_scale[c] = job.block(col_amax[c]);
  tile.tile_scale = job.block(tile_amax);
  if (job.tiles && tile_amax > 0) ++band.blocks, band.block_binades += binades(tile_low, tile_amax);
  band.low = std::min(band.low, tile_low);
}

// Scales and scale_invs of the columns of a row.
struct Scales {
  alignas(64) float scale[kTile], inverse[kTile];
  void fill(float value) {
    std::fill_n(scale, kTile, value);
    std::fill_n(inverse, kTile, 1.0f / value);
  }
  void copy(const float* values) {
    for (int64_t c = 0; c < kTile; ++c) scale[c] = values[c], inverse[c] = 1.0f / values[c];
  }
};

// Adds the tile's noise and counts with these scales, or with those of each row.
template <typename Code>
void round_tile(const Tile& tile, int scaling, Scales& scales, const float* row_scales, Band& band) {
  const uint32_t largest = codec::encode<Code>(FLT_MAX).bits;
  double col_noise[kTile] = {};
  for (int64_t r = 0; r < kTile; ++r) {
    if (tile.row_signal[r] == 0) continue;
    if (row_scales != nullptr) scales.fill(row_scales[r]);
    const float* row = tile.x[r];
    alignas(64) float rounded[kTile];
    alignas(64) double squares[kTile];
    uint32_t underflow = 0, saturated = 0;
    for (int64_t c = 0; c < kTile; ++c) {  // separate loops per type, which vectorise
      const Code code = codec::encode<Code>(row[c] * scales.scale[c]);
      const uint32_t magnitude = code.bits & 0x7fu, bits = std::bit_cast<uint32_t>(row[c]) & 0x7fffffffu;
      underflow += static_cast<uint32_t>(bits != 0) & static_cast<uint32_t>(magnitude == 0);
      saturated += static_cast<uint32_t>(magnitude == largest);
      rounded[c] = codec::decode(code) * scales.inverse[c];
    }
    for (int64_t c = 0; c < kTile; ++c) {
      const double error = static_cast<double>(row[c]) - static_cast<double>(rounded[c]);
      squares[c] = error * error;
      col_noise[c] += squares[c];
    }
    band.underflow[scaling] += underflow;
    band.saturated[scaling] += saturated;
    band.row_noise[scaling] += sum_of(squares) / tile.row_signal[r];
  }
  for (int64_t c = 0; c < kTile; ++c) {
    if (tile.col_signal[c] > 0) band.col_noise[scaling] += col_noise[c] / tile.col_signal[c];
  }
}

template <typename Code, typename T>
void measure_band(const StatsJob& job, int64_t r0, Band& band) {
  band = {};
  band.low = kInfinity;
  Tile tile;
  Scales scales;
  for (int64_t c0 = 0; c0 < job.cols; c0 += kTile) {
    load_tile<T>(job, r0, c0, tile, band);
    for (int64_t i = 0; i < kTile; ++i) band.rows += tile.row_signal[i] > 0, band.cols += tile.col_signal[i] > 0;
    scales.fill(job.scale);
    round_tile<Code>(tile, 0, scales, nullptr, band);
    if (job.tiles) scales.fill(tile.tile_scale);
    round_tile<E4M3>(tile, 1, scales, job.tiles ? nullptr : tile.row_scale, band);
    if (job.tiles) continue;
    scales.copy(tile.col_scale);
    round_tile<E4M3>(tile, 2, scales, nullptr, band);
  }
}

void join_bands(const StatsJob& job, uint32_t amax, std::span<const Band> bands, float* results) {
  const auto total = [&](const auto& field) {
    double sum = 0;
    for (const Band& band : bands) sum += static_cast<double>(std::invoke(field, band));
    return sum;
  };
  const auto ratio = [](double part, double whole) { return whole > 0 ? static_cast<float>(part / whole) : 0.0f; };
  uint32_t low = kInfinity;
  for (const Band& band : bands) low = std::min(low, band.low);
  results[kStatAmax] = std::bit_cast<float>(amax);
  results[kStatNotFinite] = ratio(total(&Band::not_finite), static_cast<double>(job.rows * job.cols));
  results[kStatBinades] = amax > 0 ? static_cast<float>(binades(low, amax)) : 0.0f;
  results[kStatBlockBinades] = ratio(total(&Band::block_binades), total(&Band::blocks));
  for (int i = 0; i < kScalings; ++i) {
    const int s = i == 2 && job.tiles ? 1 : i;  // the transpose of a tile is a tile
    float* to = results + kStatTensor + 3 * i;
    to[kUnderflow] = ratio(total([s](const Band& band) { return band.underflow[s]; }), total(&Band::non_zero));
    to[kSaturation] = ratio(total([s](const Band& band) { return band.saturated[s]; }), total(&Band::non_zero));
    to[kNoise] = std::max(ratio(total([s](const Band& band) { return band.row_noise[s]; }), total(&Band::rows)),
                          ratio(total([s](const Band& band) { return band.col_noise[s]; }), total(&Band::cols)));
  }
}

template <typename Code, typename T>
void run_tensor_stats(StatsJob job, const KernelArgs& args) {
  job.x = args.in[0].data;
  const uint32_t amax = parallel_max(job.rows * job.cols, 1 << 14, [&](int64_t begin, int64_t end) {
    uint32_t seen = 0;
    const T* x = static_cast<const T*>(job.x);
    for (int64_t i = begin; i < end; ++i) {
      const uint32_t bits = magnitude_bits(x[i]);
      seen = std::max(seen, bits < kInfinity ? bits : 0);
    }
    return seen;
  });
  job.scale = job.tensor(amax);
  const int64_t count = (job.rows + kTile - 1) / kTile;
  Band* bands = reinterpret_cast<Band*>(args.workspace.data());
  parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) measure_band<Code, T>(job, i * kTile, bands[i]);
  });
  join_bands(job, amax, {bands, static_cast<size_t>(count)}, args.out[0].as<float>());
}

BoundKernel bind_tensor_stats(const Graph& graph, const Node& node) {
  const TensorType& x = graph.type(node.inputs[0]);
  const int64_t bands = (x.shape.rows() + kTile - 1) / kTile;
  if (!is_f32_or_bf16(x.dtype) || bands * static_cast<int64_t>(sizeof(Band)) > kLeastWorkspace) return nullptr;
  Node block = node;
  block.attrs.set("format", std::string("e4m3"));
  block.attrs.set("pow2", true);
  const StatsJob job{.x = nullptr,
                     .rows = x.shape.rows(),
                     .cols = x.shape.cols(),
                     .tiles = node.attr<std::string>("blocks") == "128x128",
                     .tensor = ScaleFormula(node),
                     .block = ScaleFormula(block)};
  return with_float_type(x.dtype, [&]<typename T>(T) -> BoundKernel {
    if (job.tensor.format == DType::kE4M3) {
      return [job](const KernelArgs& args) { run_tensor_stats<E4M3, T>(job, args); };
    }
    return [job](const KernelArgs& args) { run_tensor_stats<E5M2, T>(job, args); };
  });
}

}  // namespace

std::vector<KernelEntry> stats_kernels() { return {{Op::kTensorStats, "tensor_stats_bands", bind_tensor_stats}}; }

}  // namespace octet::cpu
