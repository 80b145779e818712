// Cases of the matrix products: all transpositions, odd sizes, addends, every scaling of the FP8 product.
#include "kernels/cpu/cases.h"

namespace octet::cpu {
namespace {

Case product(const std::string& name, int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b) {
  return {.op = Op::kMatmul,
          .name = name + (trans_a ? "_ta" : "") + (trans_b ? "_tb" : ""),
          .inputs = {x(trans_a ? Shape{k, m} : Shape{m, k}), x(trans_b ? Shape{n, k} : Shape{k, n})},
          .attrs = {{"trans_a", trans_a}, {"trans_b", trans_b}},
          .tolerance = accumulated(k)};
}

CaseInput scales(Shape shape) { return uniform(DType::kF32, std::move(shape), 0.5, 1.5); }

int64_t blocks(int64_t n) { return (n + 127) / 128; }

// codes with |value| up to 448 or 57344, brought near 1 by small scales: sums stay comparable with accumulated().
Case scaled(const std::string& name, int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b,
            const std::string& scaling_a, const std::string& scaling_b, DType format_a, DType format_b,
            const std::string& to) {
  const Shape a = trans_a ? Shape{k, m} : Shape{m, k}, b = trans_b ? Shape{n, k} : Shape{k, n};
  const auto scale_shape = [](const std::string& scaling, const Shape& codes) {
    if (scaling == "tensor") return Shape{1};
    if (scaling == "row") return Shape{codes[0]};
    return Shape{scaling == "1x128" ? codes[0] : blocks(codes[0]), blocks(codes[1])};
  };
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
  Case speed = scaled("tensor_512x1024x1024", 512, 1024, 1024, false, true, "tensor", "tensor", e4, e4, "bf16");
  speed.large = true;
  cases.push_back(speed);
  speed = scaled("block_512x1024x1024", 512, 1024, 1024, false, true, "1x128", "128x128", e4, e4, "bf16");
  speed.large = true;
  cases.push_back(speed);
  return cases;
}

}  // namespace octet::cpu
