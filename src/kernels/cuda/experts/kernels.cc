// Entries of mixtures of experts: routing, rows, grouped products.
#include <algorithm>
#include <array>

#include "kernels/common/scale_index.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/fusion_body.h"
#include "kernels/cuda/matmul/int4.h"
#include "kernels/cuda/matmul/product.h"

namespace octet::cuda {
namespace {

// --- routing and rows

RouterProblem router_of(const Graph& graph, const Node& node) {
  const Shape& logits = graph.shape(node.inputs[0]);
  return {.tokens = logits[0],
          .experts = static_cast<int>(logits[1]),
          .k = static_cast<int>(node.attr<int64_t>("k")),
          .softmax = node.attr<std::string>("scoring") == "softmax",
          .renormalize = node.attr<bool>("renormalize")};
}

bool takes_top_k(const Graph& graph, const Node& node) { return graph.shape(node.inputs[0])[1] <= kListedExperts; }

BoundKernel bind_top_k(DeviceContext&, const Graph& graph, const Node& node) {
  return [p = router_of(graph, node)](const KernelArgs& args) {
    launch_top_k(p, args.in[0].as<float>(),
                 {.weights = at<float>(args.out, 0),
                  .chosen = at<int32_t>(args.out, 1),
                  .scores = at<float>(args.out, 2),
                  .lse = at<float>(args.out, 3)},
                 args.stream);
  };
}

BoundKernel bind_top_k_grad(DeviceContext&, const Graph& graph, const Node& node) {
  return [p = router_of(graph, node)](const KernelArgs& args) {
    const auto given = [&](size_t i) {
      return i < args.in.size() ? static_cast<const float*>(args.in[i].data) : nullptr;
    };
    launch_top_k_grad(p, args.in[0].as<float>(), args.in[1].as<int32_t>(),
                      {.weights = given(2), .scores = given(3), .lse = given(4)}, args.out[0].as<float>(), args.stream);
  };
}

BoundKernel bind_group_rows(DeviceContext&, const Graph&, const Node& node) {
  return [groups = static_cast<int>(node.attr<int64_t>("groups")),
          parts = static_cast<int>(node.attr<int64_t>("parts")),
          has_part = node.operand("part").exists()](const KernelArgs& args) {
    const Tensor& experts = args.in[0];
    launch_group_rows({.experts = experts.as<int32_t>(),
                       .count = experts.elements(),
                       .part = at<int32_t>(args.in, has_part ? 1 : -1),
                       .parts = parts,
                       .k = static_cast<int>(experts.shape()[1])},
                      groups, at<int32_t>(args.out, 0), at<int32_t>(args.out, 1), at<float>(args.out, 2), args.stream);
  };
}

// The router of few tokens, whose rows (bf16, then float32 exactly) meet float32 weights.
BoundKernel bind_router(DeviceContext& context, const Fusion& fusion) {
  const FusionBody& body = fusion.body;
  const Graph& graph = body.graph();
  const Node *cast = body.member(Op::kCast), *logits = body.member(Op::kMatmul), *top_k = body.member(Op::kTopK),
             *groups = body.member(Op::kGroupRows);
  if (cast == nullptr || logits == nullptr || groups == nullptr || graph.dtype(cast->inputs[0]) != DType::kBF16)
    return {};
  const Shape& rows = graph.shape(logits->inputs[0]);
  const bool takes = rows[0] <= kRouterTokens && rows[1] % 8 == 0 && !logits->attr<bool>("trans_a") &&
                     logits->attr<bool>("trans_b") && !logits->operand("c").exists() && takes_top_k(graph, *top_k) &&
                     rows[0] * top_k->attr<int64_t>("k") <= kRouterChoices;
  if (!takes) return {};
  const int x = body.input(*cast, 0), w = body.input(*logits, 1);
  const FewTokens few{.width = rows[1],
                      .weights_ready = is_constant_state(fusion.graph, fusion.node.inputs[static_cast<size_t>(w)]),
                      .counters = context.counters()};
  const auto result = [&](const Node& member, int32_t i) { return body.result(member, i); };
  const std::array results = {result(*top_k, 0), result(*top_k, 1), result(*top_k, 2), result(*top_k, 3)};
  const std::array grouped = {result(*groups, 0), result(*groups, 1), result(*groups, 2)};
  const auto run = [=, p = router_of(graph, *top_k)](const KernelArgs& args) {
    FewTokens of = few;
    of.x = at(args.in, x), of.w = at<float>(args.in, w);
    of.logits = reinterpret_cast<float*>(args.workspace.data());
    of.places = at<int32_t>(args.out, grouped[0]), of.offsets = at<int32_t>(args.out, grouped[1]);
    of.counts = at<float>(args.out, grouped[2]);
    launch_router(p, of,
                  {.weights = at<float>(args.out, results[0]),
                   .chosen = at<int32_t>(args.out, results[1]),
                   .scores = at<float>(args.out, results[2]),
                   .lse = at<float>(args.out, results[3])},
                  args.stream);
  };
  return {run, logits->results[0].bytes()};
}

int choices_of(const Tensor& places) { return static_cast<int>(places.shape()[1]); }

BoundKernel bind_dispatch(DeviceContext&, const Graph&, const Node& node) {
  return [scaled = node.operand("scale_inv").exists()](const KernelArgs& args) {
    const Tensor &x = args.in[0], &places = args.in[1];
    launch_dispatch_rows({.x = x.data,
                          .scale_inv = at<float>(args.in, scaled ? 2 : -1),
                          .places = places.as<int32_t>(),
                          .rows = args.out[0].data,
                          .scale_inv_rows = at<float>(args.out, scaled ? 1 : -1),
                          .tokens = x.shape()[0],
                          .row_bytes = x.shape()[1] * dtype_bytes(x.dtype()),
                          .k = choices_of(places)},
                         args.stream);
  };
}

BoundKernel bind_combine(DeviceContext&, const Graph& graph, const Node& node) {
  if (!is_wide_float(graph.dtype(node.inputs[0]))) return {};
  return [](const KernelArgs& args) {
    const Tensor& places = args.in[1];
    const float* weights = args.in.size() > 2 ? at<float>(args.in, 2) : nullptr;
    launch_combine_rows(operand(args.in[0]), places.as<int32_t>(), weights, operand(args.out[0]), places.shape()[0],
                        choices_of(places), args.in[0].shape()[1], args.stream);
  };
}

BoundKernel bind_combine_grad(DeviceContext&, const Graph& graph, const Node& node) {
  if (!is_wide_float(graph.dtype(node.inputs[0])) || !is_wide_float(graph.dtype(node.inputs[3]))) return {};
  return [](const KernelArgs& args) {
    const Tensor& places = args.in[1];
    launch_combine_rows_grad(operand(args.in[0]), places.as<int32_t>(), args.in[2].as<float>(), operand(args.in[3]),
                             operand(args.out[0]), at<float>(args.out, 1), places.shape()[0], choices_of(places),
                             args.in[0].shape()[1], args.stream);
  };
}

// --- grouped products

// A grouped product's operands: inputs of x and w, their scales behind them in a scaled one.
struct Grouped {
  bool scaled, trans_b, has_zero;
  size_t w, offsets;
  std::string order;  // of codes

  explicit Grouped(const Node& node)
      : scaled(node.op == Op::kScaledGroupedMatmul),
        trans_b(node.attr<bool>("trans_b")),
        has_zero(scaled && node.operand("w_zero").exists()),
        w(scaled ? 2 : 1),
        offsets(w * 2),
        order(scaled ? node.attr<std::string>("order") : "") {}

  const int8_t* zeros(const KernelArgs& args) const { return has_zero ? args.in[offsets + 1].as<int8_t>() : nullptr; }
};

// The stored rows are the outer dim, unless the contraction runs over them.
TiledOperand tiled_operand(const Tensor& tensor, const Tensor* scale, bool contracts_columns,
                           const int8_t* zeros = nullptr) {
  const int64_t cols = tensor.shape()[1];
  TiledOperand t{.operand = operand(tensor),
                 .outer_stride = contracts_columns ? cols : 1,
                 .k_stride = contracts_columns ? 1 : cols};
  if (scale == nullptr) return t;
  const ScaleIndex index(tensor.shape(), scale->shape());
  t.scale = scale->as<float>(), t.zero = zeros;
  t.outer_group = index.row_divisor, t.scale_outer = index.row_stride;
  t.k_group = index.col_divisor, t.scale_k = index.col_stride;
  return t;
}

BoundKernel bind_tiled(DeviceContext&, const Graph& graph, const Node& node) {
  const Grouped g(node);
  const auto is_decodable = [&](DType dtype) { return is_wide_float(dtype) || (g.scaled && is_code(dtype)); };
  if (!is_decodable(graph.dtype(node.inputs[0])) || !is_decodable(graph.dtype(node.inputs[g.w])) || !g.order.empty() ||
      !is_wide_float(node.results[0].dtype))
    return {};
  return [g](const KernelArgs& args) {
    const Tensor &x = args.in[0], &w = args.in[g.w], &offsets = args.in[g.offsets];
    const int64_t experts = offsets.elements() - 1, of_expert = w.shape()[0] / experts;
    launch_grouped_tiled({.gemm = {.m = x.shape()[0],
                                   .n = args.out[0].shape()[1],
                                   .k = x.shape()[1],
                                   .a = tiled_operand(x, g.scaled ? &args.in[1] : nullptr, true),
                                   .b = tiled_operand(w, g.scaled ? &args.in[3] : nullptr, g.trans_b, g.zeros(args)),
                                   .c = {},
                                   .out = operand(args.out[0])},
                          .offsets = offsets.as<int32_t>(),
                          .experts = static_cast<int>(experts),
                          .b_outer = g.trans_b ? of_expert : 0,
                          .b_depth = g.trans_b ? 0 : of_expert},
                         args.stream);
  };
}

BoundKernel bind_wgrad(DeviceContext&, const Graph& graph, const Node& node) {
  if (!is_wide_float(graph.dtype(node.inputs[0])) || !is_wide_float(graph.dtype(node.inputs[1]))) return {};
  return [](const KernelArgs& args) {
    const Tensor &dy = args.in[0], &x = args.in[1], &offsets = args.in[2];
    launch_grouped_tiled({.gemm = {.m = dy.shape()[1],
                                   .n = x.shape()[1],
                                   .k = x.shape()[0],
                                   .a = tiled_operand(dy, nullptr, false),
                                   .b = tiled_operand(x, nullptr, false),
                                   .c = args.in.size() > 3 ? operand(args.in[3]) : Operand{},
                                   .out = operand(args.out[0])},
                          .offsets = offsets.as<int32_t>(),
                          .experts = static_cast<int>(offsets.elements() - 1),
                          .by_depth = true},
                         args.stream);
  };
}

// Of bf16 by bf16, rows in whole pieces of 16 bytes.
bool takes_wgrad_wgmma(const Graph& graph, const Node& node) {
  const TensorType &dy = graph.type(node.inputs[0]), &x = graph.type(node.inputs[1]);
  return dy.dtype == DType::kBF16 && x.dtype == DType::kBF16 && dy.shape[1] % 8 == 0 && x.shape[1] % 8 == 0;
}

BoundKernel bind_wgrad_wgmma(DeviceContext& context, const Graph& graph, const Node& node) {
  const WgradPlan plan = choose(WgradDesc{graph.shape(node.inputs[0])[1]}, context.facts());
  return [plan, sms = context.sm_count()](const KernelArgs& args) {
    const Tensor &dy = args.in[0], &x = args.in[1], &offsets = args.in[2];
    const bool adds = args.in.size() > 3 && args.in[3].data != nullptr;
    if (adds) copy_tensor(args.in[3], args.out[0], args.stream);
    launch_grouped_wgrad({.rows = x.shape()[0],
                          .m = dy.shape()[1],
                          .n = x.shape()[1],
                          .experts = static_cast<int>(offsets.elements() - 1),
                          .dy = dy.data,
                          .x = x.data,
                          .offsets = offsets.as<int32_t>(),
                          .out = args.out[0].as<float>(),
                          .adds = adds},
                         plan, sms, args.stream);
  };
}

// 1x128 by 128x128.
bool in_blocks(const Node& node, const Grouped& g) {
  return g.scaled && node.attr<std::string>("scaling_a") == "1x128" && node.attr<std::string>("scaling_b") == "128x128";
}

// bf16 by bf16, or e4m3 by e4m3 or i8 by i8 with a scale a tensor or row, e4m3 in blocks too, K in whole pieces of 16
// bytes; of bf16 also w not transposed, N in such pieces.
bool multiplies_directly(const Graph& graph, const Node& node, const Grouped& g) {
  const TensorType &x = graph.type(node.inputs[0]), &w = graph.type(node.inputs[g.w]);
  const bool codes = x.dtype == DType::kE4M3 || x.dtype == DType::kI8;
  if (x.dtype != w.dtype || g.has_zero || !(g.scaled ? codes : x.dtype == DType::kBF16)) return false;
  if (x.shape[1] * dtype_bytes(x.dtype) % 16 != 0 || !is_wide_float(node.results[0].dtype)) return false;
  if (!g.trans_b && w.shape[1] % 8 != 0) return false;
  if (in_blocks(node, g)) return x.dtype == DType::kE4M3;
  for (const char* key : {"scaling_a", "scaling_b"}) {
    if (!g.scaled) continue;
    const std::string& scaling = node.attr<std::string>(key);
    if (scaling != "tensor" && scaling != "row") return false;
  }
  return true;
}

GroupedProduct product_of(const Grouped& g, bool blocks, const KernelArgs& args) {
  const Tensor &x = args.in[0], &w = args.in[g.w], &offsets = args.in[g.offsets];
  GroupedProduct p{.rows = x.shape()[0],
                   .n = args.out[0].shape()[1],
                   .k = x.shape()[1],
                   .experts = static_cast<int>(offsets.elements() - 1),
                   .dtype = x.dtype(),
                   .trans_b = g.trans_b,
                   .x = x.data,
                   .w = w.data,
                   .offsets = offsets.as<int32_t>(),
                   .out = operand(args.out[0])};
  if (!g.scaled) return p;
  p.blocks = blocks;
  p.x_scale = args.in[1].as<float>(), p.x_scale_rows = args.in[1].elements() > 1;
  p.w_scale = args.in[3].as<float>(), p.w_scale_rows = args.in[3].elements() > 1;
  return p;
}

BoundKernel bind_gemv(DeviceContext& context, const Graph& graph, const Node& node) {
  const Grouped g(node);
  const TensorType& x = graph.type(node.inputs[0]);
  if (!multiplies_directly(graph, node, g) || !g.trans_b || x.shape[0] > kGemvRows) return {};
  const int64_t n = node.results[0].shape[1], experts = graph.shape(node.inputs[g.offsets])[0] - 1;
  const bool blocks = in_blocks(node, g);
  GemvPlan plan =
      choose(GemvDesc{.n = n * std::min(x.shape[0], experts), .k = x.shape[1], .dtype = x.dtype, .blocks = blocks},
             context.facts());
  plan.grid = (n + plan.tiles * kGemvTileRows - 1) / (plan.tiles * kGemvTileRows);
  return {[g, plan, blocks](const KernelArgs& args) {
            const GroupedProduct p = product_of(g, blocks, args);
            Gemv gemv{.m = p.rows,
                      .n = p.n,
                      .k = p.k,
                      .dtype = p.dtype,
                      .x = p.x,
                      .weights = p.w,
                      .x_scale = p.x_scale,
                      .weight_scale = p.w_scale,
                      .x_scale_rows = p.x_scale_rows,
                      .weight_scale_rows = p.w_scale_rows,
                      .blocks = p.blocks,
                      .out_dtype = p.out.dtype,
                      .offsets = p.offsets,
                      .experts = p.experts};
            gemv.parts[0] = {0, p.n, p.out.data};
            launch_gemv(gemv, plan, args.stream);
          },
          [plan](const KernelArgs&) { return to_string(plan); }};
}

BoundKernel bind_wgmma(DeviceContext& context, const Graph& graph, const Node& node) {
  const Grouped g(node);
  const int64_t rows = graph.shape(node.inputs[0])[0], experts = graph.shape(node.inputs[g.offsets])[0] - 1;
  if (!multiplies_directly(graph, node, g) || experts > kListedExperts) return {};
  const bool blocks = in_blocks(node, g);
  const GroupedPlan plan = choose(GroupedDesc{rows, experts, blocks}, context.facts());
  return [g, blocks, plan, sms = context.sm_count()](const KernelArgs& args) {
    launch_grouped_wgmma(product_of(g, blocks, args), plan, sms, args.stream);
  };
}

// Whether nothing of a step writes weights and offsets.
bool are_ready(const Graph& graph, Value w, Value offsets) {
  return is_constant_state(graph, w) && graph.node(offsets).op == Op::kInput;
}

ThinProduct thin_product(const Graph& graph, const Node& node, int64_t x_stride, Value w, Value offsets) {
  const Shape& weights = graph.shape(w);
  return {.rows = node.results[0].shape[0],
          .n = node.results[0].shape[1],
          .k = weights[1],
          .x_stride = x_stride,
          .experts = static_cast<int>(graph.shape(offsets)[0] - 1)};
}

BoundKernel bind_narrow(DeviceContext& context, const Graph& graph, const Node& node) {
  const TensorType &x = graph.type(node.inputs[0]), &y = node.results[0];
  const bool few = node.attr<bool>("trans_b") && y.shape[1] <= kNarrowColumns && x.shape[1] >= 4 * y.shape[1];
  if (!few || !multiplies_directly(graph, node, Grouped(node)) || y.dtype != DType::kBF16) return {};
  ThinProduct product = thin_product(graph, node, x.shape[1], node.inputs[1], node.inputs[2]);
  product.operands_ready = are_ready(graph, node.inputs[1], node.inputs[2]);
  return [product, sms = context.sm_count()](const KernelArgs& args) {
    ThinProduct p = product;
    p.x = args.in[0].data, p.w = args.in[1].data, p.offsets = args.in[2].as<int32_t>(), p.out = args.out[0].data;
    launch_grouped_narrow(p, sms, args.stream);
  };
}

bool is_wide(const Graph& graph, const Node& node) {
  const int64_t k = graph.shape(node.inputs[0])[1];
  return node.attr<bool>("trans_b") && (k == 8 || k == 16 || k == 32 || k == 64) && node.results[0].shape[1] % 8 == 0 &&
         node.results[0].dtype == DType::kBF16 && multiplies_directly(graph, node, Grouped(node));
}

BoundKernel bind_wide(DeviceContext&, const Graph& graph, const Node& node) {
  if (!is_wide(graph, node)) return {};
  ThinProduct product = thin_product(graph, node, graph.shape(node.inputs[0])[1], node.inputs[1], node.inputs[2]);
  product.operands_ready = are_ready(graph, node.inputs[1], node.inputs[2]);
  return [product](const KernelArgs& args) {
    ThinProduct p = product;
    p.x = args.in[0].data, p.w = args.in[1].data, p.offsets = args.in[2].as<int32_t>(), p.out = args.out[0].data;
    launch_grouped_wide(p, args.stream);
  };
}

// (base +) h B^T, where h may be columns of a wider matrix.
BoundKernel bind_addend(DeviceContext&, const Fusion& fusion) {
  const FusionBody& body = fusion.body;
  const Node *grouped = body.member(Op::kGroupedMatmul), *sum = body.member(Op::kAdd);
  if (grouped == nullptr || !is_wide(body.graph(), *grouped)) return {};
  const auto h = body.columns(*grouped, 0);
  const int w = body.input(*grouped, 1), offsets = body.input(*grouped, 2);
  const int base = sum == nullptr ? -1 : body.input(*sum, body.reads(*sum, 0, *grouped) ? 1 : 0);
  ThinProduct product = thin_product(body.graph(), *grouped, h.stride, grouped->inputs[1], grouped->inputs[2]);
  const auto input = [&](int i) { return fusion.node.inputs[static_cast<size_t>(i)]; };
  product.operands_ready = are_ready(fusion.graph, input(w), input(offsets));
  return [=](const KernelArgs& args) {
    ThinProduct p = product;
    p.x = h.in(args.in), p.w = at<const void>(args.in, w), p.base = at<const void>(args.in, base);
    p.offsets = at<int32_t>(args.in, offsets), p.out = args.out[0].data;
    launch_grouped_wide(p, args.stream);
  };
}

// Codes of 4 bits in the order for x.
bool takes_int4(const Graph& graph, const Node& node, const Grouped& g) {
  const DType x = graph.dtype(node.inputs[0]);
  const std::string wanted = x == DType::kE4M3 ? "wgmma_x8" : x == DType::kBF16 ? "wgmma_x16" : "none";
  if (g.order != wanted || !g.trans_b || !is_wide_float(node.results[0].dtype)) return false;
  const std::string &a = node.attr<std::string>("scaling_a"), &b = node.attr<std::string>("scaling_b");
  return (a == "tensor" || a == "row") && b != "tensor" && b != "128x128" &&
         graph.shape(node.inputs[g.offsets])[0] - 1 <= kListedExperts;
}

BoundKernel bind_int4(DeviceContext& context, const Graph& graph, const Node& node) {
  const Grouped g(node);
  if (!takes_int4(graph, node, g)) return {};
  const TensorType& x = graph.type(node.inputs[0]);
  const int64_t group = scale_group(parse_scale_layout(node.attr<std::string>("scaling_b")));
  Int4Product product{.m = x.shape[0],
                      .n = node.results[0].shape[1],
                      .k = x.shape[1],
                      .group = group > 0 ? group : x.shape[1],
                      .dtype = x.dtype,
                      .x_scale_rows = node.attr<std::string>("scaling_a") == "row",
                      .out_dtype = node.results[0].dtype,
                      .experts = static_cast<int>(graph.shape(node.inputs[g.offsets])[0] - 1)};
  product.parts[0].end = product.n;
  const Int4Plan plan = choose(product, context.facts());
  return {[g, product, plan](const KernelArgs& args) mutable {
            product.x = args.in[0].data, product.x_scale = args.in[1].as<float>();
            product.codes = args.in[2].data, product.scales = args.in[3].as<float>();
            product.offsets = args.in[g.offsets].as<int32_t>(), product.zeros = g.zeros(args);
            product.parts[0].out = args.out[0].data;
            launch_int4(product, plan, args.stream);
          },
          [plan](const KernelArgs&) { return to_string(plan); }};
}

constexpr KernelEntry kEntries[] = {
    {{Producer::kRouter}, "router", bind_router},
    {Op::kTopK, "top_k", bind_if<takes_top_k, bind_top_k>},
    {Op::kTopKGrad, "top_k_grad", bind_top_k_grad},
    {Op::kGroupRows, "group_rows", bind_group_rows},
    {Op::kDispatchRows, "dispatch_rows", bind_dispatch},
    {Op::kCombineRows, "combine_rows", bind_combine},
    {Op::kCombineRowsGrad, "combine_rows_grad", bind_combine_grad},
    {{Producer::kAddend}, "grouped_addend", bind_addend},
    {Op::kGroupedMatmul, "grouped_matmul_narrow", bind_narrow},
    {Op::kGroupedMatmul, "grouped_matmul_wide", bind_wide},
    {Op::kGroupedMatmul, "grouped_matmul_gemv", bind_gemv},
    {Op::kGroupedMatmul, "grouped_matmul_wgmma", bind_wgmma},
    {Op::kGroupedMatmul, "grouped_matmul_tiled", bind_tiled},
    {Op::kScaledGroupedMatmul, "scaled_grouped_matmul_int4", bind_int4},
    {Op::kScaledGroupedMatmul, "scaled_grouped_matmul_gemv", bind_gemv},
    {Op::kScaledGroupedMatmul, "scaled_grouped_matmul_wgmma", bind_wgmma},
    {Op::kScaledGroupedMatmul, "scaled_grouped_matmul_tiled", bind_tiled},
    {Op::kGroupedMatmulWgrad, "grouped_matmul_wgrad_wgmma", bind_if<takes_wgrad_wgmma, bind_wgrad_wgmma>},
    {Op::kGroupedMatmulWgrad, "grouped_matmul_wgrad_tiled", bind_wgrad},
};

}  // namespace

std::span<const KernelEntry> experts_kernels() { return kEntries; }

}  // namespace octet::cuda
