// Precision: from logical float32 to the recipe's types, and FP8 for the GEMMs the recipe and its decisions name.
//
// Retypes results by their ResultPrecision. In training programs (there is a graph "apply") param leaves of rank >= 2
// stay float32 masters and the model graphs read compute copies: state "P.bf16", or "P.codes" + "P.scale_inv" (FP8);
// graphs "prepare" (made here) and "apply" (extended here) refresh them. Rank-1 params are read as they are. In
// inference programs params are retyped in place. FP8 linears become quantize + scaled_matmul; one quantize per tensor
// and scaling is shared by all its users. Delayed scaling keeps states scale.K, scale_inv.K, amax_history.K, amax.K for
// activation/gradient tensor K; "train"/"accumulate" record amax (maximum over micro-batches), "apply" advances.
#pragma once

#include "passes/pass.h"

namespace octet {

bool precision(Program& program, const CompileOptions& options);

}  // namespace octet
