// What an adapter adds to a model: low-rank addends of linears, parameters trained whole, virtual tokens.
//
// The base's parameters keep their names and stay frozen. Of a LowRank called NAME the model gets the parameters
// NAME.lora_a [rank, in], NAME.lora_b [out, rank] and, under DoRA, NAME.magnitude [out]; of stacked experts
// [experts, rank, in] and [experts, out, rank]; of the embedding table, called "embed", whose "in" is the vocabulary,
// [rank, vocab] and [hidden, rank]. A head that is tied to that table has a LowRank "head" of embed.weight. Rows of
// tokens are "embed.token_rows" [rows, hidden], which replace the table's. Sources: Hu et al., LoRA (arXiv 2106.09685);
// Kalajdzievski, rsLoRA (arXiv 2312.03732); Liu et al., DoRA (arXiv 2402.09353); the folders are those of PEFT.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace octet {

// y += scale * (x A^T) B^T for linears that read the same x.
struct LowRank {
  std::string name;                      // "layers.0.attn.q"; of a fused tensor "layers.0.attn.qkv"
  std::vector<std::string> params = {};  // the base's weights, "layers.0.attn.q.weight": rows of B are theirs in order
  int64_t rank = 0;                      // at least 1
  double scale = 1;                      // alpha / rank, or alpha / sqrt(rank) of rsLoRA
  bool dora = false;                     // W' = magnitude * (W + scale B A) / its rows' norms, which get no gradient
};

struct AdapterSpec {
  std::vector<LowRank> low_rank = {};
  double dropout = 0;                     // of x in front of A, in training
  std::vector<std::string> trained = {};  // parameters of the base that are trained, and stored, whole
  std::vector<int64_t> token_rows = {};   // rows of the embedding table that are trained, ascending
  int64_t virtual_tokens = 0;             // rows of "prompt.weight" [virtual_tokens, hidden] in front of a sequence
  int64_t encoder_hidden = 0;             // P-tuning: an MLP of this width makes these rows; 0: they are trained
  int64_t encoder_layers = 0;             // of a bidirectional LSTM of this width in front of the MLP; 0: there is none

  // Frozen matrices of linears and experts are held in NF4 (ir/nf4.h), at most so many magnitudes sharing a scale: 256,
  // or 1 for magnitudes in float32. 0: in the type that the recipe multiplies. Not a part of the adapter.
  int64_t nf4 = 0;

  bool empty() const { return low_rank.empty() && trained.empty() && token_rows.empty() && virtual_tokens == 0; }
};

}  // namespace octet
