// Parameters in NF4 (ir/nf4.h): the states of an executor from a source of weights, piece by piece; no copy of a matrix
// in float is made.
#pragma once

#include <vector>

#include "exec/logical_states.h"
#include "weights/weights.h"

namespace octet {

// Codes of bitsandbytes as they are stored, with the same values; other weights are quantized as bitsandbytes does.
// Throws kUnsupported naming a parameter whose codes lie as the states have no place for.
void fill_nf4(Executor& executor, const Nf4Param& param, const ParamView& view);

// The values that a parameter of these [N, K] has once it is held so; nf4: AdapterSpec's.
std::vector<float> round_to_nf4(const ParamView& view, int64_t nf4);

}  // namespace octet
