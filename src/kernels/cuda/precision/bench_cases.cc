// Sizes of real models: 8192 tokens of a hidden size of 4096 and an inner size of 16384; every scaling.
#include "ir/nf4.h"
#include "kernels/cuda/pair_cases.h"

namespace octet::cuda {
namespace {

// As a fusion of one member, whose other results are unused.
cpu::Case quantize_alone(const std::string& scaling, int64_t rows, int64_t cols, const std::vector<int32_t>& results) {
  cpu::Case c{.op = Op::kFusion,
              .name = fmt::format("quantize_{}_e4m3_{}x{}", scaling, rows, cols),
              .inputs = {cpu::x({rows, cols})},
              .dtypes = {DType::kBF16}};
  c.body = [=](const std::vector<TensorType>& types) {
    Graph body("quantize");
    const NodeId leaf = body.add({.op = Op::kInput, .results = {types[0]}, .name = "x"});
    const NodeId quantize =
        body.add({.op = Op::kQuantize,
                  .inputs = {{leaf, 0}},
                  .attrs = {{"format", std::string("e4m3")}, {"scaling", scaling}, {"pow2", scaling != "row"}},
                  .name = "quantize"});
    for (int32_t result : results) body.outputs().push_back({fmt::format("quantize.{}", result), {quantize, result}});
    return body;
  };
  return c;
}

}  // namespace

std::vector<cpu::Case> precision_bench_cases() {
  using namespace cpu;
  std::vector<Case> cases;
  for (const Shape& shape : {Shape{8192, 4096}, Shape{8192, 16384}, Shape{512, 4096}}) {
    for (const char* format : {"e4m3", "e5m2"}) {
      for (const char* scaling : {"tensor", "row", "1x128", "128x128"}) {
        const bool tensor = std::string(scaling) == "tensor";
        if (format == std::string("e5m2") && !tensor) continue;
        Case c{.op = Op::kQuantize,
               .name = fmt::format("{}_{}_{}x{}", scaling, format, shape[0], shape[1]),
               .inputs = {x(shape)},
               .attrs = {{"format", std::string(format)},
                         {"scaling", std::string(scaling)},
                         {"pow2", !tensor},
                         {"margin", int64_t{0}}}};
        if (tensor) c.inputs.push_back(given(DType::kF32, {1}, {37.25}));
        cases.push_back(std::move(c));
      }
    }
  }
  for (int64_t cols : {4096, 16384}) {
    Case c = scale_quantize_case({.rows = 8192, .cols = cols, .results = {"quantize.0", "quantize.1", "quantize.2"}});
    c.dtypes = {DType::kBF16};
    cases.push_back(std::move(c));
  }
  // A training step wants no amax of blocks.
  for (int64_t cols : {4096, 16384}) cases.push_back(quantize_alone("1x128", 8192, cols, {0, 1, 2, 3}));
  // Serving: codes and scales of a step's rows.
  for (int64_t rows : {1, 8, 768, 1024, 2048}) cases.push_back(quantize_alone("row", rows, 4096, {0, 1}));
  for (const char* blocks : {"1x128", "128x128"}) {
    cases.push_back({.op = Op::kTensorStats,
                     .name = fmt::format("{}_8192x4096", blocks),
                     .inputs = {x({8192, 4096})},
                     .attrs = {{"format", std::string("e4m3")}, {"blocks", std::string(blocks)}}});
  }
  struct Layout {
    const char* scaling;
    Shape scale;
  };
  for (const Layout& layout : {Layout{"tensor", {1}}, Layout{"1x128", {32, 8192}}}) {
    for (const char* to : {"f32", "bf16"}) {
      cases.push_back({.op = Op::kDequantize,
                       .name = fmt::format("{}_8192x4096_to_{}", layout.scaling, to),
                       .inputs = {x({8192, 4096}), uniform(DType::kF32, layout.scale, 0.001, 2)},
                       .attrs = {{"scaling", std::string(layout.scaling)}, {"to", std::string(to)}},
                       .dtypes = {DType::kE4M3}});
    }
  }
  for (const Shape& shape : {Shape{4096, 4096}, Shape{14336, 4096}}) {
    const Nf4Shapes beside = nf4_shapes(shape, 64);
    cases.push_back(
        {.op = Op::kDequantizeNf4,
         .name = fmt::format("{}x{}", shape[0], shape[1]),
         .inputs = {integers(DType::kI4, shape, -8, 8), integers(DType::kI8, beside.magnitudes, -128, 128),
                    uniform(DType::kF32, beside.scales, 0.001, 2), uniform(DType::kF32, beside.offsets, 0.001, 2)},
         .attrs = {{"group", int64_t{64}}, {"to", std::string("bf16")}},
         .dtypes = {DType::kI4}});
  }
  cases.push_back({.op = Op::kUpdateScales,
                   .name = "16",
                   .inputs = {normal(DType::kF32, {16}), given(DType::kF32, {1}, {3})},
                   .attrs = {{"format", std::string("e4m3")}, {"algo", std::string("max")}},
                   .dtypes = {DType::kF32}});
  return cases;
}

}  // namespace octet::cuda
