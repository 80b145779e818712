// Rows of matmul, scaled_matmul and their fusions: our own kernel for few rows, cuBLASLt, and our own tiled product for
// what the library refuses.
//
// The library's pairs of scale layouts are checked here before it sees them: some mixtures end the process inside it.
#include <algorithm>
#include <array>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/matmul/product.h"
#include "kernels/cuda/matmul/tuning.h"

namespace octet::cuda {
namespace {

constexpr int64_t kAlignment = 256;  // of pieces of the workspace
constexpr int64_t kFp8Multiple = 16, kBlockMultiple = 4;
constexpr int64_t kFewSplitRows = 256;
constexpr double kWarnAboveFlops = 1e9;  // FLOPs of a product whose stand-in is warned of

// --- our own product

bool has_known_types(const Product& p) {
  const auto operand = [](DType dtype) { return is_wide_float(dtype) || is_fp8(dtype); };
  return operand(p.a.dtype) && operand(p.b.dtype) && is_wide_float(p.out) &&
         (p.bias < 0 || is_wide_float(p.bias_dtype)) && (p.c < 0 || p.bias < 0);
}

BoundKernel tiled_kernel(const Product& p) {
  const auto operand = [k = p.k, blocks = p.k_blocks()](const KernelArgs& args, const ProductOperand& x) {
    TiledOperand t{.operand = {args.in[x.input].data, x.dtype},
                   .outer_stride = x.k_inner ? k : 1,
                   .k_stride = x.k_inner ? 1 : x.outer};
    if (!x.scaling) return t;
    t.scale = args.in[x.scale_input].as<float>();
    switch (*x.scaling) {
      case ScaleLayout::kRow: t.scale_outer = 1; break;  // K is contiguous, also of 1x128: the facts
      case ScaleLayout::kRow128: t.k_group = 128, t.scale_outer = 1, t.scale_k = x.outer; break;
      case ScaleLayout::kTile128:
        t.outer_group = t.k_group = 128;
        t.scale_outer = x.k_inner ? blocks : 1, t.scale_k = x.k_inner ? 1 : (x.outer + 127) / 128;
        break;
      default: break;
    }
    return t;
  };
  return [p, operand](const KernelArgs& args) {
    TiledGemm gemm{.m = p.m,
                   .n = p.n,
                   .k = p.k,
                   .a = operand(args, p.a),
                   .b = operand(args, p.b),
                   .c = {at(args.in, p.c), p.out},
                   .out = {args.out[0].data, p.out}};
    if (p.bias >= 0) gemm.c = {at(args.in, p.bias), p.bias_dtype}, gemm.c_is_row = true;
    launch_tiled_gemm(gemm, args.stream);
  };
}

// --- cuBLASLt

// How a bias gets into the product.
enum class BiasPlan : uint8_t {
  kNone,
  kEpilogue,
  kConverted,  // to the result's type first, then the epilogue: the fusion's exception
  kSpread,     // over the rows of the result, which the product then starts from
  kRefused,
};

BiasPlan bias_plan(const Product& p) {
  if (p.bias < 0) return BiasPlan::kNone;
  const bool native = p.bias_dtype == p.out && !(p.fp8() && p.out == DType::kF32);
  if (native) return BiasPlan::kEpilogue;
  if (p.out == DType::kF32) return p.c < 0 ? BiasPlan::kSpread : BiasPlan::kRefused;
  return p.bias_fused() ? BiasPlan::kConverted : BiasPlan::kRefused;
}

struct ScalingPair {
  std::optional<ScaleLayout> a, b;
  GemmScaling library_a, library_b;
};
constexpr ScalingPair kPairs[] = {
    {{}, {}, {}, {}},
    {ScaleLayout::kTensor, ScaleLayout::kTensor, ScaleLayout::kTensor, ScaleLayout::kTensor},
    {ScaleLayout::kRow, ScaleLayout::kRow, ScaleLayout::kRow, ScaleLayout::kRow},
    {ScaleLayout::kRow, ScaleLayout::kTensor, ScaleLayout::kRow, ScaleLayout::kRow},
    {ScaleLayout::kTensor, ScaleLayout::kRow, ScaleLayout::kRow, ScaleLayout::kRow},
    {ScaleLayout::kRow128, ScaleLayout::kRow128, ScaleLayout::kRow128, ScaleLayout::kRow128},
    {ScaleLayout::kRow128, ScaleLayout::kTile128, ScaleLayout::kRow128, ScaleLayout::kTile128},
    {ScaleLayout::kTile128, ScaleLayout::kRow128, ScaleLayout::kTile128, ScaleLayout::kRow128},
};

const ScalingPair* scaling_pair(const Product& p) {
  for (const ScalingPair& pair : kPairs) {
    if (pair.a == p.a.scaling && pair.b == p.b.scaling) return &pair;
  }
  return nullptr;
}

bool runs_on_cublaslt(const Product& p) {
  const ScalingPair* pair = scaling_pair(p);
  if (pair == nullptr || bias_plan(p) == BiasPlan::kRefused || !is_wide_float(p.out)) return false;
  if (!p.fp8()) return p.a.dtype == p.b.dtype && (p.out == p.a.dtype || p.out == DType::kF32);
  const bool k_inner = p.a.k_inner && p.b.k_inner;
  const bool formats = p.a.dtype == DType::kE4M3 || p.b.dtype == DType::kE4M3;
  const bool blocks = pair->library_a == ScaleLayout::kRow128 || pair->library_a == ScaleLayout::kTile128;
  return k_inner && formats && p.k % kFp8Multiple == 0 && p.n % kFp8Multiple == 0 &&
         (!blocks || p.m % kBlockMultiple == 0);
}

// Few rows with a scale each, as in decoding: float32 sums without the rows' scales, which a kernel of ours applies.
// The library's kernels for outer vectors do not split K (16 x 4096 x 16384 on an H200: 44 us, per tensor 22 us).
bool scale_in_separate_kernel(const Product& p) {
  const ScalingPair* pair = scaling_pair(p);
  const bool few = p.m <= 64 || (p.m <= 256 && p.k > p.n);
  return pair->library_a == ScaleLayout::kRow && few && 4 * p.m * p.n <= kGemmWorkspace;
}

// The scales of one side as the library reads them: as they are, or rearranged in the workspace.
enum class ScalePlan : uint8_t { kDirect, kPad, kRepeat };

ScalePlan scale_plan(const ProductOperand& x, GemmScaling library, int64_t k_blocks) {
  switch (library.value_or(ScaleLayout::kTensor)) {
    case ScaleLayout::kRow: return x.scaling == ScaleLayout::kTensor ? ScalePlan::kRepeat : ScalePlan::kDirect;
    case ScaleLayout::kTile128: return k_blocks % 4 != 0 ? ScalePlan::kPad : ScalePlan::kDirect;
    default: return ScalePlan::kDirect;
  }
}

int64_t padded(int64_t k_blocks) { return (k_blocks + 3) / 4 * 4; }

int64_t scale_bytes(const ProductOperand& x, ScalePlan plan, int64_t k_blocks) {
  int64_t count = 0;
  switch (plan) {
    case ScalePlan::kDirect: break;
    case ScalePlan::kPad: count = (x.outer + 127) / 128 * padded(k_blocks); break;
    case ScalePlan::kRepeat: count = x.outer; break;
  }
  return (4 * count + kAlignment - 1) / kAlignment * kAlignment;
}

const float* arrange_scales(const float* from, float* to, const ProductOperand& x, ScalePlan plan, int64_t k_blocks,
                            cudaStream_t stream) {
  switch (plan) {
    case ScalePlan::kDirect: return from;
    case ScalePlan::kPad: launch_pad_scales(from, to, (x.outer + 127) / 128, k_blocks, padded(k_blocks), stream); break;
    case ScalePlan::kRepeat: launch_repeat_scale(from, to, x.outer, stream); break;
  }
  return to;
}

// What the workspace holds: the library's part, then each side's scales and the bias.
struct Layout {
  ScalePlan plan_a, plan_b;
  int64_t scale_a, scale_b, bias, bytes;  // offsets, size
};

Layout layout_of(const Product& p) {
  const ScalingPair& pair = *scaling_pair(p);
  Layout l{.plan_a = scale_plan(p.a, pair.library_a, p.k_blocks()),
           .plan_b = scale_plan(p.b, pair.library_b, p.k_blocks()),
           .scale_a = kGemmWorkspace};
  l.scale_b = l.scale_a + scale_bytes(p.a, l.plan_a, p.k_blocks());
  l.bias = l.scale_b + scale_bytes(p.b, l.plan_b, p.k_blocks());
  l.bytes = l.bias + (bias_plan(p) == BiasPlan::kConverted ? p.n * dtype_bytes(p.out) : 0);
  return l;
}

// The product with the library's choice made; null when it has no kernel.
std::shared_ptr<Gemm> make_gemm(DeviceContext& context, const GemmSpec& spec) {
  auto gemm = std::make_shared<Gemm>(context, spec);
  const auto algorithm = context.library<GemmTuning>().choose(*gemm);
  if (!algorithm) return nullptr;
  gemm->use(*algorithm);
  return gemm;
}

// The fallback where the library has no kernel: correct, and slow for large products.
BoundKernel bind_fallback(const Node& node, const Product& p, const GemmSpec& spec) {
  if (2.0 * static_cast<double>(spec.m) * static_cast<double>(spec.n) * static_cast<double>(spec.k) > kWarnAboveFlops)
    log_warning("cuBLASLt has no kernel for the product {}: a slow one of ours runs instead", spec.key());
  BoundKernel kernel = tiled_kernel(p);
  kernel.fallback_kernel = node.op == Op::kMatmul         ? "matmul_tiled"
                           : node.op == Op::kScaledMatmul ? "scaled_matmul_tiled"
                                                          : "matmul_bias_tiled";
  return kernel;
}

// One product with float32 results; a kernel of ours scales and rounds them and writes the parts.
BoundKernel bind_separate_scale(DeviceContext& context, const Graph& graph, const Node& node, const Product& p) {
  const GemmScaling scaling = p.fp8() ? GemmScaling(ScaleLayout::kTensor) : std::nullopt;
  const GemmSpec gemm_spec{.m = p.m,
                           .n = p.n,
                           .k = p.k,
                           .a = p.a.dtype,
                           .b = p.b.dtype,
                           .out = DType::kF32,
                           .trans_b = true,
                           .scaling_a = scaling,
                           .scaling_b = scaling};
  const auto gemm = make_gemm(context, gemm_spec);
  if (gemm == nullptr && !p.parts.empty()) {
    BoundKernel kernel = bind_split(context, graph, node, p);
    if (kernel.fallback_kernel == nullptr) kernel.fallback_kernel = "matmul_split";
    return kernel;
  }
  if (gemm == nullptr) return bind_fallback(node, p, gemm_spec);
  const auto run = [p, gemm](const KernelArgs& args) {
    const auto scale = [&](const ProductOperand& x, ScaleLayout scaling) {
      return x.scaling == scaling ? args.in[x.scale_input].as<float>() : nullptr;
    };
    float* sums = reinterpret_cast<float*>(args.workspace.data() + kGemmWorkspace);
    gemm->run({.a = args.in[p.a.input].data,
               .b = args.in[p.b.input].data,
               .scale_a = scale(p.a, ScaleLayout::kTensor),
               .scale_b = scale(p.b, ScaleLayout::kTensor),
               .out = sums,
               .workspace = args.workspace.data()},
              args.stream);
    ScaledResult result{.m = p.m,
                        .n = p.n,
                        .sums = sums,
                        .row_scale = scale(p.a, ScaleLayout::kRow),
                        .col_scale = scale(p.b, ScaleLayout::kRow),
                        .c = at(args.in, p.c),
                        .bias = at(args.in, p.bias),
                        .bias_dtype = p.bias_dtype,
                        .out_dtype = p.out,
                        .part_count = static_cast<int>(std::max<size_t>(p.parts.size(), 1))};
    int64_t begin = 0;
    for (int i = 0; i < result.part_count; ++i) {
      const int64_t end = p.parts.empty() ? p.n : begin + p.parts[static_cast<size_t>(i)];
      result.parts[i] = {begin, end, args.out[static_cast<size_t>(i)].data};
      begin = end;
    }
    launch_scale_result(result, args.stream);
  };
  return {run, kGemmWorkspace + 4 * p.m * p.n};
}

BoundKernel bind_cublaslt(DeviceContext& context, const Graph& graph, const Node& node, const Product& p) {
  if (p.form == ProductForm::kSlices || !has_known_types(p) || !runs_on_cublaslt(p)) return {};
  if (!context.has_device()) return without_device();
  if (scale_in_separate_kernel(p)) return bind_separate_scale(context, graph, node, p);
  const ScalingPair& pair = *scaling_pair(p);
  BiasPlan bias = bias_plan(p);
  GemmSpec spec{
      .m = p.m,
      .n = p.n,
      .k = p.k,
      .a = p.a.dtype,
      .b = p.b.dtype,
      .out = p.out,
      .trans_a = !p.a.k_inner,
      .trans_b = p.b.k_inner,
      .addend = p.c >= 0 || bias == BiasPlan::kSpread,
      .scaling_a = pair.library_a,
      .scaling_b = pair.library_b,
      .fast_accumulation = p.forward && (pair.library_a == ScaleLayout::kTensor || pair.library_a == ScaleLayout::kRow),
      .tf32 = p.tf32};
  if (bias == BiasPlan::kEpilogue || bias == BiasPlan::kConverted) spec.bias = p.out;
  auto gemm = make_gemm(context, spec);
  if (gemm == nullptr && spec.bias && !spec.addend) {
    // No such epilogue: 13.1 has none for 768 rows and less of K 16384 with row scales. The product starts from the
    // bias, which the library adds to the rounded product: a narrow result is rounded twice here.
    spec.bias.reset();
    spec.addend = true;
    bias = BiasPlan::kSpread;
    gemm = make_gemm(context, spec);
  }
  if (gemm == nullptr && spec.fast_accumulation) {
    spec.fast_accumulation = false;
    gemm = make_gemm(context, spec);
  }
  if (gemm == nullptr) return bind_fallback(node, p, spec);
  const Layout layout = layout_of(p);
  const auto run = [p, bias, gemm, layout](const KernelArgs& args) {
    GemmOperands operands{.a = args.in[p.a.input].data,
                          .b = args.in[p.b.input].data,
                          .c = p.c >= 0 ? at(args.in, p.c) : args.out[0].data,
                          .out = args.out[0].data,
                          .workspace = args.workspace.data()};
    const auto scratch = [&](int64_t offset) { return args.workspace.data() + offset; };
    if (p.fp8()) {
      operands.scale_a =
          arrange_scales(args.in[p.a.scale_input].as<float>(), reinterpret_cast<float*>(scratch(layout.scale_a)), p.a,
                         layout.plan_a, p.k_blocks(), args.stream);
      operands.scale_b =
          arrange_scales(args.in[p.b.scale_input].as<float>(), reinterpret_cast<float*>(scratch(layout.scale_b)), p.b,
                         layout.plan_b, p.k_blocks(), args.stream);
    }
    if (bias != BiasPlan::kNone) {
      operands.bias = at(args.in, p.bias);
      if (bias == BiasPlan::kConverted) {
        launch_spread_bias(operands.bias, p.bias_dtype, scratch(layout.bias), p.out, 1, p.n, args.stream);
        operands.bias = scratch(layout.bias);
      }
      if (bias == BiasPlan::kSpread)
        launch_spread_bias(operands.bias, p.bias_dtype, operands.out, p.out, p.m, p.n, args.stream);
    }
    gemm->run(operands, args.stream);
  };
  return {run, layout.bytes};
}

// The rest. What the library has no kernel for after all is known when binding to a device.
BoundKernel bind_tiled(DeviceContext&, const Graph&, const Node&, const Product& p) {
  const bool takes = p.form != ProductForm::kSlices && has_known_types(p) && !runs_on_cublaslt(p);
  return takes ? tiled_kernel(p) : BoundKernel();
}

// The parts of a split with few rows come from one product: one by one they are too small to fill the device.
BoundKernel bind_few_split(DeviceContext& context, const Graph& graph, const Node& node, const Product& p) {
  const ScalingPair* pair = takes_split(p) ? scaling_pair(p) : nullptr;
  const bool scaled =
      pair != nullptr && pair->library_a != ScaleLayout::kRow128 && pair->library_a != ScaleLayout::kTile128;
  const bool takes = scaled && p.a.k_inner && p.m <= kFewSplitRows && 4 * p.m * p.n <= kGemmWorkspace &&
                     p.parts.size() <= kGemvParts && has_known_types(p) && runs_on_cublaslt(p) &&
                     std::ranges::all_of(p.parts, [](int64_t columns) { return columns % 4 == 0; });
  if (!takes) return {};
  return context.has_device() ? bind_separate_scale(context, graph, node, p) : without_device();
}

constexpr KernelEntry kKernels[] = {
    {Op::kMatmul, "matmul_gemv", bind_product<bind_gemv>},
    {Op::kMatmul, "matmul_cublaslt", bind_product<bind_cublaslt>},
    {Op::kMatmul, "matmul_tiled", bind_product<bind_tiled>},
    {Op::kScaledMatmul, "scaled_matmul_int8", bind_product<bind_int8>},
    {Op::kScaledMatmul, "scaled_matmul_int4", bind_product<bind_int4>},
    {Op::kScaledMatmul, "scaled_matmul_integer_tiled", bind_product<bind_integer_tiled>},
    {Op::kScaledMatmul, "scaled_matmul_gemv", bind_product<bind_gemv>},
    {Op::kScaledMatmul, "scaled_matmul_cublaslt", bind_product<bind_cublaslt>},
    {Op::kScaledMatmul, "scaled_matmul_tiled", bind_product<bind_tiled>},
    {Op::kFusion, "matmul_int8", bind_product<bind_int8>},
    {Op::kFusion, "matmul_int4", bind_product<bind_int4>},
    {Op::kFusion, "matmul_integer_tiled", bind_product<bind_integer_tiled>},
    {Op::kFusion, "matmul_gemv", bind_product<bind_gemv>},
    {Op::kFusion, "matmul_split_few", bind_product<bind_few_split>},
    {Op::kFusion, "matmul_split", bind_product<bind_split>},
    {Op::kFusion, "matmul_bias_cublaslt", bind_product<bind_cublaslt>},
    {Op::kFusion, "matmul_bias_tiled", bind_product<bind_tiled>},
};

}  // namespace

std::span<const KernelEntry> matmul_kernels() { return kKernels; }

}  // namespace octet::cuda
