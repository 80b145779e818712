// Pieces of a model, each made from its spec. Only model/ includes this.
#pragma once

#include "model/model.h"

namespace octet {

// Parameters of a norm over x's last dim, "<name>.weight" and ".bias".
Value norm(Builder& builder, Value x, const std::string& name, const NormSpec& spec);

// Attention over x with its projections attn.q, k, v, o.
Value attention_block(Builder& builder, Value x, Value positions, Value segments, const ModelSpec& model,
                      const AttentionSpec& spec, const BatchShape& shape);

// mlp.up and mlp.down, and mlp.gate where it is gated.
Value mixer_block(Builder& builder, Value x, const ModelSpec& model, const MixerSpec& spec);

// Hidden states of the tokens in front of the first layer; `table` receives the embedding table.
Value embed_tokens(Builder& builder, Value positions, Value& table, const ModelSpec& model, const BatchShape& shape);

// Logits from the last hidden states: the embedding table when tied, else "head.weight"; and "head.bias".
Value output_head(Builder& builder, Value hidden, Value table, const ModelSpec& model);

}  // namespace octet
