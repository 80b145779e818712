// The pass adapt: what an adapter (model/adapter.h) adds to a graph of a model, in front of autodiff and of every other
// pass. The code that builds models knows nothing of it.
#pragma once

#include "ir/builder.h"
#include "model/adapter.h"

namespace octet {

// A linear y = x W^T whose weight a LowRank names becomes y + scale (dropout(x) A^T) B^T; with DoRA that sum times
// magnitude / |rows of W + scale B A|, whose divisor gets no gradient. Parameters of the model are frozen (attribute
// update="none", in NF4 also nf4) but for AdapterSpec::trained; new ones, trained and named as model/adapter.h says:
//
//   NAME.lora_a [rank, in] uniform, NAME.lora_b [out, rank] zeros; of an embedding ("in" is the vocabulary) A zeros and
//   B normal; of experts [experts x rank, in] and [experts x out, rank]
//   NAME.magnitude [out]: |rows of W| of the base, which whoever fills the states computes
//   embed.token_rows [rows, hidden]: begins as these rows of the table
//   prompt.weight [virtual tokens, hidden], read by ids from the vocabulary's size on; or
//   prompt_encoder.embedding.weight and prompt_encoder.mlp_head.{0,2,4}.{weight,bias}, whose MLP makes these rows; with
//   an LSTM prompt_encoder.lstm_head.{weight,bias}_{ih,hh}_lN[_reverse] in front of mlp_head.{0,2}
//
// Dropout only where the graph's role is train. Throws kInvalidArgument naming what matches nothing or does not fit,
// kUnsupported where the model has no such part.
Graph adapt(const Graph& model, const AdapterSpec& adapter);

// The rows of its virtual tokens, [virtual tokens, hidden], alone.
Value build_prompt(Builder& builder, const AdapterSpec& adapter, int64_t hidden);

}  // namespace octet
