// `octet verify`: a folder's expected.safetensors (input_ids and logits, greedy_ids, hidden states, pooled vectors)
// against Octet's own run.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "exec/executor.h"
#include "model/model.h"
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
  std::vector<std::string> compared = {};  // the names of the tensors
  std::string worst = {};                  // of them, with the largest relative error
  bool passed(const LogitTolerance& tolerance) const;
};

// If transformers' eager attention differs from the attention the model was trained with, and the expected logits are
// nearer to the eager one, they are compared with it and the report sets eager_reference.
// input_ids [B, S] run as B packed sequences; greedy_ids [1, P + G] continue their first P tokens through the KV cache.
// A folder of an adapter runs merged into its base, the folder `base` or, "", the one it names; virtual tokens stand in
// front of each sequence, and have no logits.
VerifyReport verify_inference(const std::string& folder, const Recipe& recipe, const Target& target,
                              int64_t prompt_tokens = 11, const std::string& base = {});

// Whether the folder holds outputs of whole sequences: of an encoder, or of a decoder that is one or has no head.
bool has_encoded_outputs(const std::string& folder);
// Compares what expected.safetensors holds of last_hidden_state [B, S, H], cls, mean, last [B, H], each also
// _normalized, prediction_logits [B, S, vocab], seq_relationship_logits and logits [B, labels], for input_ids [B, S] of
// which attention_mask (absent: all are ones) counts the first tokens, and logits [B, S, vocab] of a decoder whose
// tokens see their whole sequence; the B sequences run as one packed step. `interpret`: by the interpreter.
VerifyReport verify_encoder(const std::string& folder, const Recipe& recipe, const Target& target,
                            bool interpret = false);

struct IncrementalModelOptions {
  Recipe recipe = {};
  Target target = {};
  int64_t max_length = 0;      // tokens a sequence may reach; 0 = the model's max_positions
  int64_t prefill_chunk = 64;  // tokens of a prompt processed at once
  DType cache_dtype = DType::kF32;
  bool cache_scales = false;   // of an FP8 cache, from the folder
  int64_t virtual_tokens = 0;  // ids from the vocabulary's size on, rows of "prompt.weight"
};

// Incremental inference of one sequence on fixed cache blocks, for verification: plans for a prompt chunk and for one
// token share states; no scheduler and no block manager, which the serving engine has (octet/engine.h).
class IncrementalModel {
 public:
  IncrementalModel(const ModelConfig& model, const IncrementalModelOptions& options);

  Executor& executor() { return *executor_; }  // for loading weights

  // Appends tokens (all of a prompt, or one) and returns float32 logits of the last one, valid until the next call.
  // Throws kInvalidArgument for an empty span, ids out of range, or more tokens than max_length.
  std::span<const float> append(std::span<const int32_t> ids);

 private:
  void run(const std::string& graph, std::span<const int32_t> ids);

  ModelConfig model_;
  int64_t max_length_ = 0, chunk_ = 0, block_size_ = 16, length_ = 0;
  int64_t ids_ = 0;    // the vocabulary and virtual tokens
  size_t groups_ = 0;  // of caches
  std::unique_ptr<Executor> executor_;
  std::vector<float> logits_;
};

}  // namespace octet
