// Products of each expert with its rows: our own GEMMs, expert by expert, threads within one.
//
// An element's sum runs in one order however many rows its expert has, except that bf16 and int8 weights of few rows go
// through gemv, as in matmul. Experts without rows are not read.
#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "kernels/cpu/experts/experts.h"
#include "kernels/cpu/matmul/gemm.h"
#include "kernels/cpu/matmul/group_gemm.h"

namespace octet::cpu {
namespace {

MatrixView view(const Tensor& tensor, bool transposed) {
  return {.data = tensor.data,
          .dtype = tensor.dtype(),
          .rows = tensor.shape().rows(),
          .cols = tensor.shape().cols(),
          .transposed = transposed};
}

// Rows [first, first + count) as they are stored, with their scales.
MatrixView rows_of(MatrixView all, int64_t first, int64_t count) {
  all.data = static_cast<const std::byte*>(all.data) + first * all.cols * dtype_bytes(all.dtype);
  if (all.scales != nullptr) all.scales += first / all.scale_rows * all.scale_row_stride;
  all.rows = count;
  return all;
}

// The same rows of the result, or columns' scales from `column` on.
GemmOutput rows_of(GemmOutput all, int64_t first, int64_t width, int64_t column) {
  all.data = static_cast<std::byte*>(all.data) + first * width * dtype_bytes(all.dtype);
  if (all.c != nullptr) all.c = static_cast<const std::byte*>(all.c) + first * width * dtype_bytes(all.c_dtype);
  if (all.row_scale != nullptr) all.row_scale += first;
  if (all.col_scale != nullptr) all.col_scale += column;
  return all;
}

// fn(expert, first row, rows) for those that have some.
template <typename Fn>
void for_groups(const Tensor& offsets, int64_t rows, const Fn& fn) {
  const int32_t* at = offsets.as<int32_t>();
  const int64_t groups = offsets.elements() - 1;
  for (int64_t e = 0; e < groups; ++e) {
    check(at[e] >= 0 && at[e] <= at[e + 1] && at[e + 1] <= rows, ErrorCode::kInvalidArgument,
          "expert {} has rows {} to {} of {}", e, at[e], at[e + 1], rows);
    if (at[e + 1] > at[e]) fn(e, at[e], at[e + 1] - at[e]);
  }
}

// y of all experts; `few`: gemv takes the types.
void multiply(const GemmEngine& engine, const MatrixView& x, const MatrixView& w, const GemmOutput& out, int64_t width,
              bool few, const Tensor& offsets, std::span<std::byte> scratch) {
  const int64_t of_expert = w.rows / (offsets.elements() - 1);
  for_groups(offsets, x.rows, [&](int64_t e, int64_t first, int64_t count) {
    const MatrixView a = rows_of(x, first, count), b = rows_of(w, e * of_expert, of_expert);
    const GemmOutput to = rows_of(out, first, width, e * width);
    const bool gemv_fits = few && count <= kGemvRows && gemv_scratch_bytes(count, a.cols) <= std::ssize(scratch);
    gemv_fits ? gemv(a, b, to, scratch) : gemm(engine, a, b, to, scratch);
  });
}

BoundKernel bind_grouped(const Graph& graph, const Node& node) {
  const DType a = graph.dtype(node.inputs[0]), b = graph.dtype(node.inputs[1]);
  if (!is_wide_float(a) || !is_wide_float(b) || !is_wide_float(node.results[0].dtype)) return nullptr;
  const bool trans_b = node.attr<bool>("trans_b"), bf16 = a == DType::kBF16 && b == DType::kBF16;
  const GemmEngine* engine = bf16 && amx_engine() != nullptr ? amx_engine() : &vector_engine();
  const bool few = trans_b && gemv_takes(a, b);
  return [=](const KernelArgs& args) {
    const GemmOutput out{.data = args.out[0].data, .dtype = args.out[0].dtype()};
    multiply(*engine, view(args.in[0], false), view(args.in[1], trans_b), out, args.out[0].shape().cols(), few,
             args.in[2], args.workspace);
  };
}

// Whether one scale is for whole rows, and is applied to the sums.
bool is_outside(const Tensor& scales, const std::string& layout) { return scales.elements() == 1 || layout == "row"; }

bool exact_in_bf16(const Tensor& scales) {
  const float* values = scales.as<float>();
  return std::all_of(values, values + scales.elements(), [](float scale) {
    return (std::bit_cast<uint32_t>(scale) & 0x807fffffu) == 0 && scale >= 0x1p-100f && scale <= 0x1p100f;
  });
}

// Int8 rows by codes of 4 bits in order rows16, whose blocks of rows are one expert's.
BoundKernel bind_grouped_codes(const Graph& graph, const Node& node) {
  const DType a = graph.dtype(node.inputs[0]), b = graph.dtype(node.inputs[2]);
  const std::string& scaling_a = node.attr<std::string>("scaling_a");
  if (node.attr<std::string>("order") != "rows16" || a != DType::kI8 || b != DType::kI4 ||
      (scaling_a != "row" && scaling_a != "tensor") || !is_wide_float(node.results[0].dtype))
    return nullptr;
  const ScaleLayout layout = parse_scale_layout(node.attr<std::string>("scaling_b"));
  const int64_t rows = graph.shape(node.inputs[2])[0], depth = graph.shape(node.inputs[2])[1];
  const int64_t group = layout == ScaleLayout::kRow ? depth : scale_group(layout);
  const GroupedWeights weights{
      .outputs = node.results[0].shape[1], .depth = depth, .group = group, .scales = nullptr, .stride = rows};
  if (group == 0 || depth % group != 0 || group_gemm_scratch_bytes(8, weights) > kLeastWorkspace) return nullptr;
  return [=, has_zero = node.operand("w_zero").exists()](const KernelArgs& args) {
    GemmOutput out{.data = args.out[0].data, .dtype = args.out[0].dtype()};
    if (args.in[1].elements() == 1)
      out.factor = *args.in[1].as<float>();
    else
      out.row_scale = args.in[1].as<float>();
    for_groups(args.in[4], args.in[0].shape()[0], [&](int64_t e, int64_t first, int64_t count) {
      GroupedWeights given = weights;
      const int64_t row = e * given.outputs;
      given.codes = static_cast<const std::byte*>(args.in[2].data) + row * depth / 2;
      given.scales = args.in[3].as<float>() + row;
      given.zero = has_zero ? args.in[5].as<int8_t>() + row : nullptr;
      group_gemm(args.in[0].as<int8_t>() + first * depth, count, given, rows_of(out, first, given.outputs, 0),
                 args.workspace);
    });
  };
}

BoundKernel bind_scaled_grouped(const Graph& graph, const Node& node) {
  const DType a = graph.dtype(node.inputs[0]), b = graph.dtype(node.inputs[2]);
  const bool plain_codes = b != DType::kI4 && !node.operand("w_zero").exists() && !node.attrs.has("order");
  if (!is_wide_float(node.results[0].dtype) || !plain_codes) return nullptr;
  const bool integer = a == DType::kI8 && b == DType::kI8, fp8 = is_fp8(a) && is_fp8(b);
  const std::string scaling[2] = {node.attr<std::string>("scaling_a"), node.attr<std::string>("scaling_b")};
  const int64_t depth = graph.shape(node.inputs[0]).cols();
  return [=](const KernelArgs& args) {
    MatrixView operands[2] = {view(args.in[0], false), view(args.in[2], true)};
    GemmOutput out{.data = args.out[0].data, .dtype = args.out[0].dtype()};
    const GemmEngine* engine = fp8 ? amx_engine() : nullptr;
    bool all_outside = true;
    for (size_t side : {size_t{0}, size_t{1}}) {
      const Tensor& scales = args.in[2 * side + 1];
      const bool outside = is_outside(scales, scaling[side]);
      all_outside &= outside;
      if (!outside) {
        operands[side].set_scales(scales.as<float>(), scales.shape());
        if (!exact_in_bf16(scales)) engine = nullptr;
      } else if (scales.elements() == 1) {
        out.factor *= *scales.as<float>();
      } else {
        (side == 0 ? out.row_scale : out.col_scale) = scales.as<float>();
      }
    }
    const bool sums_integers = integer && all_outside && depth < kMaxIntegerDepth;
    if (sums_integers) engine = &int8_engine();
    multiply(engine != nullptr ? *engine : vector_engine(), operands[0], operands[1], out, args.out[0].shape().cols(),
             sums_integers, args.in[4], args.workspace);
  };
}

BoundKernel bind_wgrad(const Graph& graph, const Node& node) {
  const DType a = graph.dtype(node.inputs[0]), b = graph.dtype(node.inputs[1]);
  if (!is_wide_float(a) || !is_wide_float(b)) return nullptr;
  const bool sum = node.operand("c").exists(), bf16 = a == DType::kBF16 && b == DType::kBF16;
  const GemmEngine* engine = bf16 && amx_engine() != nullptr ? amx_engine() : &vector_engine();
  return [=](const KernelArgs& args) {
    const MatrixView dy = view(args.in[0], true), x = view(args.in[1], false);
    if (sum) {
      copy_tensor(args.in[3], args.out[0]);
    } else {
      std::memset(args.out[0].data, 0, static_cast<size_t>(args.out[0].type->bytes()));
    }
    GemmOutput out{.data = args.out[0].data};
    if (sum) out.c = args.out[0].data;
    for_groups(args.in[2], x.rows, [&](int64_t e, int64_t first, int64_t count) {
      gemm(*engine, rows_of(dy, first, count), rows_of(x, first, count), rows_of(out, e * dy.cols, x.cols, 0),
           args.workspace);
    });
  };
}

}  // namespace

std::vector<KernelEntry> grouped_product_kernels() {
  return {{Op::kGroupedMatmul, "grouped_matmul_blocked", bind_grouped},
          {Op::kScaledGroupedMatmul, "scaled_grouped_matmul_groups", bind_grouped_codes},
          {Op::kScaledGroupedMatmul, "scaled_grouped_matmul_blocked", bind_scaled_grouped},
          {Op::kGroupedMatmulWgrad, "grouped_matmul_wgrad_blocked", bind_wgrad}};
}

}  // namespace octet::cpu
