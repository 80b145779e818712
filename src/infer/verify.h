// `octet verify`: a folder's expected.safetensors (input_ids, logits, greedy_ids) against Octet's own run.
#pragma once

#include <cstdint>
#include <string>

#include "passes/pass.h"

namespace octet {

struct VerifyReport {
  double max_logit_error = 0;  // absolute, over all logits
  double mean_logit_error = 0;
  int64_t logits = 0;
  bool eager_reference = false;  // compared with what transformers' eager attention computes (model/hugging_face.h)
  int64_t greedy_tokens = 0, greedy_equal = 0;  // generated tokens, and how many agree before the first difference
  bool passed(double tolerance) const { return max_logit_error <= tolerance && greedy_equal == greedy_tokens; }
};

// Where transformers' eager attention computes something else than the model was trained as, and the expected logits
// are nearer to that, they are compared with that, and the report says so.
// input_ids [B, S] run as B packed sequences; greedy_ids [1, P + G] continue their first P tokens through the KV cache.
VerifyReport verify_inference(const std::string& folder, const Recipe& recipe, const Target& target,
                              int64_t prompt_tokens = 11);

}  // namespace octet
