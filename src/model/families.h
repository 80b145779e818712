// Pieces of the decoder, each chosen by facts of the config. Only model/ includes this.
#pragma once

#include "model/model.h"

namespace octet {

// Parameters of a norm over x's last dim, "<name>.weight" and ".bias".
Value norm(Builder& builder, Value x, const std::string& name, const ModelConfig& config);

// Attention over x with its projections attn.q, k, v, o.
Value attention_block(Builder& builder, Value x, Value positions, Value segments, const ModelConfig& config,
                      const BatchShape& shape);

// mlp.up and mlp.down, and mlp.gate where it is gated.
Value mlp_block(Builder& builder, Value x, const ModelConfig& config);

// Hidden states of the tokens in front of the first layer; `table` receives the embedding table.
Value embed_tokens(Builder& builder, Value positions, Value& table, const ModelConfig& config, const BatchShape& shape);

// Logits from the last hidden states: the embedding table when tied, else "head.weight"; and "head.bias".
Value output_head(Builder& builder, Value hidden, Value table, const ModelConfig& config);

}  // namespace octet
