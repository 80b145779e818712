// Recipes and the per-GEMM decision: which precision each of a linear's three GEMMs runs in, and with which scaling.
// Recipes of integer weights are for inference: int8 (also called w8a8) is fp8-current with int8 codes where that has
// FP8 ones; w4a8, w4i8 and w4a16 have weights of 4 or 8 bits by groups, and x in e4m3, int8 or 16 bits; w4a8-head16 is
// w4a8 with the output head as it is.
//
// A recipe is data; the precision pass (passes/passes.h) turns it into graph nodes. Formats: forward E4M3,
// gradients E5M2 (hybrid), E4M3 for everything under block scaling. Sources: arXiv 2209.05433; docs/numerics.md.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "ir/scale_layout.h"

namespace octet {

enum class Scaling : uint8_t {
  kNone,
  kCurrent,  // per tensor, from this tensor's own amax
  kDelayed,  // per tensor, from a history of amaxes
  kBlock,    // 1x128 activations and gradients, 128x128 weights, power-of-two scales
  kGroup,    // IntegerWeights; activations per row of them, or as they are
};

enum class GemmRole : uint8_t { kFprop, kDgrad, kWgrad };
const char* gemm_role_name(GemmRole role);
GemmRole parse_gemm_role(const std::string& name);

// Weights of an inference program in integers, one scale for a group along the contraction of an output channel.
struct IntegerWeights {
  DType format = DType::kI4;                  // or kI8
  ScaleLayout layout = ScaleLayout::kRow128;  // kRow, kRow32, kRow64
  bool zero_points = false;                   // a code's value is (code - zero) * scale_inv
  bool sorted_columns = false;                // columns lie sorted by group: x's are taken in their order
  bool operator==(const IntegerWeights&) const = default;
};

// How one GEMM runs.
struct GemmPrecision {
  bool codes = false;  // of the recipe's formats; false: the recipe's compute type
  Scaling scaling = Scaling::kNone;
  IntegerWeights weights = {};  // with kGroup
  bool operator==(const GemmPrecision&) const = default;
};

struct Recipe {
  std::string name = "bf16";     // fp32 | tf32 | bf16 | fp8-current | fp8-delayed | fp8-block | int8 | w4a8 ... | auto
  DType compute = DType::kBF16;  // activations and compute weights
  bool tf32 = false;             // float32 operands of products may be rounded to TF32's 10 bits of mantissa
  Scaling scaling = Scaling::kNone;
  DType forward_format = DType::kE4M3;  // with kGroup of x alone; no code format: x stays as it is
  DType gradient_format = DType::kE5M2;
  IntegerWeights weights = {};  // with kGroup; groups that do not divide K are halved until they do
  int64_t margin = 0;           // scales divided by 2^margin
  int64_t amax_history_length = 16;
  bool history_max = true;    // max of the history | most recent
  bool power_of_two = false;  // of scales
  // How weights of inference programs are scaled, where not in blocks: one scale an output channel, or one a tensor.
  bool per_channel_weights = true;
  // Training: the transposed codes of weights, which dgrad reads on targets with fp8_tn_only, are kept beside the plain
  // ones; false: made again for every product, a byte a weight less.
  bool keep_transposes = true;
  bool head = false;        // inference programs: the output head in codes too
  bool statistics = false;  // training programs also get graph "train_stats" (passes/passes.h)
  // Decisions that differ from the recipe: key "<gemm>/<role>", e.g. "layers.3.mlp.up/wgrad".
  std::map<std::string, GemmPrecision> decisions = {};

  GemmPrecision decide(const std::string& gemm, GemmRole role) const;
  // Whether training and targets without integer products refuse it.
  bool has_integer_weights() const { return scaling == Scaling::kGroup || forward_format == DType::kI8; }
  DType format(bool is_gradient) const { return is_gradient ? gradient_format : forward_format; }
};

Recipe parse_recipe(const std::string& name);          // throws with the nearest name; "w8a8" is int8
std::vector<std::string> recipe_names(bool training);  // that training takes, or those that models are served in
// Help of an option: those that models are served in, and the one that runs where neither option nor folder names any.
std::string recipe_help(const std::string& otherwise);

// The scale formula, used by every backend bit for bit (float32 arithmetic):
//   amax == 0 or not finite -> 1; else max(format) / amax, divided by 2^margin; infinite -> FLT_MAX;
//   pow2: rounded down to a power of two.
float scale_from_amax(float amax, DType format, int64_t margin, bool power_of_two);

}  // namespace octet
