// A model as a pattern of blocks: what the builder makes a graph of. Layers may differ in everything a LayerSpec says.
#pragma once

#include <optional>
#include <vector>

#include "ir/builder.h"

namespace octet {

struct ModelConfig;

enum class NormKind { kLayer, kRms };
enum class Activation { kGeluTanh, kGelu, kRelu, kSilu };
enum class Residual {
  kSequential,      // x += attention(norm1(x)); x += mlp(norm2(x))
  kParallel,        // x += attention(norm1(x)) + mlp(norm2(x))
  kParallelShared,  // x += attention(norm1(x)) + mlp(norm1(x))
  kSandwich,        // x += post_norm1(attention(norm1(x))); x += post_norm2(mlp(norm2(x)))
  kPostNorm,        // x = norm1(x + attention(x)); x = norm2(x + mlp(x)), and no norm behind the last layer
};

struct NormSpec {
  NormKind kind = NormKind::kLayer;
  double eps = 1e-5;
  bool bias = true, plus_one = false;  // of layer norms; weights are kept minus 1
};

struct AttentionSpec {
  int64_t heads = 1, kv_heads = 1, head_dim = 0;
  bool causal = true;                            // false: a token sees its whole sequence
  int64_t window = 0;                            // as AttentionOptions::window
  std::optional<RopeOptions> rope = {};          // rotary positions (heads and head_dim are filled in)
  double scale = 0, alibi = 0, alibi_scale = 1;  // as in AttentionOptions
  bool qk_norm = false;                          // norm of every head of q and k, before rotary positions
  bool qk_norm_whole = false;                    // of all heads together: one of q, one of k
  bool qkv_bias = true, out_bias = true;
  bool cross = false;  // keys and values of another sequence: refused, no op computes it
};

// A mixture of experts, each a gated MLP: every token goes to `per_token` of them, weighted by its router's softmax.
struct ExpertsSpec {
  int64_t count = 0;                // 0 = none: the layer's MLP is dense
  int64_t per_token = 2;            // experts of a token
  int64_t intermediate = 0;         // of each; 0 = that of the dense MLP
  int64_t shared_intermediate = 0;  // > 0: one more for all tokens, times a sigmoid of its own
  bool renormalize = false;         // weights of a token's experts are divided by their sum
  double balance_loss = 0,
         z_loss = 0;  // in training: coefficients of the load-balancing loss and of the router's z-loss
  bool operator==(const ExpertsSpec&) const = default;
};

// Dense: down(activation(up(x))); gated: down(activation(gate(x)) up(x)).
struct MixerSpec {
  int64_t intermediate = 0;
  Activation activation = Activation::kGeluTanh;
  bool gated = false, bias = true;
  ExpertsSpec experts = {};
};

struct LayerSpec {
  AttentionSpec attention;
  MixerSpec mixer;
};

struct EmbeddingSpec {
  int64_t vocab_size = 0;
  bool learned_positions = false;     // a table of max_positions rows
  int64_t position_offset = 0;        // rows of that table in front of position 0
  bool norm = false, scaled = false;  // a norm of its result; times sqrt(hidden)
  int64_t token_types = 0;            // rows of a table of kinds of tokens; 0: none. One: no input
};

// What logits [T, vocab] are made by.
enum class Head {
  kNextToken,  // a product with the embedding table, or one of its own
  kMaskedLm,   // norm(activation(dense(x))), then that product with the embedding table and a bias
  kNone,
};

struct HeadSpec {
  bool tied = true, bias = false;  // tied to the embedding table
  Head kind = Head::kNextToken;
  bool pooler = false;  // tanh(dense(x)) of a sequence's first token
  int64_t labels = 0;   // of a classifier on that; 0: none
};

struct ModelSpec {
  int64_t hidden = 0, layers = 0, max_positions = 0;  // of a sequence the model is made for
  std::vector<LayerSpec> pattern = {};  // of the layers in turn, repeated: one, or up to one for each layer
  EmbeddingSpec embedding = {};
  Residual residual = Residual::kSequential;
  NormSpec norm = {};
  HeadSpec head = {};
  double dropout = 0, init_std = 0.02;  // dropout of embedding, attention probabilities and residual branches
  int64_t dropout_bits = 32;            // of its random numbers

  ModelSpec() = default;
  ModelSpec(const ModelConfig& config);  // validates it

  // The longest sequence the weights allow; 0 = any (rotary positions, ALiBi).
  int64_t length_limit() const { return embedding.learned_positions ? max_positions : 0; }
  const LayerSpec& layer(int64_t i) const { return pattern[static_cast<size_t>(i) % pattern.size()]; }
};

}  // namespace octet
