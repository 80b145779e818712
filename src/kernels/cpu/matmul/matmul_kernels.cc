// Fast rows of matmul and scaled_matmul: gemv for few rows, else oneDNN if it supports the case, else our own GEMM.
//
// scaled_matmul always runs our own: it decodes FP8 codes while packing, without a decoded copy; int8 codes with scales
// per row or tensor are summed as integers. Scales that are constant along K are applied to the float32 sums; others
// while packing: in bf16 (AMX) if they are powers of two in range, checked at each run, else in float32.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/threads.h"
#include "kernels/common/dtype_sets.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/matmul/gemm.h"
#include "kernels/cpu/matmul/gemv.h"
#include "kernels/cpu/matmul/onednn_gemm.h"

namespace octet::cpu {
namespace {

struct Product {
  int64_t m = 0, n = 0, k = 0;
  bool trans_a = false, trans_b = false;
};

Product product_of(const Graph& graph, const Node& node, size_t a, size_t b) {
  const bool trans_a = node.attr<bool>("trans_a"), trans_b = node.attr<bool>("trans_b");
  const Shape &left = graph.shape(node.inputs[a]), &right = graph.shape(node.inputs[b]);
  return {.m = trans_a ? left.cols() : left.rows(),
          .n = trans_b ? right.rows() : right.cols(),
          .k = trans_a ? left.rows() : left.cols(),
          .trans_a = trans_a,
          .trans_b = trans_b};
}

enum class Addend : uint8_t { kNone, kFull, kRow, kOther };
Addend addend_of(const Graph& graph, const Node& node, size_t input, const Product& product) {
  if (node.inputs.size() <= input || !node.inputs[input].exists()) return Addend::kNone;
  const int64_t elements = graph.shape(node.inputs[input]).elements();
  if (!is_wide_float(graph.dtype(node.inputs[input]))) return Addend::kOther;
  if (elements == product.m * product.n && graph.shape(node.inputs[input]).rank() > 1) return Addend::kFull;
  return elements == product.n ? Addend::kRow : Addend::kOther;
}

MatrixView view_of(const Tensor& tensor, bool transposed) {
  return {.data = tensor.data,
          .dtype = tensor.dtype(),
          .rows = tensor.shape().rows(),
          .cols = tensor.shape().cols(),
          .transposed = transposed};
}

GemmOutput output_of(const KernelArgs& args, size_t addend_input, Addend addend) {
  GemmOutput out{.data = args.out[0].data, .dtype = args.out[0].dtype()};
  if (addend != Addend::kNone) {
    out.c = args.in[addend_input].data;
    out.c_dtype = args.in[addend_input].dtype();
    out.c_broadcast = addend == Addend::kRow;
  }
  return out;
}

// --- matmul

bool accepts_own(const Graph& graph, const Node& node) {
  const Product product = product_of(graph, node, 0, 1);
  return is_wide_float(graph.dtype(node.inputs[0])) && is_wide_float(graph.dtype(node.inputs[1])) &&
         is_wide_float(node.results[0].dtype) && addend_of(graph, node, 2, product) != Addend::kOther;
}

BoundKernel bind_own(const Graph& graph, const Node& node) {
  const Product product = product_of(graph, node, 0, 1);
  const Addend addend = addend_of(graph, node, 2, product);
  const bool bf16 = graph.dtype(node.inputs[0]) == DType::kBF16 && graph.dtype(node.inputs[1]) == DType::kBF16;
  const GemmEngine* engine = bf16 && amx_engine() != nullptr ? amx_engine() : &vector_engine();
  return [product, addend, engine](const KernelArgs& args) {
    gemm(*engine, view_of(args.in[0], product.trans_a), view_of(args.in[1], product.trans_b),
         output_of(args, 2, addend), args.workspace);
  };
}

bool is_few_rows(const Product& product) {
  return product.m <= kGemvRows && !product.trans_a && product.trans_b && product.k > 0 &&
         gemv_scratch_bytes(product.m, product.k) <= workspace_bytes();
}

bool accepts_gemv(const Graph& graph, const Node& node) {
  const Product product = product_of(graph, node, 0, 1);
  return is_few_rows(product) && gemv_takes(graph.dtype(node.inputs[0]), graph.dtype(node.inputs[1])) &&
         is_wide_float(node.results[0].dtype) && addend_of(graph, node, 2, product) != Addend::kOther;
}

BoundKernel bind_gemv(const Graph& graph, const Node& node) {
  const Addend addend = addend_of(graph, node, 2, product_of(graph, node, 0, 1));
  return [addend](const KernelArgs& args) {
    gemv(view_of(args.in[0], false), view_of(args.in[1], true), output_of(args, 2, addend), args.workspace);
  };
}

bool accepts_onednn(const Graph& graph, const Node& node) {
  if (*onednn_version() == '\0') return false;
  const DType a = graph.dtype(node.inputs[0]), b = graph.dtype(node.inputs[1]), out = node.results[0].dtype;
  if (a != b || (a != DType::kF32 && a != DType::kBF16)) return false;
  if (out != DType::kF32 && (out != DType::kBF16 || a != DType::kBF16)) return false;
  const Addend addend = addend_of(graph, node, 2, product_of(graph, node, 0, 1));
  if (addend == Addend::kFull) return graph.dtype(node.inputs[2]) == out;
  if (addend == Addend::kRow) return graph.dtype(node.inputs[2]) != DType::kF16;
  return addend == Addend::kNone;
}

void copy_bytes(void* to, const void* from, int64_t bytes) {
  parallel_for(bytes, 1 << 18, [&](int64_t begin, int64_t end) {
    std::memcpy(static_cast<std::byte*>(to) + begin, static_cast<const std::byte*>(from) + begin,
                static_cast<size_t>(end - begin));
  });
}

BoundKernel bind_onednn(const Graph& graph, const Node& node) {
  const Product product = product_of(graph, node, 0, 1);
  const Addend addend = addend_of(graph, node, 2, product);
  OnednnGemmSpec spec{.m = product.m,
                      .n = product.n,
                      .k = product.k,
                      .operands = graph.dtype(node.inputs[0]),
                      .out = node.results[0].dtype,
                      .trans_a = product.trans_a,
                      .trans_b = product.trans_b,
                      .accumulate = addend == Addend::kFull,
                      .bias = addend == Addend::kRow};
  if (spec.bias) spec.bias_dtype = graph.dtype(node.inputs[2]);
  std::shared_ptr<OnednnGemm> gemm = OnednnGemm::make(spec);
  if (gemm == nullptr) return bind_own(graph, node);
  return [gemm, addend](const KernelArgs& args) {
    const void* c = addend == Addend::kNone ? nullptr : args.in[2].data;
    if (addend == Addend::kFull && c != args.out[0].data) copy_bytes(args.out[0].data, c, args.out[0].type->bytes());
    gemm->run(args.in[0].data, args.in[1].data, addend == Addend::kRow ? c : nullptr, args.out[0].data, args.workspace);
  };
}

// --- scaled_matmul

bool accepts_scaled(const Graph& graph, const Node& node) {
  const Product product = product_of(graph, node, 0, 2);
  return is_code(graph.dtype(node.inputs[0])) && is_code(graph.dtype(node.inputs[2])) &&
         graph.dtype(node.inputs[1]) == DType::kF32 && graph.dtype(node.inputs[3]) == DType::kF32 &&
         is_wide_float(node.results[0].dtype) && addend_of(graph, node, 4, product) != Addend::kOther;
}

// Stage at which the scales of one operand are applied.
enum class ScalePlace : uint8_t { kFactor, kOuter, kPacking };
ScalePlace scale_place(const MatrixView& codes, bool contraction_is_cols, const Shape& scale) {
  if (scale.elements() == 1) return ScalePlace::kFactor;
  const ScaleIndex at(codes.rows, codes.cols, scale);
  const bool one_per_row = at.row_divisor == 1 && at.col_divisor >= codes.cols;
  return one_per_row && contraction_is_cols ? ScalePlace::kOuter : ScalePlace::kPacking;
}

// Whether code times scale is exact in bf16 for all codes of both formats.
bool exact_in_bf16(const float* scales, int64_t count) {
  bool exact = true;
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<uint32_t>(scales[i]);
    exact = exact && (bits & 0x807fffffu) == 0 && scales[i] >= 0x1p-100f && scales[i] <= 0x1p100f;
  }
  return exact;
}

// Int8 codes whose scales are applied to the sums.
bool accepts_int8(const Graph& graph, const Node& node) {
  const Product product = product_of(graph, node, 0, 2);
  const auto outside = [&](size_t input, bool contraction_is_cols) {
    const Shape& codes = graph.shape(node.inputs[input]);
    return graph.dtype(node.inputs[input]) == DType::kI8 &&
           scale_place({.rows = codes.rows(), .cols = codes.cols()}, contraction_is_cols,
                       graph.shape(node.inputs[input + 1])) != ScalePlace::kPacking;
  };
  return accepts_scaled(graph, node) && product.k < kMaxIntegerDepth && outside(0, !product.trans_a) &&
         outside(2, product.trans_b);
}

BoundKernel bind_int8(const Graph& graph, const Node& node) {
  const Product product = product_of(graph, node, 0, 2);
  const Addend addend = addend_of(graph, node, 4, product);
  return [product, addend, few = is_few_rows(product)](const KernelArgs& args) {
    const MatrixView a = view_of(args.in[0], product.trans_a), b = view_of(args.in[2], product.trans_b);
    GemmOutput out = output_of(args, 4, addend);
    for (size_t side : {1, 3}) {
      const Tensor& scales = args.in[side];
      if (scales.elements() == 1) {
        out.factor *= *scales.as<float>();
      } else {
        (side == 1 ? out.row_scale : out.col_scale) = scales.as<float>();
      }
    }
    few ? gemv(a, b, out, args.workspace) : gemm(int8_engine(), a, b, out, args.workspace);
  };
}

BoundKernel bind_scaled(const Graph& graph, const Node& node) {
  const Product product = product_of(graph, node, 0, 2);
  const Addend addend = addend_of(graph, node, 4, product);
  const bool fp8 = is_fp8(graph.dtype(node.inputs[0])) && is_fp8(graph.dtype(node.inputs[2]));
  return [product, addend, fp8](const KernelArgs& args) {
    MatrixView operands[2] = {view_of(args.in[0], product.trans_a), view_of(args.in[2], product.trans_b)};
    GemmOutput out = output_of(args, 4, addend);
    const GemmEngine* engine = fp8 ? amx_engine() : nullptr;
    for (int side = 0; side < 2; ++side) {
      const Tensor& scales = args.in[side == 0 ? 1 : 3];
      const bool contraction_is_cols = side == 0 ? !product.trans_a : product.trans_b;
      switch (scale_place(operands[side], contraction_is_cols, scales.shape())) {
        case ScalePlace::kFactor: out.factor *= *scales.as<float>(); break;
        case ScalePlace::kOuter: (side == 0 ? out.row_scale : out.col_scale) = scales.as<float>(); break;
        case ScalePlace::kPacking:
          operands[side].set_scales(scales.as<float>(), scales.shape());
          if (!exact_in_bf16(scales.as<float>(), scales.elements())) engine = nullptr;
      }
    }
    gemm(engine != nullptr ? *engine : vector_engine(), operands[0], operands[1], out, args.workspace);
  };
}

constexpr KernelEntry kKernels[] = {
    {Op::kMatmul, "matmul_gemv", accepts_gemv, bind_gemv},
    {Op::kMatmul, "matmul_onednn", accepts_onednn, bind_onednn},
    {Op::kMatmul, "matmul_blocked", accepts_own, bind_own},
    {Op::kScaledMatmul, "scaled_matmul_int8", accepts_int8, bind_int8},
    {Op::kScaledMatmul, "scaled_matmul_blocked", accepts_scaled, bind_scaled},
};

}  // namespace

std::span<const KernelEntry> matmul_kernels() { return kKernels; }

}  // namespace octet::cpu
