// Recipes by name, the per-GEMM decision, and the one scale formula. No graph is touched here: the precision pass reads
// these values, and kernels call scale_from_amax so that codes and scales agree bit for bit on every backend.
#include "precision/recipe.h"

#include <cfloat>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace octet {
namespace {

const std::vector<std::string> kRecipeNames = {"fp32",        "tf32",      "bf16", "fp8-current",
                                               "fp8-delayed", "fp8-block", "int8", "auto"};

// Clears the mantissa: the largest power of two not above a positive finite float (0 for subnormals stays a subnormal
// power of two through frexp).
float round_down_to_power_of_two(float value) {
  int exponent = 0;
  std::frexp(value, &exponent);  // value = m * 2^exponent, m in [0.5, 1)
  return std::ldexp(1.0f, exponent - 1);
}

}  // namespace

const char* gemm_role_name(GemmRole role) {
  switch (role) {
    case GemmRole::kFprop: return "fprop";
    case GemmRole::kDgrad: return "dgrad";
    case GemmRole::kWgrad: return "wgrad";
  }
  fail(ErrorCode::kInternal, "gemm role {} does not exist", static_cast<int>(role));
}

GemmRole parse_gemm_role(const std::string& name) {
  for (GemmRole role : {GemmRole::kFprop, GemmRole::kDgrad, GemmRole::kWgrad}) {
    if (name == gemm_role_name(role)) return role;
  }
  fail(ErrorCode::kInvalidArgument, "gemm role \"{}\" is unknown: use fprop, dgrad or wgrad", name);
}

GemmPrecision Recipe::decide(const std::string& gemm, GemmRole role) const {
  const auto found = decisions.find(gemm + "/" + gemm_role_name(role));
  if (found != decisions.end()) return found->second;
  return {.codes = scaling != Scaling::kNone, .scaling = scaling};
}

Recipe parse_recipe(const std::string& name) {
  Recipe recipe;
  recipe.name = name;
  if (name == "fp32") {
    recipe.compute = DType::kF32;
  } else if (name == "tf32") {
    recipe.compute = DType::kF32;
    recipe.tf32 = true;
  } else if (name == "bf16") {
    recipe.compute = DType::kBF16;
  } else if (name == "fp8-current") {
    recipe.scaling = Scaling::kCurrent;
  } else if (name == "fp8-delayed") {
    recipe.scaling = Scaling::kDelayed;
    recipe.per_channel_weights = false;  // as trained
  } else if (name == "fp8-block") {
    recipe.scaling = Scaling::kBlock;
    recipe.gradient_format = DType::kE4M3;
    recipe.power_of_two = true;
  } else if (name == "int8") {
    recipe.scaling = Scaling::kCurrent;
    recipe.forward_format = DType::kI8;
    recipe.head = true;         // so that no sum of a step depends on its rows
  } else if (name == "auto") {  // the cheapest rung; precision/policy.h decides from there
    recipe.scaling = Scaling::kCurrent;
    recipe.statistics = true;
  } else {
    fail(ErrorCode::kInvalidArgument,
         "recipe \"{}\" is unknown{}; there are fp32, tf32, bf16, fp8-current, fp8-delayed, fp8-block, int8, auto",
         name, if_near(name, kRecipeNames, ": did you mean \"{}\"?"));
  }
  return recipe;
}

float scale_from_amax(float amax, DType format, int64_t margin, bool power_of_two) {
  if (!std::isfinite(amax) || amax <= 0) return 1.0f;
  float scale = static_cast<float>(dtype_max(format)) / amax;
  scale = std::ldexp(scale, static_cast<int>(-margin));
  if (!std::isfinite(scale)) scale = FLT_MAX;
  if (power_of_two) scale = round_down_to_power_of_two(scale);
  return scale;
}

}  // namespace octet
