// Each rule finds the graph that breaks it and names graph, node and rule; a disabled pass or step has no rules.
#include "passes/pass.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "ir/text.h"

namespace octet {
namespace {

std::string broken_rule(const char* pass, const std::string& nodes, const CompileOptions& options) {
  Program program;
  program.add_graph(parse_graph("graph @eval stage packed %x = input : bf16[4,8] @x " + nodes + " end"));
  try {
    check_stage_rules(pass, program, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    return error.message();
  }
  return "";
}

TEST(StageRules, AProductOfCodesIsNotPlainAfterPrecision) {
  const auto product = [](const std::string& attrs) {
    return "%w = param : bf16[16,8] @w %y = matmul %x, %w {gemm=\"up\", trans_b=true, " + attrs + "} @up output @y %y";
  };
  CompileOptions options{.recipe = parse_recipe("fp8-current")};
  const std::string fprop = product("role=\"fprop\"");
  EXPECT_EQ(broken_rule("precision", fprop, options),
            "graph eval: node up (matmul, #2): the recipe makes this product one of codes, and it is plain");
  EXPECT_EQ(broken_rule("autodiff", fprop, options), "");
  EXPECT_EQ(broken_rule("precision", product("role=\"fprop\", head=true"), options), "");
  EXPECT_EQ(broken_rule("precision", fprop, {.recipe = parse_recipe("bf16")}), "");
  options.recipe.decisions["up/fprop"] = {};
  EXPECT_EQ(broken_rule("precision", fprop, options), "");
  EXPECT_EQ(broken_rule("precision", fprop, {.recipe = parse_recipe("fp8-current"), .disabled = {"precision"}}), "");
}

TEST(StageRules, TypesAreThoseOfTheRecipeAfterPrecision) {
  const auto cast = [](const char* to) { return fmt::format("%y = cast %x {{to=\"{}\"}} @narrow output @y %y", to); };
  const CompileOptions options{.recipe = parse_recipe("bf16")};
  EXPECT_EQ(broken_rule("precision", cast("f16"), options),
            "graph eval: node narrow (cast, #1): its type is none of float32, the recipe's compute type and formats");
  for (const char* to : {"bf16", "f32", "e4m3"}) EXPECT_EQ(broken_rule("precision", cast(to), options), "") << to;
}

TEST(StageRules, AFusionHoldsNoFusionAfterFuse) {
  const std::string inner =
      "fusion %a body graph @b stage packed %a = input : bf16[4,8] @a %b = silu %a output @b %b end";
  const std::string outer = "%y = fusion %x @outer body graph @b stage packed %a = input : bf16[4,8] @a %b = " + inner +
                            " output @b %b end output @y %y";
  EXPECT_EQ(broken_rule("fuse", outer, {}),
            "graph eval: node outer (fusion, #1): a fusion's members are ops, and one is a fusion");
  EXPECT_EQ(broken_rule("fuse", "%a = silu %x %y = " + inner + " output @y %y", {}), "");
}

TEST(StageRules, SlicesThatKernelsTakeThemselvesAreGoneAfterPack) {
  const std::string nodes = R"(%w = param : bf16[16,8] @w
    %s = fusion %x, %w @"gate+up" body graph @body stage packed
      %0 = input : bf16[4,8] @a %1 = input : bf16[16,8] @b
      %2 = matmul %0, %1 {trans_b=true}
      %3 = slice %2 {axis=1, begin=0, end=8} %4 = slice %2 {axis=1, begin=8, end=16}
      output @gate %3 output @up %4 end
    %y = fusion %s, %s.1 body graph @body stage packed
      %0 = input : bf16[4,8] @gate %1 = input : bf16[4,8] @up
      %2 = silu %0 %3 = mul %2, %1 %4 = quantize %3 {format="e4m3", scaling="row"}
      output @codes %4 output @scale_inv %4.1 end
    output @codes %y output @scale_inv %y.1)";
  CompileOptions options{.target = interpreter_target()};
  EXPECT_EQ(broken_rule("pack", nodes, options), "");
  options.target.allow(Producer::kGated, {FusionPart::kColumns});
  EXPECT_EQ(broken_rule("pack", nodes, options),
            "graph eval: node gate+up (fusion, #2): its readers' kernels take columns of the product themselves");
  options.disabled = {"fold_slices"};
  EXPECT_EQ(broken_rule("pack", nodes, options), "");
}

TEST(StageRules, EveryNodeIsReadAfterDeadOnesAreRemoved) {
  EXPECT_EQ(broken_rule("remove_dead_nodes", "%d = silu %x @dead output @y %x", {}),
            "graph eval: node dead (silu, #1): nothing reads it");
  EXPECT_EQ(broken_rule("remove_dead_nodes", "%d = silu %x output @y %d", {}), "");
}

}  // namespace
}  // namespace octet
