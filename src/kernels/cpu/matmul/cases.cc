// Cases of the matrix products: all transpositions, odd sizes, addends, every scaling of the FP8 product.
#include <cmath>

#include "ir/builder.h"
#include "kernels/cpu/testing/cases.h"

namespace octet::cpu {
namespace {

Case product(const std::string& name, int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b) {
  return {.op = Op::kMatmul,
          .name = name + (trans_a ? "_ta" : "") + (trans_b ? "_tb" : ""),
          .inputs = {x(trans_a ? Shape{k, m} : Shape{m, k}), x(trans_b ? Shape{n, k} : Shape{k, n})},
          .attrs = {{"trans_a", trans_a}, {"trans_b", trans_b}},
          .tolerance = accumulated(k)};
}

// The definition multiplies exact float32 operands; tensor cores may round each to 10 bits of mantissa, to nearest or
// toward zero.
Case rounded_product(const std::string& name, int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b) {
  Case c = product("tf32_" + name, m, n, k, trans_a, trans_b);
  c.attrs.set("tf32", true);
  c.tolerance = {.relative = 0x1p-9,
                 .absolute = 6 * 0x1p-11 * std::sqrt(static_cast<double>(k)),
                 .reason = "two operands off by 2^-10 of themselves; six deviations of a sum of k such products"};
  c.dtypes = {DType::kF32};
  c.gradient = false;
  return c;
}

CaseInput scales(Shape shape) { return uniform(DType::kF32, std::move(shape), 0.5, 1.5); }

CaseInput powers_of_two(Shape shape) {
  return {.dtype = DType::kF32, .shape = std::move(shape), .fill = [](Philox& random, std::vector<double>& values) {
            for (double& value : values) value = std::ldexp(1.0, static_cast<int>(random.below(4)) - 2);
          }};
}

// Shape of the scale_inv of codes of this shape.
Shape scale_shape(const std::string& scaling, const Shape& codes) {
  return octet::scale_shape(parse_scale_layout(scaling), codes[0], codes[1]);
}

// codes with |value| up to 448 or 57344, brought near 1 by small scales: sums stay comparable with accumulated().
Case scaled(const std::string& name, int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b,
            const std::string& scaling_a, const std::string& scaling_b, DType format_a, DType format_b,
            const std::string& to) {
  const Shape a = trans_a ? Shape{k, m} : Shape{m, k}, b = trans_b ? Shape{n, k} : Shape{k, n};
  return {.op = Op::kScaledMatmul,
          .name = name,
          .inputs = {normal(format_a, a), scales(scale_shape(scaling_a, a)), normal(format_b, b),
                     scales(scale_shape(scaling_b, b))},
          .attrs = {{"trans_a", trans_a},
                    {"trans_b", trans_b},
                    {"scaling_a", scaling_a},
                    {"scaling_b", scaling_b},
                    {"to", to}},
          .tolerance = {.relative = 1e-6,
                        .absolute = 4e-7 * static_cast<double>(k < 16 ? 16 : k),
                        .reason = "as accumulated(k), with scales up to 1.5 on either side"},
          .dtypes = {DType::kF32}};
}

// Codes of small integers and scales of powers of two: every partial sum is exact, also in tensor cores' FP8
// accumulators of 14 bits, so that any misplaced scale or code is detected. K-contiguous operands, as they require.
Case whole(const std::string& name, int64_t m, int64_t n, int64_t k, const std::string& scaling_a,
           const std::string& scaling_b, DType format_a, DType format_b, const std::string& to) {
  Case c = scaled("whole_" + name, m, n, k, false, true, scaling_a, scaling_b, format_a, format_b, to);
  c.inputs = {integers(format_a, {m, k}, -2, 3), powers_of_two(scale_shape(scaling_a, {m, k})),
              integers(format_b, {n, k}, -2, 3), powers_of_two(scale_shape(scaling_b, {n, k}))};
  c.tolerance = exact();
  c.attrs.set("role", std::string("fprop"));
  return c;
}

// matmul or scaled_matmul with a bias added, as one fusion.
Case with_bias(Case c, DType bias_dtype) {
  const int64_t n = c.inputs[c.op == Op::kMatmul ? 1 : 2].shape[0];  // trans_b
  c.body = [op = c.op, attrs = c.attrs](const std::vector<TensorType>& inputs) {
    Graph body("body");
    std::vector<Value> leaves;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const std::string name = i + 1 < inputs.size() ? fmt::format("matmul.{}", i) : "bias.1";
      leaves.push_back({body.add({.op = Op::kInput, .results = {inputs[i]}, .name = name}), 0});
    }
    const Value bias = leaves.back();
    leaves.pop_back();
    const NodeId product = body.add({.op = op, .inputs = leaves, .attrs = attrs, .name = "matmul"});
    const NodeId sum = body.add({.op = Op::kAdd, .inputs = {{product, 0}, bias}, .name = "bias"});
    body.outputs().push_back({"bias.0", {sum, 0}});
    return body;
  };
  c.name = fmt::format("{}_{}_bias_{}", op_name(c.op), c.name, dtype_name(bias_dtype));
  c.op = Op::kFusion;
  c.attrs = {};
  c.inputs.push_back(normal(bias_dtype, {n}, 0.25));
  c.gradient = false;
  return c;
}

// Slices of the product's columns, as one fusion.
Case split(Case c, std::vector<int64_t> widths) {
  c.body = [op = c.op, attrs = c.attrs, widths](const std::vector<TensorType>& inputs) {
    Graph body("body");
    Builder builder(body);
    std::vector<Value> leaves;
    for (size_t i = 0; i < inputs.size(); ++i)
      leaves.push_back({body.add({.op = Op::kInput, .results = {inputs[i]}, .name = fmt::format("matmul.{}", i)}), 0});
    const Value product{body.add({.op = op, .inputs = leaves, .attrs = attrs, .name = "matmul"}), 0};
    int64_t begin = 0;
    for (size_t i = 0; i < widths.size(); begin += widths[i++])
      body.outputs().push_back({fmt::format("part{}.0", i), builder.slice(product, 1, begin, begin + widths[i])});
    return body;
  };
  c.name = fmt::format("{}_{}_split", op_name(c.op), c.name);
  c.op = Op::kFusion;
  c.attrs = {};
  c.gradient = false;
  return c;
}

// Int8 codes over their whole range, from few rows to several blocks.
std::vector<Case> int8_cases() {
  const DType i8 = DType::kI8;
  std::vector<Case> cases;
  const auto add = [&](Case c) {
    c.inputs[0] = codes(i8, c.inputs[0].shape);
    c.inputs[2] = codes(i8, c.inputs[2].shape);
    c.tolerance = {.relative = 3e-7,
                   .reason = "integer sums; rounded to float32, then times two scales: four roundings"};
    cases.push_back(std::move(c));
  };
  for (int64_t m : {1, 2, 3, 4, 5, 8, 9, 130})
    add(scaled(fmt::format("i8_{}x67x1153", m), m, 67, 1153, false, true, "row", "row", i8, i8, "f32"));
  // Whole pieces of 16 bytes, which tensor cores take: tails of tiles in every dim, and K shared by blocks.
  for (int64_t m : {7, 17, 70, 130, 300}) {
    add(scaled(fmt::format("i8_{}x264x1168", m), m, 264, 1168, false, true, "row", "row", i8, i8, "bf16"));
    cases.back().tolerance = {.relative = 0x1p-8,
                              .absolute = 1e-9,
                              .reason =
                                  "one rounding to bf16, of values four roundings apart; the definition scales "
                                  "before it sums, so that sums of 0 are not"};
    add(scaled(fmt::format("i8_{}x264x1168_f32", m), m, 264, 1168, false, true, "row", "row", i8, i8, "f32"));
  }
  add(scaled("i8_20x3x1168", 20, 3, 1168, false, true, "row", "tensor", i8, i8, "f32"));
  add(scaled("i8_3x200x8192", 3, 200, 8192, false, true, "row", "row", i8, i8, "f32"));
  add(scaled("i8_20x3x8192", 20, 3, 8192, false, true, "row", "row", i8, i8, "f32"));
  add(scaled("i8_tensor_7x40x64", 7, 40, 64, false, true, "tensor", "tensor", i8, i8, "f32"));
  add(scaled("i8_dgrad_33x24x39", 33, 24, 39, false, false, "tensor", "tensor", i8, i8, "f32"));
  add(scaled("i8_wgrad_24x17x41", 24, 17, 41, true, false, "tensor", "tensor", i8, i8, "f32"));
  for (int64_t m : {1, 6, 40}) {
    const Shape out{m, 80};
    cases.push_back(whole(fmt::format("i8_{}_rows", m), m, 80, 272, "row", "row", i8, i8, "bf16"));
    cases.push_back(whole(fmt::format("i8_{}_rows_f16", m), m, 80, 272, "row", "tensor", i8, i8, "f16"));
    Case sum = whole(fmt::format("i8_residual_{}_rows", m), m, 80, 272, "row", "row", i8, i8, "bf16");
    sum.inputs.push_back(integers(DType::kBF16, out, -8, 9));
    cases.push_back(sum);
    sum = whole(fmt::format("i8_bias_{}_rows", m), m, 80, 272, "row", "row", i8, i8, "f32");
    sum.inputs.push_back(integers(DType::kF32, {80}, -8, 9));
    cases.push_back(sum);
  }
  for (int64_t m : {4, 40, 600}) {
    const Case wide = whole(fmt::format("i8_{}x560x400", m), m, 560, 400, "row", "row", i8, i8, "bf16");
    cases.push_back(split(wide, {272, 16, 272}));
    cases.push_back(with_bias(wide, DType::kF32));
  }
  // Scales that vary along K, and only one side in FP8: a float32 product.
  cases.push_back(whole("i8_blocks", 6, 140, 300, "1x128", "128x128", i8, i8, "f32"));
  cases.push_back(whole("i8_e4m3", 6, 40, 96, "row", "row", i8, DType::kE4M3, "f32"));
  return cases;
}

// Weights in integers by groups, with zero points and without, in rows and in the order of a kernel, by x of every
// kind.
std::vector<Case> group_cases() {
  const DType i4 = DType::kI4, i8 = DType::kI8;
  std::vector<Case> cases;
  const auto add = [&](int64_t m, int64_t n, int64_t k, const std::string& scaling, DType x, DType format, bool zero,
                       const std::string& order = "") {
    const std::string name = fmt::format("{}_{}_{}x{}x{}_{}{}{}", dtype_name(x), dtype_name(format), m, n, k, scaling,
                                         zero ? "_zeros" : "", order.empty() ? "" : "_" + order);
    Case c = scaled(name, m, n, k, false, true, is_code(x) ? "row" : "tensor", scaling, x, format, "bf16");
    if (is_integer_code(x)) c.inputs[0] = codes(x, {m, k});
    c.inputs[2] = integers(format, {n, k}, -8, 8);
    c.inputs[3] = uniform(DType::kF32, scale_shape(scaling, {n, k}), 0.01, 0.1);
    if (zero) {
      c.inputs.push_back(absent());
      c.inputs.push_back(integers(i8, scale_shape(scaling, {n, k}), -8, 9));
    }
    if (!order.empty()) c.attrs.set("order", order);
    c.tolerance.reason = "as accumulated(k); codes of up to 8 less zero points of up to 8, scales of up to 0.1";
    c.tolerance.absolute *= is_integer_code(x) ? 127 : 4;
    cases.push_back(std::move(c));
  };
  for (const char* scaling : {"1x32", "1x64", "1x128", "row"})
    for (const bool zero : {false, true}) {
      for (const DType x : {i8, DType::kE4M3, DType::kBF16}) {
        add(3, 48, 256, scaling, x, i4, zero);
        add(3, 34, 256, scaling, x, i8, zero);
      }
      for (const int64_t m : {1, 5, 40}) add(m, 48, 256, scaling, i8, i4, zero, "rows16");
    }
  for (const DType x : {DType::kE4M3, DType::kBF16})  // any number of rows; K in turns of 1, 2 and more
    for (const char* scaling : {"1x32", "1x64", "1x128", "row"})
      for (const bool zero : {false, true})
        for (const int64_t m : {1, 9, 17, 40, 70, 200})
          add(m, m < 9 ? 384 : 128,
              m == 17 ? 128
              : m < 9 ? 1408
                      : 640,
              scaling, x, i4, zero, x == DType::kBF16 ? "wgmma_x16" : "wgmma_x8");
  add(129, 140 * 128, 384, "1x128", DType::kE4M3, i4, false, "wgmma_x8");  // more tiles than a GPU has SMs
  add(7, 16, 96, "1x32", i8, i4, true, "rows16");
  add(2, 32, 200, "row", i8, i4, false, "rows16");
  return cases;
}

// Few rows, as in decoding: tails of rows and columns, K shared by several blocks.
std::vector<Case> few_rows_cases() {
  const DType e4 = DType::kE4M3;
  std::vector<Case> cases = {product("8x40x336", 8, 40, 336, false, true),
                             product("3x520x64", 3, 520, 64, false, true),
                             whole("row_row_5_rows", 5, 40, 272, "row", "row", e4, e4, "bf16"),
                             whole("tensor_row_8_rows", 8, 4240, 160, "tensor", "row", e4, e4, "bf16"),
                             whole("row_tensor_2_rows", 2, 48, 32768, "row", "tensor", e4, e4, "f32"),
                             whole("block_3_rows", 3, 272, 400, "1x128", "128x128", e4, e4, "bf16"),
                             whole("block_8_rows", 8, 144, 8320, "1x128", "128x128", e4, e4, "f32")};
  for (int64_t m : {1, 2, 3, 4, 5, 6, 7, 8}) {  // odd depths and widths: vector tails
    cases.push_back(product(fmt::format("{}x67x1001", m), m, 67, 1001, false, true));
    Case wide = product(fmt::format("{}x67x200_f32_bf16", m), m, 67, 200, false, true);
    wide.inputs[1] = normal(DType::kBF16, {67, 200});
    wide.dtypes = {DType::kF32};
    cases.push_back(wide);
  }
  Case sum = whole("residual_4_rows", 4, 80, 272, "row", "row", e4, e4, "bf16");
  sum.inputs.push_back(integers(DType::kBF16, {4, 80}, -8, 9));
  cases.push_back(sum);
  sum = whole("bias_4_rows", 4, 80, 272, "row", "row", e4, e4, "f32");
  sum.inputs.push_back(integers(DType::kF32, {80}, -8, 9));
  cases.push_back(sum);
  for (int64_t m : {1, 7, 24}) {
    cases.push_back(split(whole(fmt::format("{}_rows", m), m, 96, 144, "row", "row", e4, e4, "bf16"), {48, 16, 32}));
    cases.push_back(
        split(whole(fmt::format("{}_rows_block", m), m, 256, 144, "1x128", "128x128", e4, e4, "bf16"), {128, 128}));
    Case plain = product(fmt::format("{}_rows", m), m, 96, 144, false, true);
    plain.dtypes = {DType::kBF16};
    cases.push_back(split(plain, {48, 16, 32}));
  }
  return cases;
}

std::vector<Case> tensor_core_cases() {
  const DType e4 = DType::kE4M3, e5 = DType::kE5M2;
  std::vector<Case> cases = {whole("tensor", 64, 48, 80, "tensor", "tensor", e4, e4, "bf16"),
                             whole("tensor_e5m2_e4m3", 64, 48, 160, "tensor", "tensor", e5, e4, "f32"),
                             whole("tensor_e4m3_e5m2", 32, 144, 96, "tensor", "tensor", e4, e5, "f32"),
                             whole("tensor_e5m2_e5m2", 32, 16, 64, "tensor", "tensor", e5, e5, "f32"),
                             whole("tensor_one_row", 1, 64, 256, "tensor", "tensor", e4, e4, "bf16"),
                             whole("tensor_f16", 16, 64, 256, "tensor", "tensor", e4, e4, "f16"),
                             whole("row_row", 64, 48, 96, "row", "row", e4, e4, "bf16"),
                             whole("row_tensor", 20, 272, 640, "row", "tensor", e4, e4, "bf16"),
                             whole("row_tensor_wide", 144, 272, 160, "row", "tensor", e4, e4, "bf16"),
                             whole("row_row_wide", 80, 96, 96, "row", "row", e4, e4, "f32"),
                             whole("row_long", 132, 48, 272, "row", "row", e4, e4, "bf16"),
                             whole("row_3_rows", 3, 48, 272, "row", "row", e4, e4, "f16"),
                             whole("tensor_row_f32", 32, 48, 96, "tensor", "row", e4, e4, "f32"),
                             whole("row_one_row", 1, 64, 256, "row", "tensor", e4, e4, "bf16"),
                             whole("block", 64, 272, 400, "1x128", "128x128", e4, e4, "bf16"),
                             whole("block_of_5", 144, 256, 640, "1x128", "128x128", e4, e4, "bf16"),
                             whole("block_f32", 20, 144, 640, "1x128", "128x128", e4, e4, "f32"),
                             whole("block_left", 272, 64, 400, "128x128", "1x128", e4, e4, "bf16"),
                             whole("block_both", 144, 144, 272, "128x128", "128x128", e4, e4, "bf16"),
                             whole("block_short", 64, 64, 64, "1x128", "128x128", e4, e4, "f32"),
                             whole("vectors", 272, 144, 400, "1x128", "1x128", e4, e4, "f32")};
  for (const char* scaling : {"tensor", "row", "1x128"}) {  // weight gradients accumulate, residuals are added
    Case sum = whole(fmt::format("accumulate_{}", scaling), 48, 80, 272, scaling, scaling, e4, e4, "f32");
    sum.inputs.push_back(integers(DType::kF32, {48, 80}, -8, 9));
    cases.push_back(sum);
    sum = whole(fmt::format("residual_{}", scaling), 48, 80, 272, scaling, scaling, e4, e4, "bf16");
    sum.inputs.push_back(integers(DType::kBF16, {48, 80}, -8, 9));
    sum.tolerance = {.absolute = 0.5,
                     .reason = "in place, the product (up to 256) may be rounded to bf16 before the sum"};
    cases.push_back(sum);
  }
  Case row_bias = whole("bias", 48, 80, 272, "tensor", "tensor", e4, e4, "bf16");
  row_bias.inputs.push_back(integers(DType::kBF16, {80}, -8, 9));
  cases.push_back(row_bias);
  row_bias = whole("bias_f32", 48, 80, 272, "tensor", "tensor", e4, e4, "f32");
  row_bias.inputs.push_back(integers(DType::kF32, {80}, -8, 9));
  cases.push_back(row_bias);
  return cases;
}

// One more rounding to bf16 of products up to 5 sqrt(k).
Case rounding_twice(Case c, int64_t k, const char* reason) {
  c.tolerance.absolute += 0x1p-8 * 5 * std::sqrt(static_cast<double>(k));
  c.tolerance.reason = reason;
  return c;
}

Case fused_bias(Case c, DType bias_dtype, int64_t k, bool narrow) {
  c = with_bias(std::move(c), bias_dtype);
  return narrow ? rounding_twice(c, k, "rounded once instead of twice, and the bias to bf16") : c;
}

}  // namespace

std::vector<Case> matmul_cases() {
  std::vector<Case> cases;
  for (bool ta : {false, true}) {
    for (bool tb : {false, true}) {
      cases.push_back(product("3x5x7", 3, 5, 7, ta, tb));
      cases.push_back(product("33x65x130", 33, 65, 130, ta, tb));
      cases.push_back(product("129x257x193", 129, 257, 193, ta, tb));
      cases.back().gradient = false;
    }
  }
  cases.push_back(product("1x17x64", 1, 17, 64, false, true));  // decoding: one row
  cases.push_back(product("17x1x5", 17, 1, 5, false, false));
  cases.push_back(rounded_product("136x64x512", 136, 64, 512, false, true));
  cases.push_back(rounded_product("64x200x40", 64, 200, 40, false, false));
  cases.push_back(rounded_product("96x72x320", 96, 72, 320, true, false));
  cases.push_back(product("64x64x64", 64, 64, 64, false, true));
  Case bias = product("9x20x12_bias", 9, 20, 12, false, true);
  bias.inputs.push_back(x({20}));
  cases.push_back(bias);
  Case addend = product("9x20x12_addend", 9, 20, 12, false, true);
  addend.inputs.push_back(x({9, 20}));
  cases.push_back(addend);
  // Gradients of bf16 products accumulate into float32.
  Case to_f32 = product("20x11x35_to_f32", 20, 11, 35, true, false);
  to_f32.attrs.set("to", std::string("f32"));
  cases.push_back(to_f32);
  to_f32.name = "20x11x35_accumulate";
  to_f32.inputs.push_back(normal(DType::kF32, {20, 11}));
  cases.push_back(to_f32);
  // Operands and results of several types.
  Case mixed = product("9x20x12_f32_bf16", 9, 20, 12, false, true);
  mixed.inputs[1] = normal(DType::kBF16, {20, 12});
  mixed.dtypes = {DType::kF32};
  cases.push_back(mixed);
  Case narrow = product("9x20x12_to_bf16", 9, 20, 12, false, true);
  narrow.attrs.set("to", std::string("bf16"));
  narrow.gradient = false;  // finite-difference steps vanish in bf16
  narrow.inputs.push_back(normal(DType::kF32, {20}));
  cases.push_back(narrow);
  Case half = product("40x24x56_f16", 40, 24, 56, false, true);
  half.dtypes = {DType::kF16};
  half.gradient = false;
  cases.push_back(half);
  for (bool ta : {false, true}) {
    Case aligned = product("128x192x320", 128, 192, 320, ta, !ta);
    aligned.gradient = false;
    cases.push_back(aligned);
    aligned.name += "_addend";
    aligned.inputs.push_back(x({128, 192}));
    aligned.dtypes = {DType::kF32};
    cases.push_back(aligned);
    aligned.dtypes = {DType::kBF16};
    aligned.name += "_bf16";
    cases.push_back(rounding_twice(aligned, 320, "in place, the product may be rounded to bf16 before the sum"));
  }
  for (DType bias : {DType::kF32, DType::kBF16}) {
    Case fused = product("72x48x64", 72, 48, 64, false, true);
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      fused.dtypes = {dtype};
      fused.name = fmt::format("72x48x64_{}", dtype_name(dtype));
      cases.push_back(fused_bias(fused, bias, 64, dtype == DType::kBF16));
    }
    cases.push_back(fused_bias(whole("bias", 48, 80, 272, "tensor", "tensor", DType::kE4M3, DType::kE4M3, "bf16"), bias,
                               272, true));
    cases.push_back(fused_bias(whole("row_bias", 48, 80, 272, "row", "tensor", DType::kE4M3, DType::kE4M3, "bf16"),
                               bias, 272, true));
  }
  for (bool tb : {false, true}) {
    Case speed = product("512x1024x1024", 512, 1024, 1024, false, tb);
    speed.large = true;
    cases.push_back(speed);
  }
  Case weight_gradient = product("1024x1024x512", 1024, 1024, 512, true, false);
  weight_gradient.large = true;
  cases.push_back(weight_gradient);
  Case decode = product("1x4096x4096", 1, 4096, 4096, false, true);
  decode.large = true;
  cases.push_back(decode);

  const DType e4 = DType::kE4M3, e5 = DType::kE5M2;
  cases.push_back(scaled("tensor_5x7x9_tb", 5, 7, 9, false, true, "tensor", "tensor", e4, e4, "f32"));
  cases.push_back(scaled("tensor_33x20x70_tb_bf16", 33, 20, 70, false, true, "tensor", "tensor", e4, e4, "bf16"));
  cases.push_back(scaled("tensor_dgrad", 17, 24, 40, false, false, "tensor", "tensor", e5, e4, "bf16"));
  cases.push_back(scaled("tensor_wgrad", 24, 17, 40, true, false, "tensor", "tensor", e5, e4, "f32"));
  cases.push_back(scaled("row_5x12x33", 5, 12, 33, false, true, "row", "tensor", e4, e4, "f32"));
  cases.push_back(scaled("row_row", 6, 12, 33, false, true, "row", "row", e4, e4, "f32"));
  cases.push_back(scaled("block_fprop", 6, 140, 300, false, true, "1x128", "128x128", e4, e4, "bf16"));
  cases.push_back(scaled("block_wgrad", 20, 30, 200, false, true, "1x128", "1x128", e4, e4, "f32"));
  cases.push_back(scaled("block_small", 3, 5, 7, false, true, "1x128", "128x128", e4, e4, "f32"));
  Case accumulate = scaled("tensor_accumulate", 24, 17, 40, true, false, "tensor", "tensor", e5, e4, "f32");
  accumulate.inputs.push_back(normal(DType::kF32, {24, 17}));
  cases.push_back(accumulate);
  for (Case& c : tensor_core_cases()) cases.push_back(std::move(c));
  for (Case& c : int8_cases()) cases.push_back(std::move(c));
  for (Case& c : group_cases()) cases.push_back(std::move(c));
  for (Case& c : few_rows_cases()) cases.push_back(std::move(c));
  Case speed = scaled("tensor_512x1024x1024", 512, 1024, 1024, false, true, "tensor", "tensor", e4, e4, "bf16");
  speed.large = true;
  cases.push_back(speed);
  speed = scaled("block_512x1024x1024", 512, 1024, 1024, false, true, "1x128", "128x128", e4, e4, "bf16");
  speed.large = true;
  cases.push_back(speed);
  return cases;
}

}  // namespace octet::cpu
