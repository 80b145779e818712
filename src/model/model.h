// Models against ir/builder.h. A ModelConfig is what a family is given: settings, config.json. The ModelSpec that
// follows from it (model_spec.h) is the pattern of blocks a graph is built of.
//
// No rank, device, dtype, recompute flag or cache may appear in this folder; a test checks what it includes.
#pragma once

#include <string>
#include <vector>

#include "model/model_spec.h"

namespace octet {

enum class Positions { kLearned, kRotary, kAlibi };

// Which linears and norms have a bias; RMS norms never do.
struct Biases {
  bool qkv = true, out = true, mlp = true, norm = true, head = false;
  static Biases all(bool on) { return {on, on, on, on, false}; }
  bool operator==(const Biases&) const = default;
};

// Of hidden, heads x head size and a quarter of intermediate; of positions; of layers: ten times any known model.
// Within them and a vocabulary of int32 no count of elements or bytes overflows.
inline constexpr int64_t kMaxWidth = int64_t{1} << 20, kMaxPositions = int64_t{1} << 30, kMaxLayers = 10'000;
inline constexpr int64_t kMaxExperts = 4096;

// Sizes, and the facts that tell one family from another. Defaults are GPT-2's; model_family() gives those
// of a family.
struct ModelConfig {
  std::string architecture = "gpt2";  // names of the family's checkpoints: architectures() lists them
  int64_t vocab_size = 50257;
  int64_t max_positions = 1024;
  int64_t hidden = 768;
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t kv_heads = 0;      // 0 = heads
  int64_t head_dim = 0;      // 0 = hidden / heads
  int64_t intermediate = 0;  // 0 = 4 * hidden
  double norm_eps = 1e-5;
  bool tie_embeddings = true;
  Biases bias = {};
  double dropout = 0;         // embedding, attention probabilities, residual branches
  int64_t dropout_bits = 32;  // of its random numbers: 32, or 8 (ir/dropout_bits.h)
  double init_std = 0.02;
  RopeOptions rope = {};  // of rotary positions (heads and head_dim are filled in)

  NormKind norm = NormKind::kLayer;
  bool norm_plus_one = false;  // weights of norms are kept minus 1
  Residual residual = Residual::kSequential;
  Activation activation = Activation::kGeluTanh;
  bool gated = false;  // mlp: down(activation(gate(x)) up(x)), else down(activation(up(x)))
  Positions positions = Positions::kLearned;
  int64_t position_offset = 0;  // of learned positions: rows of the table in front of position 0
  double alibi = 8;             // of ALiBi: the largest exponent of its slopes
  double alibi_scale = 1;       // times its biases
  double attention_scale = 0;   // 0 = 1 / sqrt(head size)
  // N > 0: a token sees itself and N - 1 before it; of the layers in turn, repeated: {4096, 0} alternates. Empty = {0}
  std::vector<int64_t> window = {};
  bool qk_norm = false;        // RMS norm of every head of q and k, before rotary positions
  bool qk_norm_whole = false;  // of all heads of q together, and of those of k
  ExpertsSpec experts = {};    // of a mixture; the layers in dense_layers have a dense MLP
  std::vector<int64_t> dense_layers = {};
  bool embed_norm = false;        // a norm behind the embedding
  bool scale_embeddings = false;  // embeddings times sqrt(hidden)

  bool causal = true;       // false: an encoder; a token sees its whole sequence
  int64_t token_types = 0;  // rows of a table that embeddings of token types come from; 0: none
  Head head = Head::kNextToken;
  bool pooler = false;  // as in HeadSpec
  int64_t labels = 0;

  int64_t kv_head_count() const { return kv_heads > 0 ? kv_heads : heads; }
  int64_t head_size() const { return head_dim > 0 ? head_dim : hidden / heads; }
  int64_t intermediate_size() const { return intermediate > 0 ? intermediate : 4 * hidden; }
  // How many elements of a head rotary positions turn; 0 = none.
  int64_t rotary_size() const { return rope.rotary_dim == RopeOptions::kWholeHead ? head_size() : rope.rotary_dim; }
  std::vector<int64_t> layer_windows() const;  // of every layer
  // The longest sequence the weights allow; 0 = any (rotary positions, ALiBi).
  int64_t length_limit() const { return positions == Positions::kLearned ? max_positions : 0; }
};

// The facts of a family, sizes left at their defaults. Throws kUnsupported with the nearest name.
ModelConfig model_family(const std::string& architecture);
std::vector<std::string> architectures();          // decoders: what is trained, and generates
std::vector<std::string> encoder_architectures();  // what runs on whole sequences only

// Throws kInvalidArgument naming the field: heads that do not divide, kv_heads that do not divide heads, an odd
// rotary_dim, numbers that are not finite or out of all proportion...
void validate(const ModelConfig& config);
// "gpt2-124m", "gpt2-1558m", "llama2-7b", "gpt3-175b", ...: published sizes.
ModelConfig named_model(const std::string& name);
std::vector<std::string> named_models();

// The static shape of one micro-batch.
struct BatchShape {
  int64_t tokens = 0;        // T
  int64_t max_segments = 1;  // sequences packed into it, at most
  int64_t max_length = 0;    // longest sequence
  int64_t equal_length = 0;  // > 0: all sequences have this length
  bool training = false;     // dropout on
  int64_t predictions = 0;   // > 0: masked-language heads give logits of so many tokens, input "masked_rows" i32[P]
};

// What a model gives; none where it has no such part.
struct ModelOutputs {
  Value hidden;   // behind the last layer and norm [T, H]
  Value logits;   // [T, vocab], or of shape.predictions tokens
  Value pooled;   // [S, H]: of the tokens that input "rows" i32[S] names, the first of each sequence
  Value classes;  // [S, labels], of these
};
// Encoders with several token types read input "token_types" i32[T].
ModelOutputs build_outputs(Builder& builder, const ModelSpec& model, const BatchShape& shape);

// Its logits [T, vocab]. Throws kUnsupported for a model without them.
Value build_logits(Builder& builder, const ModelSpec& model, const BatchShape& shape);

// Adds targets and cross-entropy: the loss of every token f32[T], 0 where its target is -1. Throws kUnsupported for a
// model that does not predict next tokens.
Value build_token_losses(Builder& builder, const ModelSpec& model, const BatchShape& shape);

// Of these, and of routers, output "loss" (f32[1], summed over tokens with target >= 0); eval graphs get also
// "loss_per_token" f32[T].
void build_loss(Builder& builder, const ModelSpec& model, const BatchShape& shape);

}  // namespace octet
