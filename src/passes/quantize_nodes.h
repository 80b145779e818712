// The nodes that quantize a tensor, in one place: used for activations, gradients and weights alike.
#pragma once

#include <string>

#include "ir/builder.h"
#include "precision/quantized_matrix.h"
#include "precision/recipe.h"

namespace octet {

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
