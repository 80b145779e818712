// Largest magnitudes that a text makes in a model: of the x of every linear, and of the keys and values attention
// reads.
#pragma once

#include <functional>
#include <span>

#include "ir/target.h"
#include "weights/quantized_folder.h"

namespace octet {

struct CalibrationOptions {
  Target target = {};
  int64_t length = 512;    // tokens of a window; at most the model's positions
  int64_t max_tokens = 0;  // 0 = all
  int32_t begin_id = -1;   // >= 0: every window's first token
};

// Runs the text through the model in float32, in whole windows (one shorter one where the text is shorter).
CalibratedAmax calibrate(const WeightSource& weights, std::span<const int32_t> ids, const CalibrationOptions& options,
                         const std::function<void(int64_t)>& on_progress = {});

}  // namespace octet
