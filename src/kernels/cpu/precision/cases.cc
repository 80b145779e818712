// Cases of quantization: every format and scaling, edge blocks, zeros, values that saturate, NaN and infinity.
// Codes, scales and amaxes must be equal everywhere.
#include "kernels/cpu/testing/cases.h"

#include "ir/nf4.h"

namespace octet::cpu {
namespace {

Attrs format_attrs(DType format, bool pow2, int64_t margin = 0) {
  return {{"format", std::string(dtype_name(format))}, {"pow2", pow2}, {"margin", margin}};
}

CaseInput rough(Shape shape) {  // magnitudes over 12 binades, some zero rows and blocks
  return {.dtype = {}, .shape = std::move(shape), .fill = [](Philox& random, std::vector<double>& values) {
            for (size_t i = 0; i < values.size(); ++i) {
              values[i] =
                  i % 200 < 10 ? 0.0 : random.normal() * std::ldexp(1.0, static_cast<int>(random.below(12)) - 6);
            }
          }};
}

// NaNs of both signs, infinities and numbers of any size, and tile rows without them.
CaseInput special(Shape shape) {
  const int64_t cols = shape.cols();
  return {.dtype = {}, .shape = std::move(shape), .fill = [cols](Philox& random, std::vector<double>& values) {
            const double odd[] = {NAN, std::copysign(NAN, -1.0), INFINITY, -INFINITY, 3e38, -3e38, 1e-39, -1e-39};
            for (size_t i = 0; i < values.size(); ++i) {
              const bool plain = static_cast<int64_t>(i) / cols % 128 < 64;
              values[i] = !plain && random.below(60) == 0 ? odd[random.below(8)] : random.normal();
            }
          }};
}

// Every 50th column is 2^14 times as large as the others, too wide a range for one scale.
CaseInput outliers(Shape shape) {
  const int64_t cols = shape.cols();
  return {.dtype = {}, .shape = std::move(shape), .fill = [cols](Philox& random, std::vector<double>& values) {
            for (size_t i = 0; i < values.size(); ++i) {
              values[i] = random.normal() * (static_cast<int64_t>(i) % cols % 50 == 7 ? 16384.0 : 1.0);
            }
          }};
}

Tolerance sums_of_ratios() {
  return {.relative = 1e-5,
          .absolute = 1e-9,
          .reason = "counts are exact; ratios of sums of up to 128 squares, and their mean, in float32 or wider"};
}

}  // namespace

std::vector<Case> precision_cases() {
  std::vector<Case> cases;
  const double inf = INFINITY, nan = NAN;
  for (const DType format : {DType::kI8, DType::kI4}) {
    for (const char* scaling : {"row", "1x32", "1x64", "1x128"}) {
      if (format == DType::kI8 && scale_group(parse_scale_layout(scaling)) % 128 == 0) continue;  // among those below
      Attrs attrs = format_attrs(format, false);
      attrs.set("scaling", std::string(scaling));
      for (const Shape& shape : {Shape{16, 256}, Shape{6, 90}, Shape{130, 144}})
        cases.push_back({.op = Op::kQuantize,
                         .name = fmt::format("{}_{}x{}_{}_groups", scaling, shape[0], shape[1], dtype_name(format)),
                         .inputs = {rough(shape)},
                         .attrs = attrs,
                         .gradient = false});
    }
    for (const char* scaling : {"row", "1x32", "1x64", "1x128"}) {
      const Shape scales = scale_shape(parse_scale_layout(scaling), 22, 256);
      for (const bool zero : {false, true}) {
        Case c{.op = Op::kDequantize,
               .name = fmt::format("{}_22x256_{}{}", scaling, dtype_name(format), zero ? "_zeros" : ""),
               .inputs = {integers(format, {22, 256}, -8, 8), uniform(DType::kF32, scales, 0.001, 2)},
               .attrs = {{"scaling", std::string(scaling)}, {"to", std::string("bf16")}},
               .dtypes = {format},
               .gradient = false};
        if (zero) c.inputs.push_back(integers(DType::kI8, scales, -8, 9));
        cases.push_back(std::move(c));
      }
    }
  }
  for (DType format : {DType::kE4M3, DType::kE5M2, DType::kI8}) {
    const std::string suffix = std::string("_") + dtype_name(format);
    for (const char* scaling : {"tensor", "1x128", "128x128", "row"}) {
      const bool tensor = std::string(scaling) == "tensor";
      Attrs attrs = format_attrs(format, std::string(scaling).ends_with("128"));
      attrs.set("scaling", std::string(scaling));
      const auto add = [&](const std::string& name, CaseInput input, bool large = false) {
        Case c{.op = Op::kQuantize,
               .name = std::string(scaling) + "_" + name + suffix,
               .inputs = {std::move(input)},
               .attrs = attrs,
               .large = large,
               .gradient = false};
        if (tensor) c.inputs.push_back(given(DType::kF32, {1}, {37.25}));
        cases.push_back(std::move(c));
      };
      add("3x5", rough({3, 5}));
      add("130x257", rough({130, 257}));
      add("300x520", rough({300, 520}));
      add("256x384", rough({256, 384}));  // whole vectors, whole and cut tiles
      add("144x272", rough({144, 272}));
      add("130x144", rough({130, 144}));
      add("special_144x272", special({144, 272}));
      add("3x9000", rough({3, 9000}));
      add("2x33000", rough({2, 33000}));
      add("2x33001", rough({2, 33001}));
      add("zeros", given_x({2, 3}, {0, -0.0, 0, 0, 0, 0}));
      add("not_finite", given_x({2, 3}, {1, nan, 3, inf, -2, 7}));
      add("negative_nan", given_x({2, 3}, {1, std::copysign(nan, -1.0), 3, 4, -2, 7}));
      add("tiny", given_x({2, 2}, {1e-39, -2e-39, 1e-40, 0}));
      if (format == DType::kE4M3) add("1024x1024", x({1024, 1024}), true);
    }
    struct Layout {
      const char* scaling;
      Shape scale;
    };
    for (const Layout& layout :
         {Layout{"tensor", {1}}, Layout{"row", {130}}, Layout{"1x128", {2, 130}}, Layout{"128x128", {2, 2}}}) {
      for (const char* to : {"f32", "bf16"}) {
        for (int64_t cols : {140, 144}) {
          cases.push_back({.op = Op::kDequantize,
                           .name = fmt::format("{}_130x{}_to_{}", layout.scaling, cols, to),
                           .inputs = {codes(format, {130, cols}), uniform(DType::kF32, layout.scale, 0.001, 2)},
                           .attrs = {{"scaling", std::string(layout.scaling)}, {"to", std::string(to)}},
                           .dtypes = {format},
                           .gradient = false});
        }
      }
    }
    if (!is_fp8(format)) continue;  // the cases below are scales and statistics of training
    for (double amax : {0.0, 3.7, 448.0, 1e-39, inf, nan}) {
      cases.push_back({.op = Op::kComputeScale,
                       .name = fmt::format("{}{}", amax, suffix),
                       .inputs = {given(DType::kF32, {1}, {amax})},
                       .attrs = format_attrs(format, false, 1),
                       .dtypes = {DType::kF32},
                       .gradient = false});
      cases.push_back({.op = Op::kComputeScale,
                       .name = fmt::format("{}_pow2{}", amax, suffix),
                       .inputs = {given(DType::kF32, {1}, {amax})},
                       .attrs = format_attrs(format, true),
                       .dtypes = {DType::kF32},
                       .gradient = false});
    }
    for (const char* algo : {"max", "most_recent"}) {
      Attrs attrs = format_attrs(format, false, 0);
      attrs.set("algo", std::string(algo));
      for (double amax : {0.5, 9.0, 0.0, inf, nan}) {
        cases.push_back({.op = Op::kUpdateScales,
                         .name = fmt::format("{}_{}{}", algo, amax, suffix),
                         .inputs = {given(DType::kF32, {4}, {2, 8, 1, 16}), given(DType::kF32, {1}, {amax})},
                         .attrs = attrs,
                         .dtypes = {DType::kF32},
                         .gradient = false});
      }
      for (double finite : {0.0, 1.0}) {
        cases.push_back({.op = Op::kUpdateScales,
                         .name = fmt::format("{}_finite_{}{}", algo, finite, suffix),
                         .inputs = {given(DType::kF32, {4}, {2, 8, 1, 16}), given(DType::kF32, {1}, {1e30}),
                                    given(DType::kF32, {1}, {finite})},
                         .attrs = attrs,
                         .dtypes = {DType::kF32},
                         .gradient = false});
      }
      cases.push_back({.op = Op::kUpdateScales,
                       .name = fmt::format("{}_300{}", algo, suffix),
                       .inputs = {normal(DType::kF32, {300}), given(DType::kF32, {1}, {0.25})},
                       .attrs = attrs,
                       .dtypes = {DType::kF32},
                       .gradient = false});
      cases.push_back({.op = Op::kUpdateScales,
                       .name = fmt::format("{}_one{}", algo, suffix),
                       .inputs = {given(DType::kF32, {1}, {2}), given(DType::kF32, {1}, {3})},
                       .attrs = attrs,
                       .dtypes = {DType::kF32},
                       .gradient = false});
    }
    for (const char* blocks : {"1x128", "128x128"}) {
      Attrs attrs = format_attrs(format, false);
      attrs.set("blocks", std::string(blocks));
      const auto add = [&](const std::string& name, CaseInput input, bool large = false) {
        cases.push_back({.op = Op::kTensorStats,
                         .name = std::string(blocks) + "_" + name + suffix,
                         .inputs = {std::move(input)},
                         .attrs = attrs,
                         .tolerance = sums_of_ratios(),
                         .large = large,
                         .gradient = false});
      };
      add("3x5", rough({3, 5}));
      add("130x257", rough({130, 257}));
      add("300x520", rough({300, 520}));
      add("outlier_columns", outliers({140, 200}));
      add("zeros", given_x({2, 3}, {0, -0.0, 0, 0, 0, 0}));
      add("not_finite", given_x({2, 3}, {1, nan, 3, inf, -2, 7}));
      add("tiny", given_x({2, 2}, {1e-39, -2e-39, 1e-40, 0}));
      if (format == DType::kE4M3) add("1024x1024", x({1024, 1024}), true);
    }
  }
  // Whole blocks in a row, of one scale and of several; blocks that go across rows, the last one cut.
  for (const auto& [shape, group] : {std::pair{Shape{22, 256}, 4},
                                     {Shape{8, 1344}, 1},
                                     {Shape{6, 896}, 2},
                                     {Shape{10, 36}, 4},
                                     {Shape{40, 1000}, 256},
                                     {Shape{4096, 4096}, 64}}) {
    for (const char* to : {"f32", "bf16"}) {
      const Nf4Shapes beside = nf4_shapes(shape, group);
      cases.push_back(
          {.op = Op::kDequantizeNf4,
           .name = fmt::format("{}x{}_{}_to_{}", shape[0], shape[1], group, to),
           .inputs = {integers(DType::kI4, shape, -8, 8), integers(DType::kI8, beside.magnitudes, -128, 128),
                      uniform(DType::kF32, beside.scales, 0.001, 2), uniform(DType::kF32, beside.offsets, 0.001, 2)},
           .attrs = {{"group", int64_t{group}}, {"to", std::string(to)}},
           .dtypes = {DType::kI4},
           .large = shape[1] == 4096,
           .gradient = false});
    }
  }
  // dequantize names repeat per format; the variant's type distinguishes them.
  return cases;
}

}  // namespace octet::cpu
