// Recipes by name, decisions that override them, and the scale formula at its edges.
#include "precision/recipe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>

#include "base/codec.h"
#include "base/error.h"

namespace octet {
namespace {

TEST(Recipe, NamesAndFormats) {
  EXPECT_EQ(parse_recipe("fp32").compute, DType::kF32);
  EXPECT_EQ(parse_recipe("bf16").scaling, Scaling::kNone);
  EXPECT_EQ(parse_recipe("fp8-delayed").scaling, Scaling::kDelayed);
  const Recipe current = parse_recipe("fp8-current");
  EXPECT_EQ(current.format(false), DType::kE4M3);
  EXPECT_EQ(current.format(true), DType::kE5M2);
  EXPECT_FALSE(current.power_of_two);
  const Recipe int8 = parse_recipe("int8");
  EXPECT_EQ(int8.format(false), DType::kI8);
  EXPECT_EQ(int8.compute, DType::kBF16);
  EXPECT_TRUE(int8.per_channel_weights);
  const Recipe block = parse_recipe("fp8-block");
  EXPECT_EQ(block.format(true), DType::kE4M3);
  EXPECT_TRUE(block.power_of_two);
}

TEST(Recipe, ListsAreOfWhatTrainsAndOfWhatServes) {
  const std::vector<std::string> trains = recipe_names(true), serves = recipe_names(false);
  const auto in = [](const std::vector<std::string>& list, const char* name) { return std::ranges::count(list, name); };
  for (const char* name : {"fp32", "fp8-block"}) EXPECT_EQ(in(trains, name) + in(serves, name), 2) << name;
  EXPECT_EQ(in(trains, "auto") - in(serves, "auto"), 1);
  for (const char* name : {"int8", "w4a8", "w4a16"}) EXPECT_EQ(in(serves, name) - in(trains, name), 1) << name;
  EXPECT_TRUE(recipe_help("bf16").ends_with(", w4a16 (default: the folder's, else bf16)")) << recipe_help("bf16");
}

TEST(Recipe, UnknownNameNamesTheNearest) {
  try {
    parse_recipe("fp8-curent");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(error.message().find("did you mean \"fp8-current\""), std::string::npos) << error.message();
  }
}

TEST(Recipe, RolesRoundTrip) {
  for (GemmRole role : {GemmRole::kFprop, GemmRole::kDgrad, GemmRole::kWgrad}) {
    EXPECT_EQ(parse_gemm_role(gemm_role_name(role)), role);
  }
  EXPECT_THROW(parse_gemm_role("forward"), Error);
}

TEST(Recipe, DecisionsOverrideOneGemmOnly) {
  Recipe recipe = parse_recipe("fp8-current");
  recipe.decisions["layers.3.mlp.up/wgrad"] = {.codes = false, .scaling = Scaling::kNone};
  recipe.decisions["layers.4.mlp.up/fprop"] = {.codes = true, .scaling = Scaling::kBlock};
  const GemmPrecision fp8{.codes = true, .scaling = Scaling::kCurrent};
  EXPECT_FALSE(recipe.decide("layers.3.mlp.up", GemmRole::kWgrad).codes);
  EXPECT_EQ(recipe.decide("layers.3.mlp.up", GemmRole::kFprop), fp8);
  EXPECT_EQ(recipe.decide("layers.4.mlp.up", GemmRole::kFprop).scaling, Scaling::kBlock);
  EXPECT_FALSE(parse_recipe("bf16").decide("layers.0.mlp.up", GemmRole::kDgrad).codes);
}

TEST(ScaleFromAmax, Formula) {
  EXPECT_EQ(scale_from_amax(2.0f, DType::kE4M3, 0, false), 224.0f);
  EXPECT_EQ(scale_from_amax(2.0f, DType::kE4M3, 1, false), 112.0f);
  EXPECT_EQ(scale_from_amax(3.0f, DType::kE5M2, 0, false), 57344.0f / 3.0f);
  EXPECT_EQ(scale_from_amax(2.0f, DType::kI8, 0, false), 63.5f);
  EXPECT_EQ(scale_from_amax(3.0f, DType::kE4M3, 0, true), 128.0f);  // 149.3 -> 128
  EXPECT_EQ(scale_from_amax(3.5f, DType::kE4M3, 0, true), 128.0f);  // exactly 128
  EXPECT_EQ(scale_from_amax(448.0f, DType::kE4M3, 0, true), 1.0f);
}

TEST(ScaleFromAmax, Edges) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(scale_from_amax(0.0f, DType::kE4M3, 0, false), 1.0f);
  EXPECT_EQ(scale_from_amax(inf, DType::kE4M3, 3, true), 1.0f);
  EXPECT_EQ(scale_from_amax(std::nanf(""), DType::kE5M2, 0, false), 1.0f);
  EXPECT_EQ(scale_from_amax(FLT_TRUE_MIN, DType::kE5M2, 0, false), FLT_MAX);  // the quotient overflows
  EXPECT_EQ(scale_from_amax(FLT_TRUE_MIN, DType::kE5M2, 0, true), 0x1p127f);
  EXPECT_GT(scale_from_amax(FLT_MAX, DType::kE4M3, 0, false), 0.0f);
  EXPECT_GT(scale_from_amax(FLT_MAX, DType::kE4M3, 0, true), 0.0f);
}

TEST(ScaleFromAmax, NeverSaturatesTheAmax) {
  // amax * scale stays within the format's range up to one rounding of the quotient: seeds are the loop values.
  for (int i = 1; i < 5000; ++i) {
    const float amax = 0.001f * static_cast<float>(i) * static_cast<float>(i);
    EXPECT_LE(amax * scale_from_amax(amax, DType::kE4M3, 0, true), 448.0f) << amax;
    EXPECT_EQ(codec::encode_e4m3(amax * scale_from_amax(amax, DType::kE4M3, 0, false)), 0x7e) << amax;
  }
}

}  // namespace
}  // namespace octet
