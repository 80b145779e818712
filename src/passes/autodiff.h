// Autodiff: appends the gradient of output "loss" to graph "train".
//
// Before: outputs "loss" (f32[1], the sum over tokens). After: input "loss_scale" f32[1] seeds dL/dloss (the trainer
// feeds 1 / valid tokens of the whole step), and for every param P the update "grad.P" (a kGradient state, f32, the
// param's shape) is made. Program-level: a graph "accumulate" is a copy of "train" whose updates add to grad.P, with
// the addition folded into the wgrad matmul's or embedding_grad's c operand where it is one.
// State "loss_sum" f32[1] gets the loss in "train", and in "accumulate" the loss is added to it.
// Every linear's GEMMs carry attrs gemm="<linear name>" and role = fprop | dgrad | wgrad.
//
// Steps: differentiate; fold_sums, which makes those additions parts of the products.
#pragma once

#include "passes/pass.h"

namespace octet {

inline constexpr const char* kLossSum = "loss_sum";

// Graph level: returns the graph with outputs "grad.<param>" appended, sums folded.
Graph differentiate(const Graph& forward, const std::string& loss_output = "loss");

bool autodiff(Program& program, const CompileOptions& options);
std::span<const Step> autodiff_steps();

}  // namespace octet
