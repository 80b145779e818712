// Pieces the families share, and the list of families. Only model/ includes this.
#pragma once

#include "model/model.h"

namespace octet {

Value gpt2_logits(Builder& builder, const ModelConfig& config, const BatchShape& shape);
Value llama_logits(Builder& builder, const ModelConfig& config, const BatchShape& shape);

AttentionOptions attention_options(const ModelConfig& config, const BatchShape& shape);

// Logits from the last hidden states: the embedding table when tied, else "head.weight".
Value output_head(Builder& builder, Value hidden, Value table, const ModelConfig& config);

}  // namespace octet
