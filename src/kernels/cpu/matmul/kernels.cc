// Fast entries of matmul and scaled_matmul: gemv for few rows, else oneDNN if it supports the case, else our own GEMM.
//
// scaled_matmul always runs our own: it decodes FP8 codes while packing, without a decoded copy; int8 codes with scales
// per row or tensor are summed as integers. Scales that are constant along K are applied to the float32 sums; others
// while packing: in bf16 (AMX) if they are powers of two in range, checked at each run, else in float32.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/threads.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/matmul/gemm.h"
#include "kernels/cpu/matmul/group_gemm.h"
#include "kernels/cpu/matmul/onednn_gemm.h"

namespace octet::cpu {
namespace {

enum class Addend : uint8_t { kNone, kFull, kRow };

// What a node computes, and which of its operands are b and c.
struct Product {
  int64_t m, n, k;
  bool trans_a, trans_b;
  size_t b, c;
  Addend addend;
  DType a_dtype, b_dtype, c_dtype;

  Product(const Graph& graph, const Node& node)
      : trans_a(node.attr<bool>("trans_a")),
        trans_b(node.attr<bool>("trans_b")),
        b(node.op == Op::kScaledMatmul ? 2 : 1),
        c(2 * b) {
    const TensorType &left = graph.type(node.inputs[0]), &right = graph.type(node.inputs[b]);
    m = trans_a ? left.shape.cols() : left.shape.rows();
    n = trans_b ? right.shape.rows() : right.shape.cols();
    k = trans_a ? left.shape.rows() : left.shape.cols();
    const Value added = node.operand("c");
    addend = !added.exists() ? Addend::kNone : graph.shape(added).rank() > 1 ? Addend::kFull : Addend::kRow;
    a_dtype = left.dtype, b_dtype = right.dtype, c_dtype = added.exists() ? graph.dtype(added) : DType::kF32;
  }
  // Whether our own GEMMs write this result and read this addend.
  bool has_wide_result(const Node& node) const {
    return is_wide_float(node.results[0].dtype) && is_wide_float(c_dtype);
  }
  bool is_few_rows() const {
    return m <= kGemvRows && k > 0 && !trans_a && trans_b && gemv_scratch_bytes(m, k) <= kLeastWorkspace;
  }
  MatrixView left(const KernelArgs& args) const { return view(args.in[0], trans_a); }
  MatrixView right(const KernelArgs& args) const { return view(args.in[b], trans_b); }
  GemmOutput output(const KernelArgs& args) const {
    GemmOutput out{.data = args.out[0].data, .dtype = args.out[0].dtype()};
    if (addend == Addend::kNone) return out;
    out.c = args.in[c].data, out.c_dtype = c_dtype, out.c_broadcast = addend == Addend::kRow;
    return out;
  }

 private:
  static MatrixView view(const Tensor& tensor, bool transposed) {
    return {.data = tensor.data,
            .dtype = tensor.dtype(),
            .rows = tensor.shape().rows(),
            .cols = tensor.shape().cols(),
            .transposed = transposed};
  }
};

// --- matmul

BoundKernel bind_gemv(const Graph& graph, const Node& node) {
  const Product product(graph, node);
  if (!product.is_few_rows() || !gemv_takes(product.a_dtype, product.b_dtype) || !product.has_wide_result(node)) {
    return nullptr;
  }
  return [product](const KernelArgs& args) {
    gemv(product.left(args), product.right(args), product.output(args), args.workspace);
  };
}

// Text does not depend on the rows of a step in fp32 (docs/serving.md): no engine there that depends on them.
const GemmEngine& float_engine_in(const Graph& graph, int64_t rows) {
  const bool generates =
      std::ranges::any_of(graph.nodes(), [](const Node& node) { return node.op == Op::kPagedAttention; });
  return generates ? vector_engine() : float_engine(rows);
}

BoundKernel bind_own(const Graph& graph, const Node& node) {
  const Product product(graph, node);
  if (!is_wide_float(product.a_dtype) || !is_wide_float(product.b_dtype) || !product.has_wide_result(node)) {
    return nullptr;
  }
  const bool bf16 = product.a_dtype == DType::kBF16 && product.b_dtype == DType::kBF16;
  const GemmEngine* engine = bf16 && amx_engine() != nullptr ? amx_engine() : &float_engine_in(graph, product.m);
  return [product, engine](const KernelArgs& args) {
    gemm(*engine, product.left(args), product.right(args), product.output(args), args.workspace);
  };
}

// In bf16 ours takes 0.65 to 1.1 of oneDNN's time, of fewer rows up to 1.4. In float32: docs/results.md.
BoundKernel bind_amx(const Graph& graph, const Node& node) {
  constexpr int64_t kRows = 512;
  const Product product(graph, node);
  const bool bf16 = product.b_dtype == DType::kBF16 && amx_engine() != nullptr && product.m >= kRows;
  const bool f32 = product.b_dtype == DType::kF32 && &float_engine_in(graph, product.m) != &vector_engine();
  return product.a_dtype == product.b_dtype && (bf16 || f32) ? bind_own(graph, node) : nullptr;
}

BoundKernel bind_onednn(const Graph& graph, const Node& node) {
  const Product product(graph, node);
  const DType a = product.a_dtype, out = node.results[0].dtype;
  if (!is_f32_or_bf16(a) || a != product.b_dtype || !(out == DType::kF32 || out == a)) return nullptr;
  if (!is_f32_or_bf16(product.c_dtype)) return nullptr;
  const bool accumulate = product.addend == Addend::kFull;
  const OnednnGemm run = make_onednn_gemm({.m = product.m,
                                           .n = product.n,
                                           .k = product.k,
                                           .operands = a,
                                           .out = out,
                                           .trans_a = product.trans_a,
                                           .trans_b = product.trans_b,
                                           .accumulate = accumulate,
                                           .bias = product.addend == Addend::kRow,
                                           .bias_dtype = product.c_dtype});
  if (!run) return nullptr;
  return [=](const KernelArgs& args) {
    if (accumulate) copy_tensor(args.in[product.c], args.out[0]);
    const void* bias = product.addend == Addend::kRow ? args.in[product.c].data : nullptr;
    run(args.in[0].data, args.in[1].data, bias, args.out[0].data, args.workspace);
  };
}

// --- scaled_matmul

// Whether code times scale is exact in bf16 for all codes of both formats.
bool exact_in_bf16(const float* scales, int64_t count) {
  return std::all_of(scales, scales + count, [](float scale) {
    return (std::bit_cast<uint32_t>(scale) & 0x807fffffu) == 0 && scale >= 0x1p-100f && scale <= 0x1p100f;
  });
}

// Whether the scales of one operand are applied to the sums: one a tensor, or one a row of codes, along which the
// contraction runs.
bool is_outside(const Graph& graph, const Node& node, size_t scale_input, const char* scaling) {
  const Shape& scales = graph.shape(node.inputs[scale_input]);
  const std::string& layout = node.attr<std::string>(scaling);
  return scales.elements() == 1 || layout == "row" || (layout == "1x128" && scales[0] == 1);
}

void apply_outside(const Tensor& scales, GemmOutput& out, const float*& vector) {
  if (scales.elements() == 1) {
    out.factor *= *scales.as<float>();
  } else {
    vector = scales.as<float>();
  }
}

// Codes of a byte, row after row, without zero points.
bool reads_plain_codes(const Node& node, const Product& product) {
  return product.b_dtype != DType::kI4 && !node.operand("b_zero").exists() && !node.attrs.has("order");
}

// Int8 codes whose scales are applied to the sums.
BoundKernel bind_int8(const Graph& graph, const Node& node) {
  const Product product(graph, node);
  if (!reads_plain_codes(node, product) || product.a_dtype != DType::kI8 || product.b_dtype != DType::kI8 ||
      product.k >= kMaxIntegerDepth || !is_outside(graph, node, 1, "scaling_a") ||
      !is_outside(graph, node, 3, "scaling_b") || !product.has_wide_result(node)) {
    return nullptr;
  }
  return [product, few = product.is_few_rows()](const KernelArgs& args) {
    const MatrixView a = product.left(args), b = product.right(args);
    GemmOutput out = product.output(args);
    apply_outside(args.in[1], out, out.row_scale);
    apply_outside(args.in[3], out, out.col_scale);
    few ? gemv(a, b, out, args.workspace) : gemm(int8_engine(), a, b, out, args.workspace);
  };
}

// Int8 rows by codes of 4 bits in order rows16.
BoundKernel bind_groups(const Graph& graph, const Node& node) {
  const Product product(graph, node);
  const ScaleLayout layout = parse_scale_layout(node.attr<std::string>("scaling_b"));
  const int64_t group = layout == ScaleLayout::kRow ? product.k : scale_group(layout);
  GroupedWeights weights{.outputs = product.n, .depth = product.k, .group = group};
  if (node.attr<std::string>("order") != "rows16" || product.a_dtype != DType::kI8 || product.b_dtype != DType::kI4 ||
      product.trans_a || !is_outside(graph, node, 1, "scaling_a") || !product.has_wide_result(node) || group == 0 ||
      product.k % group != 0 || group_gemm_scratch_bytes(8, weights) > kLeastWorkspace) {
    return nullptr;
  }
  return [product, weights, zero = node.operand("b_zero").exists()](const KernelArgs& args) {
    GroupedWeights given = weights;
    given.codes = args.in[2].data, given.scales = args.in[3].as<float>();
    given.zero = zero ? args.in[5].as<int8_t>() : nullptr;
    GemmOutput out = product.output(args);
    apply_outside(args.in[1], out, out.row_scale);
    group_gemm(args.in[0].as<int8_t>(), product.m, given, out, args.workspace);
  };
}

BoundKernel bind_scaled(const Graph& graph, const Node& node) {
  const Product product(graph, node);
  if (!product.has_wide_result(node) || !reads_plain_codes(node, product)) return nullptr;
  const bool fp8 = is_fp8(product.a_dtype) && is_fp8(product.b_dtype);
  const bool outside[2] = {is_outside(graph, node, 1, "scaling_a"), is_outside(graph, node, 3, "scaling_b")};
  return [=](const KernelArgs& args) {
    MatrixView operands[2] = {product.left(args), product.right(args)};
    GemmOutput out = product.output(args);
    const GemmEngine* engine = fp8 ? amx_engine() : nullptr;
    for (int side : {0, 1}) {
      const Tensor& scales = args.in[side == 0 ? 1 : 3];
      if (outside[side]) {
        apply_outside(scales, out, side == 0 ? out.row_scale : out.col_scale);
        continue;
      }
      operands[side].set_scales(scales.as<float>(), scales.shape());
      if (!exact_in_bf16(scales.as<float>(), scales.elements())) engine = nullptr;
    }
    gemm(engine != nullptr ? *engine : float_engine(product.m), operands[0], operands[1], out, args.workspace);
  };
}

}  // namespace

std::vector<KernelEntry> matmul_kernels() {
  return {{Op::kMatmul, "matmul_gemv", bind_gemv},
          {Op::kMatmul, "matmul_amx", bind_amx},
          {Op::kMatmul, "matmul_onednn", bind_onednn},
          {Op::kMatmul, "matmul_blocked", bind_own},
          {Op::kScaledMatmul, "scaled_matmul_int8", bind_int8},
          {Op::kScaledMatmul, "scaled_matmul_groups", bind_groups},
          {Op::kScaledMatmul, "scaled_matmul_blocked", bind_scaled}};
}

}  // namespace octet::cpu
