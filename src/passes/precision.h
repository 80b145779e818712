// Precision: from logical float32 to the recipe's types, and FP8 for the GEMMs the recipe and its decisions name.
//
// Retypes results by their ResultPrecision. In training programs (graph role apply, or a state of role moment or
// gradient) params of rank >= 2 stay float32 masters and the model graphs read compute copies: state "P.bf16", or
// FP8 codes "P.codes" + "P.scale_inv" ("P.block_codes" ... under block scaling, "_t" for transposed ones); graphs
// "prepare" (made here) and "apply" (extended here) refresh them. Rank-1 params are read as they are. In inference
// programs params are retyped in place; those of FP8 linears are kept as states "P.codes" and "P.scale_inv" only (no
// master; attrs scaling, margin and pow2 of the leaf "P.codes" tell the loader how they are made). FP8 linears
// become quantize + scaled_matmul; one quantize per tensor, scaling and format is shared by all its users. Delayed
// scaling keeps states scale.K, amax_history.K, amax.K for tensor K ("<gemm>.x" or "<gemm>.dy" of the first linear
// reading it); "train" records an amax, "accumulate" the maximum with it, "apply" advances. In inference programs
// current scaling takes one scale a row: no token's codes depend on another's. Under recipe fp32 nothing changes; tf32
// only marks the products. With Recipe::statistics a training program also gets graph "train_stats": "train" with
// outputs "stats.K", the tensor_stats of every operand K of a linear's GEMM (activations, gradients, master weights).
#pragma once

#include <string>
#include <vector>

#include "passes/pass.h"

namespace octet {

bool precision(Program& program, const CompileOptions& options);

bool is_model_graph(const Graph& graph);  // any but "apply" and "prepare"

// What precision() makes of every GEMM of a linear, by graph, in node order; pure. `reason` says why a GEMM the recipe
// wants in FP8 stays in the compute type, and is empty otherwise.
struct GemmReport {
  GraphRole graph = GraphRole::kNone;
  std::string gemm;
  GemmRole role = GemmRole::kFprop;
  GemmPrecision wanted = {}, used = {};
  std::string reason;
  int64_t m = 0, n = 0, k = 0;
  std::string operands[2];  // names of their statistics: tensor K as above, or the weight's own name
};
std::vector<GemmReport> precision_report(const Program& program, const CompileOptions& options);

}  // namespace octet
