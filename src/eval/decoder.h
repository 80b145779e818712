// Incremental decoding of a few sequences: plans for a prompt chunk and for one token, sharing state and arena sizes.
//
// One sequence per row of the batch, its cache blocks fixed (row r owns blocks r*B .. r*B+B-1). For
// verify; the serving engine (octet/engine.h) has a block manager instead.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "exec/executor.h"
#include "model/model.h"
#include "passes/pass.h"

namespace octet {

struct DecoderOptions {
  Recipe recipe = {};
  Target target = {};
  int64_t max_length = 0;      // tokens a sequence may reach; 0 = the model's max_positions
  int64_t prefill_chunk = 64;  // tokens of a prompt processed at once
  DType cache_dtype = DType::kF32;
  bool cache_scales = false;  // of an FP8 cache, from the folder
};

class Decoder {
 public:
  Decoder(const ModelConfig& model, const DecoderOptions& options);

  Executor& executor() { return *executor_; }  // for loading weights

  // Appends tokens (all of a prompt, or one) and returns float32 logits of the last one, valid until the next call.
  // Throws kInvalidArgument for an empty span, ids out of range, or more tokens than max_length.
  std::span<const float> append(std::span<const int32_t> ids);

 private:
  void run(const std::string& graph, int64_t graph_tokens, std::span<const int32_t> ids);

  ModelConfig model_;
  int64_t max_length_ = 0, chunk_ = 0, block_size_ = 16, length_ = 0;
  size_t groups_ = 0;  // of caches
  std::unique_ptr<Executor> executor_;
  std::vector<float> logits_;
};

}  // namespace octet
