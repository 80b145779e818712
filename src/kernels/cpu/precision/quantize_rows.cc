// Fast rows of quantization: quantize in tiles of 128 x 128, compute_scale, update_scales, dequantize.
//
// A tile is read once or twice from cache; its row codes, the codes of its transpose and the amaxes come out of it. The
// arithmetic is the reference's, bit for bit: float32 scale, float32 product, one rounding to FP8. amax is the integer
// maximum of |x|'s bits, which orders NaN above infinity above every number, whatever the order of elements.
#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "base/codec.h"
#include "base/error.h"
#include "base/threads.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/matmul/matrix_view.h"
#include "kernels/cpu/row_kernels.h"
#include "precision/recipe.h"

namespace octet::cpu {
namespace {

constexpr int64_t kTile = kScaleBlock;

// The recipe's formula with the common case inline.
struct ScaleFormula {
  DType format = DType::kE4M3;
  int64_t margin = 0;
  bool pow2 = false;
  float max = 448;

  explicit ScaleFormula(const Node& node)
      : format(parse_dtype(node.attrs.get<std::string>("format"))),
        margin(node.attrs.get_or<int64_t>("margin", 0)),
        pow2(node.attrs.get_or<bool>("pow2", false)),
        max(static_cast<float>(dtype_max(format))) {}

  float operator()(uint32_t amax_bits) const {
    const float amax = std::bit_cast<float>(amax_bits), scale = max / amax;
    if (margin != 0 || !(scale >= FLT_MIN && scale <= FLT_MAX)) return scale_from_amax(amax, format, margin, pow2);
    return pow2 ? std::bit_cast<float>(std::bit_cast<uint32_t>(scale) & 0x7f800000u) : scale;
  }
};

template <typename T>
uint32_t magnitude_bits(T value) {
  return std::bit_cast<uint32_t>(codec::decode(value)) & 0x7fffffffu;
}

template <typename T>
uint32_t amax_run(const T* x, int64_t count) {
  uint32_t amax = 0;
  for (int64_t i = 0; i < count; ++i) amax = std::max(amax, magnitude_bits(x[i]));
  return amax;
}

template <typename T>
void amax_columns(const T* x, int64_t count, uint32_t* amax) {
  for (int64_t i = 0; i < count; ++i) amax[i] = std::max(amax[i], magnitude_bits(x[i]));
}

template <typename Code, typename T>
void encode_run(const T* __restrict x, int64_t count, float scale, Code* __restrict codes) {
  for (int64_t i = 0; i < count; ++i) codes[i] = codec::encode<Code>(codec::decode(x[i]) * scale);
}

template <typename Code, typename T>
void encode_columns(const T* __restrict x, int64_t count, const float* __restrict scales, Code* __restrict codes) {
  for (int64_t i = 0; i < count; ++i) codes[i] = codec::encode<Code>(codec::decode(x[i]) * scales[i]);
}

void transpose_16x16(const uint8_t* from, int64_t from_stride, uint8_t* to, int64_t to_stride) {
  __m128i a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * from_stride));
  // Four rounds of interleaving row i with row i + 8 are a full transpose.
  auto interleave = [](const __m128i* in, __m128i* out) {
    for (int i = 0; i < 8; ++i) {
      out[2 * i] = _mm_unpacklo_epi8(in[i], in[i + 8]);
      out[2 * i + 1] = _mm_unpackhi_epi8(in[i], in[i + 8]);
    }
  };
  interleave(a, b);
  interleave(b, a);
  interleave(a, b);
  interleave(b, a);
  for (int i = 0; i < 16; ++i) _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i * to_stride), a[i]);
}

// to [cols, to_stride] = the transpose of tile [rows, kTile].
void transpose_tile(const uint8_t* tile, int64_t rows, int64_t cols, uint8_t* to, int64_t to_stride) {
  int64_t r = 0;
  for (; r + 16 <= rows; r += 16) {
    int64_t c = 0;
    for (; c + 16 <= cols; c += 16) transpose_16x16(tile + r * kTile + c, kTile, to + c * to_stride + r, to_stride);
    for (; c < cols; ++c) {
      for (int64_t i = r; i < r + 16; ++i) to[c * to_stride + i] = tile[i * kTile + c];
    }
  }
  for (; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) to[c * to_stride + r] = tile[r * kTile + c];
  }
}

enum class Grouping : uint8_t { kTensor, kRow, kRow128, kTile128 };
Grouping grouping_of(const Shape& codes, const Shape& scale, bool given) {
  if (given) return Grouping::kTensor;
  if (scale.rank() == 1) return Grouping::kRow;
  return scale[0] == codes.rows() ? Grouping::kRow128 : Grouping::kTile128;
}

void raise(std::atomic<uint32_t>& to, uint32_t value) {
  uint32_t seen = to.load(std::memory_order_relaxed);
  while (seen < value && !to.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

// Results that may be absent are null.
template <typename Code>
struct QuantizeJob {
  const void* x;
  int64_t rows, cols;
  Grouping grouping;
  float scale;  // kTensor
  Code *codes, *codes_t;
  float *scale_inv, *scale_inv_t;  // not of kTensor
  ScaleFormula formula;
  float *row_scales, *col_scales;  // kRow, made before: [rows], [cols]
  bool wants_amax;
};

// One tile at (r0, c0), its elements at x. Returns its amax bits when wanted or known anyway.
template <typename Code, typename T>
uint32_t quantize_tile(const QuantizeJob<Code>& job, const T* x, int64_t r0, int64_t c0) {
  const int64_t rows = std::min(kTile, job.rows - r0), cols = std::min(kTile, job.cols - c0);
  const bool per_row = job.grouping == Grouping::kRow || job.grouping == Grouping::kRow128;
  alignas(64) Code tile[kTile * kTile];
  alignas(64) float row_scale[kTile], col_scale[kTile];
  uint32_t amax = 0;
  if (job.grouping == Grouping::kRow128) {
    alignas(64) uint32_t col_amax[kTile] = {};
    const int64_t row_groups = (job.cols + kTile - 1) / kTile, col_groups = (job.rows + kTile - 1) / kTile;
    for (int64_t r = 0; r < rows; ++r) {
      const uint32_t row_amax = amax_run(x + r * job.cols, cols);
      if (job.codes_t != nullptr || job.scale_inv_t != nullptr) amax_columns(x + r * job.cols, cols, col_amax);
      amax = std::max(amax, row_amax);
      row_scale[r] = job.formula(row_amax);
      if (job.scale_inv != nullptr) job.scale_inv[(r0 + r) * row_groups + c0 / kTile] = 1.0f / row_scale[r];
    }
    for (int64_t c = 0; c < cols; ++c) {
      col_scale[c] = job.formula(col_amax[c]);
      if (job.scale_inv_t != nullptr) job.scale_inv_t[(c0 + c) * col_groups + r0 / kTile] = 1.0f / col_scale[c];
    }
  } else if (job.grouping == Grouping::kRow) {
    std::copy_n(job.row_scales + r0, rows, row_scale);
    std::copy_n(job.col_scales + c0, cols, col_scale);
  } else if (job.grouping == Grouping::kTile128 || job.wants_amax) {
    for (int64_t r = 0; r < rows; ++r) amax = std::max(amax, amax_run(x + r * job.cols, cols));
  }
  float scale = job.scale;
  if (job.grouping == Grouping::kTile128) {
    scale = job.formula(amax);
    const int64_t row_tile = r0 / kTile, col_tile = c0 / kTile;
    const int64_t row_tiles = (job.rows + kTile - 1) / kTile, col_tiles = (job.cols + kTile - 1) / kTile;
    if (job.scale_inv != nullptr) job.scale_inv[row_tile * col_tiles + col_tile] = 1.0f / scale;
    if (job.scale_inv_t != nullptr) job.scale_inv_t[col_tile * row_tiles + row_tile] = 1.0f / scale;
  }
  if (job.codes != nullptr) {
    for (int64_t r = 0; r < rows; ++r) {
      encode_run(x + r * job.cols, cols, per_row ? row_scale[r] : scale, job.codes + (r0 + r) * job.cols + c0);
    }
  }
  if (job.codes_t != nullptr) {
    for (int64_t r = 0; r < rows; ++r) {
      Code* to = tile + r * kTile;
      if (per_row) {
        encode_columns(x + r * job.cols, cols, col_scale, to);
      } else if (job.codes != nullptr) {
        std::memcpy(to, job.codes + (r0 + r) * job.cols + c0, static_cast<size_t>(cols));
      } else {
        encode_run(x + r * job.cols, cols, scale, to);
      }
    }
    transpose_tile(&tile[0].bits, rows, cols, &job.codes_t[c0 * job.rows + r0].bits, job.rows);
  }
  return amax;
}

// Scales of whole rows and columns, before any tile.
template <typename Code, typename T>
void scale_rows_and_columns(const QuantizeJob<Code>& job) {
  const T* x = static_cast<const T*>(job.x);
  parallel_for(job.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      job.row_scales[r] = job.formula(amax_run(x + r * job.cols, job.cols));
      if (job.scale_inv != nullptr) job.scale_inv[r] = 1.0f / job.row_scales[r];
    }
  });
  if (job.codes_t == nullptr && job.scale_inv_t == nullptr) return;
  parallel_for(job.cols, kTile, [&](int64_t begin, int64_t end) {
    for (int64_t c0 = begin; c0 < end; c0 += kTile) {
      const int64_t cols = std::min(kTile, end - c0);
      uint32_t amax[kTile] = {};
      for (int64_t r = 0; r < job.rows; ++r) amax_columns(x + r * job.cols + c0, cols, amax);
      for (int64_t c = 0; c < cols; ++c) {
        job.col_scales[c0 + c] = job.formula(amax[c]);
        if (job.scale_inv_t != nullptr) job.scale_inv_t[c0 + c] = 1.0f / job.col_scales[c0 + c];
      }
    }
  });
}

template <typename Code, typename T>
uint32_t quantize(const QuantizeJob<Code>& job) {
  std::atomic<uint32_t> amax{0};
  const T* x = static_cast<const T*>(job.x);
  if (job.grouping == Grouping::kTensor && job.codes_t == nullptr) {  // no tiles needed: one stream
    constexpr int64_t kRun = 2048;
    parallel_for(job.rows * job.cols, 1 << 14, [&](int64_t begin, int64_t end) {
      uint32_t seen = 0;
      for (int64_t i = begin; i < end; i += kRun) {
        const int64_t count = std::min(kRun, end - i);
        if (job.wants_amax) seen = std::max(seen, amax_run(x + i, count));
        if (job.codes != nullptr) encode_run(x + i, count, job.scale, job.codes + i);
      }
      raise(amax, seen);
    });
    return amax;
  }
  if (job.grouping == Grouping::kRow) {
    scale_rows_and_columns<Code, T>(job);
    if (job.wants_amax) amax = amax_run(x, job.rows * job.cols);
  }
  const int64_t col_tiles = (job.cols + kTile - 1) / kTile, row_tiles = (job.rows + kTile - 1) / kTile;
  parallel_for(row_tiles * col_tiles, 1, [&](int64_t begin, int64_t end) {
    uint32_t seen = 0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t r0 = i / col_tiles * kTile, c0 = i % col_tiles * kTile;
      seen = std::max(seen, quantize_tile<Code, T>(job, x + r0 * job.cols + c0, r0, c0));
    }
    raise(amax, seen);
  });
  return amax;
}

// The rows of one call inside a fusion (row_program.h), in the tiles the whole tensor would be cut into.
template <typename Code, typename T>
void quantize_call(QuantizeJob<Code> job, const RowCall& call) {
  const T* x = static_cast<const T*>(call.in[0]);
  // Results that follow the rows are given at the call's first row, tiles count from the tensor's.
  const auto at_row_0 = [&](auto* first, int64_t row) {
    return first == nullptr ? nullptr : first - call.first_row * row;
  };
  const int64_t row_groups = job.grouping == Grouping::kRow128 ? (job.cols + kTile - 1) / kTile : 0;
  job.codes = at_row_0(static_cast<Code*>(call.out[0]), job.cols);
  job.scale_inv = at_row_0(static_cast<float*>(call.out[1]), row_groups);
  job.codes_t = static_cast<Code*>(call.out[2]);
  job.scale_inv_t = static_cast<float*>(call.out[3]);
  job.row_scales = job.col_scales = call.scratch;  // of kRow, which is not taken here
  job.wants_amax = call.out[4] != nullptr;
  uint32_t amax = 0;
  if (job.grouping == Grouping::kTensor) {
    job.scale = *static_cast<const float*>(call.in[1]);
    for (float* inverse : {job.scale_inv, job.scale_inv_t}) {
      if (inverse != nullptr && call.first_row == 0) *inverse = 1.0f / job.scale;
    }
  }
  if (job.grouping == Grouping::kTensor && job.codes_t == nullptr) {
    if (job.wants_amax) amax = amax_run(x, call.rows * job.cols);
    if (job.codes != nullptr) encode_run(x, call.rows * job.cols, job.scale, static_cast<Code*>(call.out[0]));
  } else {
    for (int64_t r = 0; r < call.rows; r += kTile) {
      for (int64_t c = 0; c < job.cols; c += kTile) {
        amax = std::max(amax, quantize_tile<Code, T>(job, x + r * job.cols + c, call.first_row + r, c));
      }
    }
  }
  if (float* largest = static_cast<float*>(call.out[4]); largest != nullptr) {
    *largest = std::bit_cast<float>(std::max(std::bit_cast<uint32_t>(*largest), amax));
  }
}

bool accepts_quantize(const Graph& graph, const Node& node) {
  const DType from = graph.dtype(node.inputs[0]);
  return (from == DType::kF32 || from == DType::kBF16 || from == DType::kF16) && is_fp8(node.results[0].dtype);
}

template <typename Code>
void run_quantize(const ScaleFormula& formula, const KernelArgs& args) {
  const Tensor& x = args.in[0];
  const bool given = args.in.size() > 1 && args.in[1].data != nullptr;
  QuantizeJob<Code> job{.x = x.data,
                        .rows = x.shape().rows(),
                        .cols = x.shape().cols(),
                        .grouping = grouping_of(args.out[0].shape(), args.out[1].shape(), given),
                        .scale = given ? *args.in[1].as<float>() : 1.0f,
                        .codes = args.out[0].as<Code>(),
                        .codes_t = args.out[2].as<Code>(),
                        .scale_inv = args.out[1].as<float>(),
                        .scale_inv_t = args.out[3].as<float>(),
                        .formula = formula,
                        .row_scales = reinterpret_cast<float*>(args.workspace.data()),
                        .col_scales = reinterpret_cast<float*>(args.workspace.data()) + x.shape().rows(),
                        .wants_amax = args.out[4].data != nullptr};
  if (job.grouping == Grouping::kTensor) {
    for (float* inverse : {job.scale_inv, job.scale_inv_t}) {
      if (inverse != nullptr) *inverse = 1.0f / job.scale;
    }
  }
  uint32_t amax = 0;
  switch (x.dtype()) {
    case DType::kF32: amax = quantize<Code, float>(job); break;
    case DType::kBF16: amax = quantize<Code, BF16>(job); break;
    default: amax = quantize<Code, F16>(job); break;
  }
  if (job.wants_amax) *args.out[4].as<float>() = std::bit_cast<float>(amax);
}

BoundKernel bind_quantize(const Graph& graph, const Node& node) {
  const ScaleFormula formula(node);
  const int64_t scratch = (graph.shape(node.inputs[0]).rows() + graph.shape(node.inputs[0]).cols()) * 4;
  check(scratch <= workspace_bytes(), ErrorCode::kUnsupported, "quantize: {} rows and columns need {} bytes of {}",
        scratch / 4, scratch, workspace_bytes());
  if (node.results[0].dtype == DType::kE4M3) {
    return [formula](const KernelArgs& args) { run_quantize<E4M3>(formula, args); };
  }
  return [formula](const KernelArgs& args) { run_quantize<E5M2>(formula, args); };
}

void store_scale(const ScaleFormula& formula, uint32_t amax, const Tensor& scale_out, const Tensor& inverse_out) {
  const float scale = formula(amax);
  if (scale_out.data != nullptr) *scale_out.as<float>() = scale;
  if (inverse_out.data != nullptr) *inverse_out.as<float>() = 1.0f / scale;
}

bool accepts_f32(const Graph& graph, const Node& node) {
  return std::all_of(node.inputs.begin(), node.inputs.end(), [&](Value v) { return graph.dtype(v) == DType::kF32; });
}

BoundKernel bind_compute_scale(const Graph&, const Node& node) {
  return [formula = ScaleFormula(node)](const KernelArgs& args) {
    store_scale(formula, std::bit_cast<uint32_t>(*args.in[0].as<float>()), args.out[0], args.out[1]);
  };
}

BoundKernel bind_update_scales(const Graph&, const Node& node) {
  const bool newest_only = node.attrs.get<std::string>("algo") != "max";
  return [formula = ScaleFormula(node), newest_only](const KernelArgs& args) {
    const float* old = args.in[0].as<float>();
    const int64_t length = args.in[0].elements();
    const float newest = *args.in[1].as<float>();
    uint32_t amax = magnitude_bits(newest);
    for (int64_t i = 0; !newest_only && i + 1 < length; ++i) amax = std::max(amax, magnitude_bits(old[i]));
    if (float* history = args.out[0].as<float>(); history != nullptr) {
      std::memmove(history + 1, old, static_cast<size_t>(length - 1) * sizeof(float));  // may be the same memory
      history[0] = newest;
    }
    store_scale(formula, amax, args.out[1], args.out[2]);
  };
}

// bf16 of code * scale with one rounding: the float32 product is first made odd where it is inexact.
uint16_t product_to_bf16(float code, float scale) {
  const float product = code * scale, error = __builtin_fmaf(code, scale, -product);
  auto bits = std::bit_cast<uint32_t>(product);
  const bool inexact = error != 0, above = (std::bit_cast<uint32_t>(error) ^ bits) >> 31 != 0;
  bits -= inexact && above ? 1 : 0;
  return codec::encode_bf16(std::bit_cast<float>(bits | (inexact ? 1u : 0u)));
}

bool accepts_dequantize(const Graph& graph, const Node& node) {
  const DType to = node.results[0].dtype;
  return is_fp8(graph.dtype(node.inputs[0])) && graph.dtype(node.inputs[1]) == DType::kF32 &&
         (to == DType::kF32 || to == DType::kBF16);
}

BoundKernel bind_dequantize(const Graph&, const Node&) {
  return [](const KernelArgs& args) {
    MatrixView view{.data = args.in[0].data,
                    .dtype = args.in[0].dtype(),
                    .rows = args.in[0].shape().rows(),
                    .cols = args.in[0].shape().cols()};
    MatrixView scales = view;
    scales.set_scales(args.in[1].as<float>(), args.in[1].shape());
    const int64_t grain = std::max<int64_t>(1, (1 << 14) / std::max<int64_t>(1, view.cols));
    parallel_for(view.rows, grain, [&](int64_t begin, int64_t end) {
      float run[kTile];
      for (int64_t r = begin; r < end; ++r) {
        for (int64_t c = 0; c < view.cols; c += kTile) {  // one scale per run, whatever the scaling
          const int64_t count = std::min(kTile, view.cols - c);
          const float scale = scales.scale(r, c);
          load_run(view, r, c, count, run);
          if (args.out[0].dtype() == DType::kF32) {
            float* to = args.out[0].as<float>() + r * view.cols + c;
            for (int64_t i = 0; i < count; ++i) to[i] = run[i] * scale;
          } else {
            BF16* to = args.out[0].as<BF16>() + r * view.cols + c;
            for (int64_t i = 0; i < count; ++i) to[i].bits = product_to_bf16(run[i], scale);
          }
        }
      }
    });
  };
}

constexpr KernelRow kRows[] = {
    {Op::kQuantize, "quantize_tiles", accepts_quantize, bind_quantize},
    {Op::kComputeScale, "compute_scale", accepts_f32, bind_compute_scale},
    {Op::kUpdateScales, "update_scales", accepts_f32, bind_update_scales},
    {Op::kDequantize, "dequantize_runs", accepts_dequantize, bind_dequantize},
};

}  // namespace

std::optional<RowKernel> quantize_row_kernel(const Graph& graph, const Node& node) {
  const TensorType& x = graph.type(node.inputs[0]);
  const DType format = node.results[0].dtype;
  if (!is_f32_or_bf16(x.dtype) || !is_fp8(format)) return std::nullopt;
  const bool given = node.inputs.size() > 1 && node.inputs[1].exists();
  const Grouping grouping = grouping_of(node.results[0].shape, node.results[1].shape, given);
  if (grouping == Grouping::kRow) return std::nullopt;
  const Follow scales = grouping == Grouping::kRow128 ? Follow::kRows : Follow::kWhole;
  RowKernel kernel{x.shape.rows()};
  kernel.in.assign(node.inputs.size(), Follow::kWhole);
  kernel.in[0] = Follow::kRows;
  kernel.out = {Follow::kRows, scales, Follow::kWhole, Follow::kWhole, Follow::kAmax};
  const auto self = static_cast<size_t>(&node - graph.nodes().data());
  const std::vector<int32_t> uses = graph.count_uses()[self];
  if (grouping != Grouping::kTensor || uses[2] > 0) kernel.row_alignment = kTile;
  const auto choose = [&]<typename Code>(Code) {
    with_float_type(x.dtype, [&]<typename T>(T) {
      QuantizeJob<Code> job{.x = nullptr,
                            .rows = x.shape.rows(),
                            .cols = x.shape.cols(),
                            .grouping = grouping,
                            .scale = 1,
                            .codes = nullptr,
                            .codes_t = nullptr,
                            .scale_inv = nullptr,
                            .scale_inv_t = nullptr,
                            .formula = ScaleFormula(node),
                            .row_scales = nullptr,
                            .col_scales = nullptr,
                            .wants_amax = false};
      kernel.run = [job](const RowCall& call) { quantize_call<Code, T>(job, call); };
    });
  };
  format == DType::kE4M3 ? choose(E4M3{}) : choose(E5M2{});
  return kernel;
}

std::span<const KernelRow> precision_rows() { return kRows; }

}  // namespace octet::cpu
