// The nodes that quantize a tensor, in one place: used for activations, gradients and weights alike.
#pragma once

#include <string>

#include "ir/builder.h"
#include "precision/recipe.h"

namespace octet {

// How the scales of one quantized tensor are laid out.
enum class ScaleLayout : uint8_t {
  kTensor,  // one scale
  kRow,     // one a row: activations that are served, so that no token depends on another
  kRow128,  // 1x128 blocks along the contraction: activations and gradients
  kTile128  // 128x128 blocks: weights
};

// As attrs of quantize and scaled_matmul spell it.
const char* scale_layout_name(ScaleLayout layout);

// Results of Op::kQuantize by number.
enum QuantizeResult : int32_t { kCodes = 0, kScaleInv = 1, kCodesT = 2, kScaleInvT = 3, kAmax = 4 };

// The scale f32[1] of x from its own amax, by the recipe's formula.
Value emit_current_scale(Builder& builder, Value x, const Recipe& recipe, DType format, const std::string& name);

// quantize(x); `scale` only with kTensor.
NodeId emit_quantize(Builder& builder, Value x, Value scale, const Recipe& recipe, ScaleLayout layout, DType format,
                     const std::string& name);

// tensor_stats(x): how x fits `format` under one scale and E4M3 in 128-blocks, 128x128 `tiles` or 1x128.
Value emit_tensor_stats(Builder& builder, Value x, const Recipe& recipe, DType format, bool tiles,
                        const std::string& name);

}  // namespace octet
