// Text in, text out: one linear, its forward product and its weight gradient, under each recipe.
#include <gtest/gtest.h>

#include "ir/text.h"
#include "ir/verify.h"
#include "passes/passes.h"

namespace octet {
namespace {

constexpr const char* kLinear = R"(graph @train stage gradient
  %0 = input : f32[4,8] @x
  %1 = param {init="ones"} : f32[16,8] @up.weight
  %2 = matmul %0, %1 {gemm="up", role="fprop", trans_a=false, trans_b=true} @up
  %3 = input : f32[4,16] @dy
  %4 = matmul %3, %0 {gemm="up", role="wgrad", to="f32", trans_a=true, trans_b=false} @up phase backward
  output @y %2
  update @grad.up.weight %4
end
)";

Program precise(const std::string& recipe) {
  Program program;
  program.add_graph(parse_graph(kLinear));
  program.add_state({.type = {DType::kF32, {16, 8}}, .role = StateRole::kMoment, .param = "up.weight"});
  precision(program, {.target = interpreter_target(), .recipe = parse_recipe(recipe)});
  verify(program);
  return program;
}

TEST(PrecisionText, Bf16) {
  Program program = precise("bf16");
  EXPECT_EQ(print(program.graph("train")), R"(graph @train stage precise
  %0 = input : f32[4,8] @x
  %1 = state : bf16[16,8] @up.weight.bf16
  %2 = cast %0 {to="bf16"} : bf16[4,8] @cast
  %3 = matmul %2, %1 {gemm="up", role="fprop", to="bf16", trans_a=false, trans_b=true} : bf16[4,16] @up
  %4 = input : f32[4,16] @dy
  %5 = cast %4 {to="bf16"} : bf16[4,16] @cast phase backward
  %6 = matmul %5, %2 {gemm="up", role="wgrad", to="f32", trans_a=true, trans_b=false} : f32[16,8] @up phase backward
  output @y %3
  update @grad.up.weight %6
end
)");
  EXPECT_EQ(print(program.graph("prepare")), R"(graph @prepare stage precise
  %0 = param {init="ones"} : f32[16,8] @up.weight phase optimizer
  %1 = cast %0 {to="bf16"} : bf16[16,8] @up.weight.bf16 phase optimizer
  update @up.weight.bf16 %1
end
)");
}

TEST(PrecisionText, Fp8Current) {
  Program program = precise("fp8-current");
  EXPECT_EQ(print(program.graph("train")), R"(graph @train stage precise
  %0 = input : f32[4,8] @x
  %1 = reduce %0 {axis="all", reduction="amax"} : f32[1] @up.x.amax
  %2 = compute_scale %1 {format="e4m3", margin=0, pow2=false} : f32[1], f32[1] @up.x.scale
  %3 = quantize %0, %2 {format="e4m3", scaling="tensor"} : e4m3[4,8], f32[1], e4m3[8,4], f32[1], f32[1] @up.x
  %4 = state : e4m3[16,8] @up.weight.codes
  %5 = state : f32[1] @up.weight.scale_inv
  %6 = scaled_matmul %3, %3.1, %4, %5 {gemm="up", role="fprop", scaling_a="tensor", scaling_b="tensor", to="bf16", trans_a=false, trans_b=true} : bf16[4,16] @up
  %7 = input : f32[4,16] @dy
  %8 = reduce %7 {axis="all", reduction="amax"} : f32[1] @up.dy.amax phase backward
  %9 = compute_scale %8 {format="e5m2", margin=0, pow2=false} : f32[1], f32[1] @up.dy.scale phase backward
  %10 = quantize %7, %9 {format="e5m2", scaling="tensor"} : e5m2[4,16], f32[1], e5m2[16,4], f32[1], f32[1] @up.dy phase backward
  %11 = scaled_matmul %10, %10.1, %3, %3.1 {gemm="up", role="wgrad", scaling_a="tensor", scaling_b="tensor", to="f32", trans_a=true, trans_b=false} : f32[16,8] @up phase backward
  output @y %6
  update @grad.up.weight %11
end
)");
  EXPECT_EQ(print(program.graph("prepare")), R"(graph @prepare stage precise
  %0 = param {init="ones"} : f32[16,8] @up.weight phase optimizer
  %1 = reduce %0 {axis="all", reduction="amax"} : f32[1] @up.weight.amax phase optimizer
  %2 = compute_scale %1 {format="e4m3", margin=0, pow2=false} : f32[1], f32[1] @up.weight.scale phase optimizer
  %3 = quantize %0, %2 {format="e4m3", scaling="tensor"} : e4m3[16,8], f32[1], e4m3[8,16], f32[1], f32[1] @up.weight phase optimizer
  update @up.weight.codes %3
  update @up.weight.scale_inv %3.1
end
)");
}

TEST(PrecisionText, Fp8Delayed) {
  EXPECT_EQ(print(precise("fp8-delayed").graph("train")), R"(graph @train stage precise
  %0 = input : f32[4,8] @x
  %1 = state : f32[1] @scale.up.x
  %2 = quantize %0, %1 {format="e4m3", scaling="tensor"} : e4m3[4,8], f32[1], e4m3[8,4], f32[1], f32[1] @up.x
  %3 = state : e4m3[16,8] @up.weight.codes
  %4 = state : f32[1] @up.weight.scale_inv
  %5 = scaled_matmul %2, %2.1, %3, %4 {gemm="up", role="fprop", scaling_a="tensor", scaling_b="tensor", to="bf16", trans_a=false, trans_b=true} : bf16[4,16] @up
  %6 = input : f32[4,16] @dy
  %7 = state : f32[1] @scale.up.dy phase backward
  %8 = quantize %6, %7 {format="e5m2", scaling="tensor"} : e5m2[4,16], f32[1], e5m2[16,4], f32[1], f32[1] @up.dy phase backward
  %9 = scaled_matmul %8, %8.1, %2, %2.1 {gemm="up", role="wgrad", scaling_a="tensor", scaling_b="tensor", to="f32", trans_a=true, trans_b=false} : f32[16,8] @up phase backward
  output @y %5
  update @grad.up.weight %9
  update @amax.up.x %2.4
  update @amax.up.dy %8.4
end
)");
}

// The weight gradient contracts over tokens: it reads the transposed codes of both sides.
TEST(PrecisionText, Fp8Block) {
  EXPECT_EQ(print(precise("fp8-block").graph("train")), R"(graph @train stage precise
  %0 = input : f32[4,8] @x
  %1 = quantize %0 {format="e4m3", margin=0, pow2=true, scaling="1x128"} : e4m3[4,8], f32[1,4], e4m3[8,4], f32[1,8], f32[1] @up.x
  %2 = state : e4m3[16,8] @up.weight.block_codes
  %3 = state : f32[1,1] @up.weight.block_scale_inv
  %4 = scaled_matmul %1, %1.1, %2, %3 {gemm="up", role="fprop", scaling_a="1x128", scaling_b="128x128", to="bf16", trans_a=false, trans_b=true} : bf16[4,16] @up
  %5 = input : f32[4,16] @dy
  %6 = quantize %5 {format="e4m3", margin=0, pow2=true, scaling="1x128"} : e4m3[4,16], f32[1,4], e4m3[16,4], f32[1,16], f32[1] @up.dy phase backward
  %7 = scaled_matmul %6.2, %6.3, %1.2, %1.3 {gemm="up", role="wgrad", scaling_a="1x128", scaling_b="1x128", to="f32", trans_a=false, trans_b=true} : f32[16,8] @up phase backward
  output @y %4
  update @grad.up.weight %7
end
)");
}

}  // namespace
}  // namespace octet
