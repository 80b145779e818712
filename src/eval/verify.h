// `octet verify`: a folder's expected.safetensors (input_ids, logits, greedy_ids) against Octet's own run.
#pragma once

#include <cstdint>
#include <string>

#include "passes/pass.h"

namespace octet {

// What a recipe's roundings may do to logits. fp32: the largest absolute difference, and every greedy token equal. The
// others: |ours - theirs| / |theirs| (2-norms over all logits; unrelated logits are 1.4 apart), and greedy tokens that
// were as good as ours, as far as the logits compared tell.
struct LogitTolerance {
  double largest = 2e-4;
  bool relative = false;
};
LogitTolerance logit_tolerance(const Recipe& recipe);

struct VerifyReport {
  double max_logit_error = 0;  // absolute, over all logits
  double mean_logit_error = 0;
  double relative_error = 0;  // |ours - theirs| / |theirs|, 2-norms
  int64_t logits = 0;
  bool eager_reference = false;  // compared with what transformers' eager attention computes (model/hugging_face.h)
  // Generated tokens, how many of them are our greedy choice after the expected prefix, and the largest gap between our
  // largest logit and that of an expected token.
  int64_t greedy_tokens = 0, greedy_equal = 0;
  double greedy_gap = 0;
  bool passed(const LogitTolerance& tolerance) const;
};

// If transformers' eager attention differs from the attention the model was trained with, and the expected logits are
// nearer to the eager one, they are compared with it and the report sets eager_reference.
// input_ids [B, S] run as B packed sequences; greedy_ids [1, P + G] continue their first P tokens through the KV cache.
VerifyReport verify_inference(const std::string& folder, const Recipe& recipe, const Target& target,
                              int64_t prompt_tokens = 11);

}  // namespace octet
