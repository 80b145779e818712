// Recipes by name, the per-GEMM decision, and the one scale formula. No graph is touched here: the precision pass reads
// these values, and kernels call scale_from_amax so that codes and scales agree bit for bit on every backend.
#include "precision/recipe.h"

#include <fmt/ranges.h>
#include <algorithm>
#include <cfloat>
#include <cmath>

#include "base/error.h"

namespace octet {
namespace {

constexpr const char* kRoleNames[] = {"fprop", "dgrad", "wgrad"};

// What differs from Recipe's defaults, which are those of bf16.
const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> rows = {
      {.name = "fp32", .compute = DType::kF32},
      {.name = "tf32", .compute = DType::kF32, .tf32 = true},
      {.name = "bf16"},
      {.name = "fp8-current", .scaling = Scaling::kCurrent},
      {.name = "fp8-delayed", .scaling = Scaling::kDelayed, .per_channel_weights = false},  // as trained
      {.name = "fp8-block", .scaling = Scaling::kBlock, .gradient_format = DType::kE4M3, .power_of_two = true},
      // int8 and w4i8 with the head, so that no sum of a step depends on its rows; w4a8 because in bf16 it is a fifth
      // of the bytes that a token of an 8B model reads.
      {.name = "int8", .scaling = Scaling::kCurrent, .forward_format = DType::kI8, .head = true},
      {.name = "w4a8", .scaling = Scaling::kGroup, .head = true},
      {.name = "w4a8-head16", .scaling = Scaling::kGroup},
      {.name = "w4i8", .scaling = Scaling::kGroup, .forward_format = DType::kI8, .head = true},
      {.name = "w4a16", .scaling = Scaling::kGroup, .forward_format = DType::kBF16},
      // The cheapest level; precision/policy.h decides from there.
      {.name = "auto", .scaling = Scaling::kCurrent, .statistics = true},
  };
  return rows;
}

// Clears the mantissa: the largest power of two not above a positive finite float (0 for subnormals stays a subnormal
// power of two through frexp).
float round_down_to_power_of_two(float value) {
  int exponent = 0;
  std::frexp(value, &exponent);  // value = m * 2^exponent, m in [0.5, 1)
  return std::ldexp(1.0f, exponent - 1);
}

}  // namespace

const char* gemm_role_name(GemmRole role) { return kRoleNames[static_cast<size_t>(role)]; }

GemmRole parse_gemm_role(const std::string& name) {
  const auto* found = std::ranges::find(kRoleNames, name);
  check(found != std::end(kRoleNames), ErrorCode::kInvalidArgument,
        "gemm role \"{}\" is unknown: use fprop, dgrad or wgrad", name);
  return static_cast<GemmRole>(found - kRoleNames);
}

GemmPrecision Recipe::decide(const std::string& gemm, GemmRole role) const {
  const auto found = decisions.find(gemm + "/" + gemm_role_name(role));
  if (found != decisions.end()) return found->second;
  return {.codes = scaling != Scaling::kNone, .scaling = scaling, .weights = weights};
}

Recipe parse_recipe(const std::string& name) {
  std::vector<std::string> names;
  for (const Recipe& recipe : recipes()) {
    if (recipe.name == (name == "w8a8" ? "int8" : name)) return recipe;
    names.push_back(recipe.name);
  }
  fail(ErrorCode::kInvalidArgument, "recipe \"{}\" is unknown{}; there are {}", name,
       if_near(name, names, ": did you mean \"{}\"?"), fmt::join(names, ", "));
}

std::vector<std::string> recipe_names(bool training) {
  std::vector<std::string> names;
  for (const Recipe& recipe : recipes())
    if (training ? !recipe.has_integer_weights() : recipe.name != "auto") names.push_back(recipe.name);
  return names;
}

std::string recipe_help(const std::string& otherwise) {
  return fmt::format("{} (default: the folder's, else {})", fmt::join(recipe_names(false), ", "), otherwise);
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
