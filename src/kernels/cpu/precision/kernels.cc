// The fast entries of quantize, dequantize and scales. quantize: rows, each read once or twice from cache, if no result
// needs tiles; else tiles of 128 x 128, quantized to row codes, codes of the transpose, scales and amax; the same
// inside fusions, some rows at a time. The arithmetic is the reference's bit for bit: float32 scale, float32 product,
// one rounding to the code.
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/integers.h"
#include "ir/nf4.h"
#include "ir/scale_layout.h"
#include "kernels/cpu/matmul/matrix_view.h"
#include "kernels/cpu/precision/scale_formula.h"
#include "kernels/cpu/row_kernels.h"

namespace octet::cpu {
namespace {

template <typename Code, typename T>
void encode_run(const T* __restrict x, int64_t count, float scale, Code* __restrict codes) {
  for (int64_t i = 0; i < count; ++i) codes[i] = codec::encode<Code>(codec::decode(x[i]) * scale);
}
template <typename Code, typename T>
void encode_run(const T* __restrict x, int64_t count, const float* __restrict scales, Code* __restrict codes) {
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

// to [cols, to_stride] = the transpose of tile [rows, kScaleBlock].
void transpose_tile(const uint8_t* tile, int64_t rows, int64_t cols, uint8_t* to, int64_t to_stride) {
  int64_t r = 0;
  for (; r + 16 <= rows; r += 16) {
    int64_t c = 0;
    for (; c + 16 <= cols; c += 16)
      transpose_16x16(tile + r * kScaleBlock + c, kScaleBlock, to + c * to_stride + r, to_stride);
    for (; c < cols; ++c) {
      for (int64_t i = r; i < r + 16; ++i) to[c * to_stride + i] = tile[i * kScaleBlock + c];
    }
  }
  for (; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) to[c * to_stride + r] = tile[r * kScaleBlock + c];
  }
}

// Results that may be absent are null.
template <typename Code>
struct QuantizeJob {
  int64_t rows, cols;  // of the whole tensor, as the results are
  ScaleLayout layout;
  ScaleFormula formula;
  float scale = 1;  // kTensor
  Code *codes = nullptr, *codes_t = nullptr;
  float *scale_inv = nullptr, *scale_inv_t = nullptr;  // not of kTensor
  bool wants_amax = false;
  float *row_scales = nullptr, *col_scales = nullptr;  // kRow in tiles, computed before: [rows], [cols]

  bool needs_tiles() const {
    return codes_t != nullptr || layout == ScaleLayout::kRow128 || layout == ScaleLayout::kTile128 ||
           (layout == ScaleLayout::kRow && scale_inv_t != nullptr);
  }
};

template <typename Code>
QuantizeJob<Code> job_of(const Graph& graph, const Node& node) {
  const Shape& x = graph.shape(node.inputs[0]);
  return {.rows = x.rows(),
          .cols = x.cols(),
          .layout = parse_scale_layout(node.attr<std::string>("scaling")),
          .formula = ScaleFormula(node)};
}

// The job with the operands of a call. Pointers to rows are at the call's first row, those of a job at the tensor's.
template <typename Code>
QuantizeJob<Code> with_operands(QuantizeJob<Code> job, const RowCall& call) {
  job.codes = static_cast<Code*>(call.out[0]);
  job.scale_inv = static_cast<float*>(call.out[1]);
  job.codes_t = static_cast<Code*>(call.out[2]);
  job.scale_inv_t = static_cast<float*>(call.out[3]);
  job.wants_amax = call.out[4] != nullptr;
  if (job.codes != nullptr) job.codes -= call.first_row * job.cols;
  if (job.scale_inv != nullptr && job.layout == ScaleLayout::kRow) job.scale_inv -= call.first_row;
  if (job.layout == ScaleLayout::kTensor) {
    job.scale = *static_cast<const float*>(call.in[1]);
    for (float* inverse : {job.scale_inv, job.scale_inv_t}) {
      if (inverse != nullptr && call.first_row == 0) *inverse = 1.0f / job.scale;
    }
  }
  return job;
}

// Rows [r0, r0 + rows), their elements at x, of kRow or kTensor. Returns the amax bits if requested or computed anyway.
template <typename Code, typename T>
uint32_t quantize_rows(const QuantizeJob<Code>& job, const T* x, int64_t r0, int64_t rows) {
  uint32_t all = 0;
  for (int64_t r = r0; r < r0 + rows; ++r, x += job.cols) {
    const bool per_row = job.layout == ScaleLayout::kRow;
    const uint32_t amax = per_row || job.wants_amax ? amax_run(x, job.cols) : 0;
    const float scale = per_row ? job.formula(amax) : job.scale;
    if (per_row && job.scale_inv != nullptr) job.scale_inv[r] = 1.0f / scale;
    if (job.codes != nullptr) encode_run(x, job.cols, scale, job.codes + r * job.cols);
    all = std::max(all, amax);
  }
  return all;
}

// Scales of whole rows and columns, before any tile.
template <typename Code, typename T>
void scale_rows_and_columns(const QuantizeJob<Code>& job, const T* x) {
  parallel_for(job.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      job.row_scales[r] = job.formula(amax_run(x + r * job.cols, job.cols));
      if (job.scale_inv != nullptr) job.scale_inv[r] = 1.0f / job.row_scales[r];
    }
  });
  parallel_for(job.cols, kScaleBlock, [&](int64_t begin, int64_t end) {
    for (int64_t c0 = begin; c0 < end; c0 += kScaleBlock) {
      const int64_t cols = std::min(kScaleBlock, end - c0);
      uint32_t amax[kScaleBlock] = {};
      for (int64_t r = 0; r < job.rows; ++r) amax_columns(x + r * job.cols + c0, cols, amax);
      for (int64_t c = 0; c < cols; ++c) {
        job.col_scales[c0 + c] = job.formula(amax[c]);
        if (job.scale_inv_t != nullptr) job.scale_inv_t[c0 + c] = 1.0f / job.col_scales[c0 + c];
      }
    }
  });
}

// One tile at (r0, c0), its elements at x. Returns its amax bits if requested or computed anyway.
template <typename Code, typename T>
uint32_t quantize_tile(const QuantizeJob<Code>& job, const T* x, int64_t r0, int64_t c0) {
  const int64_t rows = std::min(kScaleBlock, job.rows - r0), cols = std::min(kScaleBlock, job.cols - c0);
  const bool per_row = job.layout == ScaleLayout::kRow || job.layout == ScaleLayout::kRow128;
  alignas(64) Code tile[kScaleBlock * kScaleBlock];
  alignas(64) float row_scale[kScaleBlock], col_scale[kScaleBlock];
  uint32_t amax = 0;
  if (job.layout == ScaleLayout::kRow128) {
    alignas(64) uint32_t col_amax[kScaleBlock] = {};
    for (int64_t r = 0; r < rows; ++r) {
      const uint32_t row_amax = amax_run(x + r * job.cols, cols);
      if (job.codes_t != nullptr || job.scale_inv_t != nullptr) amax_columns(x + r * job.cols, cols, col_amax);
      amax = std::max(amax, row_amax);
      row_scale[r] = job.formula(row_amax);
      if (job.scale_inv != nullptr) job.scale_inv[c0 / kScaleBlock * job.rows + r0 + r] = 1.0f / row_scale[r];
    }
    for (int64_t c = 0; c < cols; ++c) {
      col_scale[c] = job.formula(col_amax[c]);
      if (job.scale_inv_t != nullptr) job.scale_inv_t[r0 / kScaleBlock * job.cols + c0 + c] = 1.0f / col_scale[c];
    }
  } else if (job.layout == ScaleLayout::kTile128 || job.wants_amax) {
    for (int64_t r = 0; r < rows; ++r) amax = std::max(amax, amax_run(x + r * job.cols, cols));
  }
  if (job.layout == ScaleLayout::kRow) {
    std::copy_n(job.row_scales + r0, rows, row_scale);
    std::copy_n(job.col_scales + c0, cols, col_scale);
  }
  float scale = job.scale;
  if (job.layout == ScaleLayout::kTile128) {
    scale = job.formula(amax);
    const int64_t row_tile = r0 / kScaleBlock, col_tile = c0 / kScaleBlock;
    const int64_t row_tiles = (job.rows + kScaleBlock - 1) / kScaleBlock,
                  col_tiles = (job.cols + kScaleBlock - 1) / kScaleBlock;
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
      Code* to = tile + r * kScaleBlock;
      if (per_row) {
        encode_run(x + r * job.cols, cols, col_scale, to);
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

// The whole tensor on all threads.
template <typename Code, typename T>
uint32_t quantize(const QuantizeJob<Code>& job, const T* x) {
  if (!job.needs_tiles()) {
    return parallel_max(job.rows, std::max<int64_t>(1, (1 << 14) / job.cols), [&](int64_t begin, int64_t end) {
      return quantize_rows(job, x + begin * job.cols, begin, end - begin);
    });
  }
  if (job.layout == ScaleLayout::kRow) scale_rows_and_columns(job, x);
  const int64_t down = (job.rows + kScaleBlock - 1) / kScaleBlock, across = (job.cols + kScaleBlock - 1) / kScaleBlock;
  return parallel_max(down * across, 1, [&](int64_t begin, int64_t end) {
    uint32_t amax = 0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t r0 = i / across * kScaleBlock, c0 = i % across * kScaleBlock;
      amax = std::max(amax, quantize_tile(job, x + r0 * job.cols + c0, r0, c0));
    }
    return amax;
  });
}

// The rows of one call inside a fusion (row_program.h), in the tiles of the whole tensor.
template <typename Code, typename T>
void quantize_call(const QuantizeJob<Code>& node_job, const RowCall& call) {
  const QuantizeJob<Code> job = with_operands(node_job, call);
  const T* x = static_cast<const T*>(call.in[0]);
  uint32_t amax = job.needs_tiles() ? 0 : quantize_rows(job, x, call.first_row, call.rows);
  for (int64_t r = 0; job.needs_tiles() && r < call.rows; r += kScaleBlock) {
    for (int64_t c = 0; c < job.cols; c += kScaleBlock) {
      amax = std::max(amax, quantize_tile(job, x + r * job.cols + c, call.first_row + r, c));
    }
  }
  if (float* largest = static_cast<float*>(call.out[4]); largest != nullptr) {
    *largest = std::bit_cast<float>(std::max(std::bit_cast<uint32_t>(*largest), amax));
  }
}

// Calls visit(Code{}) with the storage type of a code format.
template <typename Visit>
auto with_code_type(DType format, const Visit& visit) {
  return format == DType::kE4M3 ? visit(E4M3{}) : format == DType::kE5M2 ? visit(E5M2{}) : visit(I8{});
}

BoundKernel bind_quantize(const Graph& graph, const Node& node) {
  const TensorType& x = graph.type(node.inputs[0]);
  const DType format = node.results[0].dtype;
  const int64_t group = scale_group(parse_scale_layout(node.attr<std::string>("scaling")));
  if (!is_wide_float(x.dtype) || !is_code(format) || format == DType::kI4 || group % kScaleBlock != 0) return nullptr;
  const int64_t scratch = (x.shape.rows() + x.shape.cols()) * 4;
  check(scratch <= kLeastWorkspace, ErrorCode::kUnsupported, "quantize: {} rows and columns need {} bytes of {}",
        scratch / 4, scratch, kLeastWorkspace);
  return with_code_type(format, [&]<typename Code>(Code) {
    return with_wide_type(x.dtype, [&]<typename T>(T) -> BoundKernel {
      return [node_job = job_of<Code>(graph, node)](const KernelArgs& args) {
        const void* in[2] = {args.in[0].data, args.in.size() > 1 ? args.in[1].data : nullptr};
        void* out[5];
        for (size_t i = 0; i < 5; ++i) out[i] = args.out[i].data;
        QuantizeJob<Code> job = with_operands(node_job, {in, out, 0, node_job.rows, nullptr});
        job.row_scales = reinterpret_cast<float*>(args.workspace.data());
        job.col_scales = job.row_scales + job.rows;
        const uint32_t amax = quantize(job, args.in[0].as<const T>());
        if (job.wants_amax) *args.out[4].as<float>() = std::bit_cast<float>(amax);
      };
    });
  });
}

// --- scales: a few values each; dequantize: in runs with one scale

void store_scale(const ScaleFormula& formula, uint32_t amax, const Tensor& scale_out, const Tensor& inverse_out) {
  const float scale = formula(amax);
  if (scale_out.data != nullptr) *scale_out.as<float>() = scale;
  if (inverse_out.data != nullptr) *inverse_out.as<float>() = 1.0f / scale;
}

BoundKernel bind_compute_scale(const Graph&, const Node& node) {
  return [formula = ScaleFormula(node)](const KernelArgs& args) {
    store_scale(formula, std::bit_cast<uint32_t>(*args.in[0].as<float>()), args.out[0], args.out[1]);
  };
}

BoundKernel bind_update_scales(const Graph&, const Node& node) {
  const bool newest_only = node.attr<std::string>("algo") != "max";
  const bool may_skip = node.inputs.size() > 2;
  return [formula = ScaleFormula(node), newest_only, may_skip](const KernelArgs& args) {
    const float* old = args.in[0].as<float>();
    const int64_t length = args.in[0].elements();
    const float newest = *args.in[1].as<float>();
    const bool skipped = may_skip && *args.in[2].as<float>() == 0;
    const bool counts = std::isfinite(newest) && newest != 0 && !skipped;
    const int64_t shift = counts ? 1 : 0, seen = newest_only ? 1 - shift : length - shift;
    uint32_t amax = counts ? magnitude_bits(newest) : 0;
    for (int64_t i = 0; i < seen; ++i) amax = std::max(amax, magnitude_bits(old[i]));
    if (float* history = args.out[0].as<float>(); history != nullptr) {
      std::memmove(history + shift, old, static_cast<size_t>(length - shift) * sizeof(float));  // may alias
      if (counts) history[0] = newest;
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

BoundKernel bind_dequantize(const Graph& graph, const Node& node) {
  const bool narrow = scale_group(parse_scale_layout(node.attr<std::string>("scaling"))) % kScaleBlock != 0;
  const bool integers = graph.dtype(node.inputs[0]) == DType::kI4 || node.operand("zero").exists();
  if (!is_f32_or_bf16(node.results[0].dtype) || narrow || integers) return nullptr;
  return [](const KernelArgs& args) {
    MatrixView view{.data = args.in[0].data,
                    .dtype = args.in[0].dtype(),
                    .rows = args.in[0].shape().rows(),
                    .cols = args.in[0].shape().cols()};
    MatrixView scales = view;
    scales.set_scales(args.in[1].as<float>(), args.in[1].shape());
    const int64_t grain = std::max<int64_t>(1, (1 << 14) / std::max<int64_t>(1, view.cols));
    parallel_for(view.rows, grain, [&](int64_t begin, int64_t end) {
      float run[kScaleBlock];
      for (int64_t r = begin; r < end; ++r) {
        for (int64_t c = 0; c < view.cols; c += kScaleBlock) {  // one scale per run with every scaling
          const int64_t count = std::min(kScaleBlock, view.cols - c);
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

// The 16 values of a block are made once, in the result's type.
template <typename T>
BoundKernel dequantize_nf4(int64_t group) {
  return [group](const KernelArgs& args) {
    const auto* codes = args.in[0].as<uint8_t>();
    const auto* magnitudes = args.in[1].as<int8_t>();
    const float *scales = args.in[2].as<float>(), *offsets = args.in[3].as<float>();
    T* out = args.out[0].as<T>();
    const std::array<float, 256>& table = nf4_magnitude_values();
    const int64_t count = args.in[0].elements(), row_blocks = args.in[1].shape().cols();
    parallel_for(ceil_div(count, kNf4Block), 256, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const float scaled = table[static_cast<size_t>(magnitudes[block] + 128)] * scales[block / group];
        const float magnitude = scaled + offsets[block / row_blocks];
        T values[16];
        for (size_t i = 0; i < 16; ++i)
          values[i ^ 8] = codec::encode<T>(kNf4Values[i] * magnitude);  // codes are the index less 8
        const int64_t last = std::min(count, (block + 1) * kNf4Block);
        for (int64_t i = block * kNf4Block; i < last; i += 2) {
          const uint8_t two = codes[i / 2];
          out[i] = values[two & 15];
          out[i + 1] = values[two >> 4];
        }
      }
    });
  };
}

BoundKernel bind_dequantize_nf4(const Graph&, const Node& node) {
  const int64_t group = node.attr<int64_t>("group");
  BoundKernel kernel;
  if (is_f32_or_bf16(node.results[0].dtype))
    with_float_type(node.results[0].dtype, [&]<typename T>(T) { kernel = dequantize_nf4<T>(group); });
  return kernel;
}

}  // namespace

std::optional<RowKernel> quantize_row_kernel(const Graph& graph, const Node& node, RowUse use) {
  const TensorType& x = graph.type(node.inputs[0]);
  const DType format = node.results[0].dtype;
  if (use == RowUse::kAlone || !is_f32_or_bf16(x.dtype) || !is_code(format)) return std::nullopt;
  const ScaleLayout layout = parse_scale_layout(node.attr<std::string>("scaling"));
  const bool per_row = layout == ScaleLayout::kRow;
  const auto self = static_cast<size_t>(&node - graph.nodes().data());
  const std::vector<int32_t> uses = graph.count_uses()[self];
  if (per_row && (uses[2] > 0 || uses[3] > 0)) return std::nullopt;  // column scales need the whole tensor
  const OperandMapping scales = per_row ? OperandMapping::kRows : OperandMapping::kWhole;
  RowKernel kernel{x.shape.rows()};
  kernel.in.assign(node.inputs.size(), OperandMapping::kWhole);
  kernel.in[0] = OperandMapping::kRows;
  kernel.out = {OperandMapping::kRows, scales, OperandMapping::kWhole, OperandMapping::kWhole, OperandMapping::kAmax};
  if (!per_row && (layout != ScaleLayout::kTensor || uses[2] > 0)) kernel.row_alignment = kScaleBlock;
  with_code_type(format, [&]<typename Code>(Code) {
    with_float_type(x.dtype, [&]<typename T>(T) {
      kernel.run = [job = job_of<Code>(graph, node)](const RowCall& call) { quantize_call<Code, T>(job, call); };
    });
  });
  return kernel;
}

std::vector<KernelEntry> precision_kernels() {
  return {{Op::kQuantize, "quantize_tiles", bind_quantize},
          {Op::kComputeScale, "compute_scale", bind_compute_scale},
          {Op::kUpdateScales, "update_scales", bind_update_scales},
          {Op::kDequantize, "dequantize_runs", bind_dequantize},
          {Op::kDequantizeNf4, "dequantize_nf4_blocks", bind_dequantize_nf4}};
}

}  // namespace octet::cpu
