// Products with weights in integer codes: in the order that wgmma wants by our kernel for 4 bits, row after row by the
// tiled product, which is slow: the order needs N and K to be multiples of 128.
#include <algorithm>

#include "kernels/common/dtype_sets.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/matmul/int4.h"
#include "kernels/cuda/matmul/product.h"

namespace octet::cuda {
namespace {

bool is_integer_product(const Product& p) {
  const bool x = p.a.dtype == DType::kE4M3 || is_wide_float(p.a.dtype);
  const bool scales = p.fp8() && (*p.a.scaling == ScaleLayout::kRow || *p.a.scaling == ScaleLayout::kTensor) &&
                      *p.b.scaling != ScaleLayout::kTile128;
  return x && scales && is_integer_code(p.b.dtype) && p.a.k_inner && p.b.k_inner && is_wide_float(p.out) &&
         (p.bias < 0 || is_wide_float(p.bias_dtype)) && p.parts.size() <= static_cast<size_t>(kGemvParts);
}

// Columns of the results, beside each other.
int fill_parts(const Product& p, GemvPart (&parts)[kGemvParts]) {
  int64_t begin = 0;
  for (size_t i = 0; i < p.parts.size(); begin += p.parts[i++]) parts[i] = {begin, begin + p.parts[i], nullptr};
  if (p.parts.empty()) parts[0].end = p.n;
  return static_cast<int>(std::max<size_t>(p.parts.size(), 1));
}

const int8_t* zeros(const KernelArgs& args, const Product& p) { return at<const int8_t>(args.in, p.zero); }

}  // namespace

BoundKernel bind_int4(DeviceContext& context, const Graph& graph, const Node& node, const Product& p) {
  const bool takes = is_integer_product(p) && p.order == (p.a.dtype == DType::kE4M3 ? "wgmma_x8" : "wgmma_x16") &&
                     (p.a.dtype == DType::kE4M3 || p.a.dtype == DType::kBF16) &&
                     std::ranges::all_of(p.parts, [](int64_t columns) { return columns % 4 == 0; });
  if (!takes) return {};
  const int64_t group = scale_group(*p.b.scaling);
  Int4Product product{.m = p.m,
                      .n = p.n,
                      .k = p.k,
                      .group = group > 0 ? group : p.k,
                      .dtype = p.a.dtype,
                      .x_scale_rows = p.a.scaling == ScaleLayout::kRow,
                      .weights_ready = weights_ready(graph, node, p),
                      .bias_dtype = p.bias_dtype,
                      .out_dtype = p.out};
  product.part_count = fill_parts(p, product.parts);
  const Int4Plan plan = choose(product, context.facts());
  BoundKernel bound{[p, product, plan](const KernelArgs& args) mutable {
                      product.x = args.in[p.a.input].data, product.codes = args.in[p.b.input].data;
                      product.x_scale = args.in[p.a.scale_input].as<float>();
                      product.scales = args.in[p.b.scale_input].as<float>();
                      product.zeros = zeros(args, p);
                      product.c = at(args.in, p.c), product.bias = at(args.in, p.bias);
                      for (int i = 0; i < product.part_count; ++i)
                        product.parts[i].out = args.out[static_cast<size_t>(i)].data;
                      launch_int4(product, plan, args.stream);
                    },
                    [plan](const KernelArgs&) { return to_string(plan); }};
  bound.reads_ahead = product.weights_ready;
  return bound;
}

BoundKernel bind_integer_tiled(DeviceContext&, const Graph&, const Node&, const Product& p) {
  if (!is_integer_product(p) || !p.order.empty() || (p.c >= 0 && (p.bias >= 0 || !p.parts.empty()))) return {};
  const int64_t group = scale_group(*p.b.scaling);
  GemvPart parts[kGemvParts];
  const int count = fill_parts(p, parts);
  return [p, group, count, parts = std::to_array(parts)](const KernelArgs& args) {
    for (int i = 0; i < count; ++i) {
      const auto [begin, end, unused] = parts[static_cast<size_t>(i)];
      void* out = args.out[static_cast<size_t>(i)].data;
      if (out == nullptr) continue;
      auto* codes = args.in[p.b.input].as<std::byte>() + storage_bytes(p.b.dtype, begin * p.k);
      const int8_t* zero = zeros(args, p);
      TiledGemm gemm{.m = p.m,
                     .n = end - begin,
                     .k = p.k,
                     .a = {.operand = {args.in[p.a.input].data, p.a.dtype},
                           .outer_stride = p.k,
                           .k_stride = 1,
                           .scale = args.in[p.a.scale_input].as<float>(),
                           .k_group = p.k,
                           .scale_outer = p.a.scaling == ScaleLayout::kRow ? 1 : 0},
                     .b = {.operand = {codes, p.b.dtype},
                           .outer_stride = p.k,
                           .k_stride = 1,
                           .scale = args.in[p.b.scale_input].as<float>() + begin,
                           .zero = zero == nullptr ? nullptr : zero + begin,
                           .k_group = group > 0 ? group : p.k,
                           .scale_outer = 1,
                           .scale_k = p.n},
                     .c = {at(args.in, p.c), p.out},
                     .out = {out, p.out}};
      if (p.bias >= 0) {
        gemm.c = {at<std::byte>(args.in, p.bias) + begin * dtype_bytes(p.bias_dtype), p.bias_dtype};
        gemm.c_is_row = true;
      }
      launch_tiled_gemm(gemm, args.stream);
    }
  };
}

}  // namespace octet::cuda
