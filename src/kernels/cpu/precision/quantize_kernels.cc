// Fast rows of quantize: a tensor in tiles of 128 x 128 (quantize_tile.h), or as one stream if no result needs tiles;
// the same tiles inside fusions, some rows at a time.
#include <atomic>

#include "base/error.h"
#include "base/threads.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/precision/quantize_tile.h"
#include "kernels/cpu/row_kernels.h"

namespace octet::cpu {
namespace {

void raise(std::atomic<uint32_t>& to, uint32_t value) {
  uint32_t seen = to.load(std::memory_order_relaxed);
  while (seen < value && !to.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
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

// Quantizes rows of x with a scale each: codes and scale_inv are null if unused. Returns the amax.
template <typename Code, typename T>
uint32_t quantize_rows(const QuantizeJob<Code>& job, const T* x, int64_t rows, Code* codes, float* scale_inv) {
  uint32_t all = 0;
  for (int64_t r = 0; r < rows; ++r, x += job.cols) {
    const uint32_t amax = amax_run(x, job.cols);
    const float scale = job.formula(amax);
    if (scale_inv != nullptr) scale_inv[r] = 1.0f / scale;
    if (codes != nullptr) encode_run(x, job.cols, scale, codes + r * job.cols);
    all = std::max(all, amax);
  }
  return all;
}

template <typename Code, typename T>
uint32_t quantize(const QuantizeJob<Code>& job) {
  std::atomic<uint32_t> amax{0};
  const T* x = static_cast<const T*>(job.x);
  if (job.layout == ScaleLayout::kRow && job.codes_t == nullptr && job.scale_inv_t == nullptr) {
    parallel_for(job.rows, std::max<int64_t>(1, (1 << 14) / job.cols), [&](int64_t begin, int64_t end) {
      raise(amax, quantize_rows(job, x + begin * job.cols, end - begin,
                                job.codes == nullptr ? nullptr : job.codes + begin * job.cols,
                                job.scale_inv == nullptr ? nullptr : job.scale_inv + begin));
    });
    return amax;
  }
  if (job.layout == ScaleLayout::kTensor && job.codes_t == nullptr) {  // no tiles needed: one stream
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
  if (job.layout == ScaleLayout::kRow) {
    scale_rows_and_columns<Code, T>(job);
    if (job.wants_amax) amax = amax_run(x, job.rows * job.cols);
  }
  const int64_t col_tiles = (job.cols + kScaleBlock - 1) / kScaleBlock,
                row_tiles = (job.rows + kScaleBlock - 1) / kScaleBlock;
  parallel_for(row_tiles * col_tiles, 1, [&](int64_t begin, int64_t end) {
    uint32_t seen = 0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t r0 = i / col_tiles * kScaleBlock, c0 = i % col_tiles * kScaleBlock;
      seen = std::max(seen, quantize_tile<Code, T>(job, x + r0 * job.cols + c0, r0, c0));
    }
    raise(amax, seen);
  });
  return amax;
}

// The rows of one call inside a fusion, each with its own scale, in row codes only.
template <typename Code, typename T>
void quantize_rows_call(const QuantizeJob<Code>& job, const RowCall& call) {
  const uint32_t amax = quantize_rows(job, static_cast<const T*>(call.in[0]), call.rows,
                                      static_cast<Code*>(call.out[0]), static_cast<float*>(call.out[1]));
  if (float* largest = static_cast<float*>(call.out[4]); largest != nullptr) {
    *largest = std::bit_cast<float>(std::max(std::bit_cast<uint32_t>(*largest), amax));
  }
}

// The rows of one call inside a fusion (row_program.h), in the tiles of the whole tensor.
template <typename Code, typename T>
void quantize_call(QuantizeJob<Code> job, const RowCall& call) {
  const T* x = static_cast<const T*>(call.in[0]);
  // Code pointers are at the call's first row; tiles are counted from the tensor's.
  job.codes = static_cast<Code*>(call.out[0]);
  if (job.codes != nullptr) job.codes -= call.first_row * job.cols;
  job.scale_inv = static_cast<float*>(call.out[1]);
  job.codes_t = static_cast<Code*>(call.out[2]);
  job.scale_inv_t = static_cast<float*>(call.out[3]);
  job.row_scales = job.col_scales = nullptr;  // of kRow, see above
  job.wants_amax = call.out[4] != nullptr;
  uint32_t amax = 0;
  if (job.layout == ScaleLayout::kTensor) {
    job.scale = *static_cast<const float*>(call.in[1]);
    for (float* inverse : {job.scale_inv, job.scale_inv_t}) {
      if (inverse != nullptr && call.first_row == 0) *inverse = 1.0f / job.scale;
    }
  }
  if (job.layout == ScaleLayout::kTensor && job.codes_t == nullptr) {
    if (job.wants_amax) amax = amax_run(x, call.rows * job.cols);
    if (job.codes != nullptr) encode_run(x, call.rows * job.cols, job.scale, static_cast<Code*>(call.out[0]));
  } else {
    for (int64_t r = 0; r < call.rows; r += kScaleBlock) {
      for (int64_t c = 0; c < job.cols; c += kScaleBlock) {
        amax = std::max(amax, quantize_tile<Code, T>(job, x + r * job.cols + c, call.first_row + r, c));
      }
    }
  }
  if (float* largest = static_cast<float*>(call.out[4]); largest != nullptr) {
    *largest = std::bit_cast<float>(std::max(std::bit_cast<uint32_t>(*largest), amax));
  }
}

// Calls visit(Code{}) with the storage type of a code format.
template <typename Visit>
void with_code_type(DType format, const Visit& visit) {
  switch (format) {
    case DType::kE4M3: return visit(E4M3{});
    case DType::kE5M2: return visit(E5M2{});
    case DType::kI8: return visit(I8{});
    default: fail(ErrorCode::kInternal, "quantize: no codes of type {}", dtype_name(format));
  }
}

bool accepts_quantize(const Graph& graph, const Node& node) {
  return is_wide_float(graph.dtype(node.inputs[0])) && is_code(node.results[0].dtype);
}

template <typename Code>
void run_quantize(const ScaleFormula& formula, const KernelArgs& args) {
  const Tensor& x = args.in[0];
  const bool given = args.in.size() > 1 && args.in[1].data != nullptr;
  QuantizeJob<Code> job{.x = x.data,
                        .rows = x.shape().rows(),
                        .cols = x.shape().cols(),
                        .layout = layout_of(args.out[0].shape(), args.out[1].shape(), given),
                        .scale = given ? *args.in[1].as<float>() : 1.0f,
                        .codes = args.out[0].as<Code>(),
                        .codes_t = args.out[2].as<Code>(),
                        .scale_inv = args.out[1].as<float>(),
                        .scale_inv_t = args.out[3].as<float>(),
                        .formula = formula,
                        .row_scales = reinterpret_cast<float*>(args.workspace.data()),
                        .col_scales = reinterpret_cast<float*>(args.workspace.data()) + x.shape().rows(),
                        .wants_amax = args.out[4].data != nullptr};
  if (job.layout == ScaleLayout::kTensor) {
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
  BoundKernel kernel;
  with_code_type(node.results[0].dtype, [&]<typename Code>(Code) {
    kernel = [formula](const KernelArgs& args) { run_quantize<Code>(formula, args); };
  });
  return kernel;
}

constexpr KernelEntry kKernels[] = {{Op::kQuantize, "quantize_tiles", accepts_quantize, bind_quantize}};

}  // namespace

std::optional<RowKernel> quantize_row_kernel(const Graph& graph, const Node& node) {
  const TensorType& x = graph.type(node.inputs[0]);
  const DType format = node.results[0].dtype;
  if (!is_f32_or_bf16(x.dtype) || !is_code(format)) return std::nullopt;
  const bool given = node.operand("scale").exists();
  const ScaleLayout layout = layout_of(node.results[0].shape, node.results[1].shape, given);
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
      QuantizeJob<Code> job{.x = nullptr,
                            .rows = x.shape.rows(),
                            .cols = x.shape.cols(),
                            .layout = layout,
                            .scale = 1,
                            .codes = nullptr,
                            .codes_t = nullptr,
                            .scale_inv = nullptr,
                            .scale_inv_t = nullptr,
                            .formula = ScaleFormula(node),
                            .row_scales = nullptr,
                            .col_scales = nullptr,
                            .wants_amax = false};
      kernel.run = [job, per_row](const RowCall& call) {
        per_row ? quantize_rows_call<Code, T>(job, call) : quantize_call<Code, T>(job, call);
      };
    });
  });
  return kernel;
}

std::span<const KernelEntry> quantize_kernels() { return kKernels; }

}  // namespace octet::cpu
