// Model definitions: one function per family against ir/builder.h, sizes from a config.
//
// No rank, device, dtype, recompute flag or cache may appear in this folder; a test checks what it includes.
#pragma once

#include <string>
#include <vector>

#include "ir/builder.h"

namespace octet {

struct ModelConfig {
  std::string architecture = "gpt2";  // gpt2 | llama
  int64_t vocab_size = 50257;
  int64_t max_positions = 1024;
  int64_t hidden = 768;
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t kv_heads = 0;      // 0 = heads
  int64_t head_dim = 0;      // 0 = hidden / heads
  int64_t intermediate = 0;  // 0 = 4 * hidden (gpt2), required for llama
  double norm_eps = 1e-5;
  bool tie_embeddings = true;
  bool bias = true;    // linears and layer norms of gpt2
  double dropout = 0;  // embedding, attention probabilities, residual branches
  double init_std = 0.02;
  RopeOptions rope = {};  // llama: theta and scaling (heads and head_dim are filled in)

  int64_t kv_head_count() const { return kv_heads > 0 ? kv_heads : heads; }
  int64_t head_size() const { return head_dim > 0 ? head_dim : hidden / heads; }
  int64_t intermediate_size() const { return intermediate > 0 ? intermediate : 4 * hidden; }
};

// Throws kInvalidArgument naming the field: heads that do not divide, kv_heads that do not divide heads, odd
// head_dim...
void validate(const ModelConfig& config);
// "gpt2-124m", "gpt2-1558m", "llama2-7b", "gpt3-175b", ...: sizes people name.
ModelConfig named_model(const std::string& name);
std::vector<std::string> named_models();

// The static shape of one micro-batch.
struct BatchShape {
  int64_t tokens = 0;        // T
  int64_t max_segments = 1;  // sequences packed into it, at most
  int64_t max_length = 0;    // longest sequence
  int64_t equal_length = 0;  // > 0: all sequences have this length
  bool training = false;     // dropout on
};

// Hidden states after the last norm, then logits [T, vocab].
Value build_logits(Builder& builder, const ModelConfig& config, const BatchShape& shape);

// Adds targets, cross-entropy, outputs "loss" (f32[1], summed over tokens with target >= 0); eval graphs get also
// "loss_per_token" f32[T].
void build_loss(Builder& builder, const ModelConfig& config, const BatchShape& shape);

}  // namespace octet
