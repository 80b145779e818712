// Pack: the physical layout of parameters. Logical names and shapes (checkpoints, users) never change; off, every
// parameter is stored as its logical self. Its steps:
//
// - pad_vocab, where the Target has vocab_multiple > 1: tables an output head reads get zero rows up to that multiple,
//   with their moments, gradients and copies; losses count the logical classes only (attr classes), an output keeps its
//   logical columns. Padded rows start at zero and stay zero.
// - merge_siblings, where the Target's products take kSiblings: in inference programs, linears that read the same x (q,
//   k, v; gate, up) become one product with a weight (or FP8 codes) of all their rows, and slices; where they take
//   kSlices, product and slices are one fusion.
// - fold_slices: fusions whose kernels take kColumns slice the product's result themselves.
//
// State entries say where each logical tensor lies in them (placements): loaders and checkpoints go by these.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "passes/pass.h"

namespace octet {

bool pack(Program& program, const CompileOptions& options);
std::span<const Step> pack_steps();

// What the steps run. A program they do not fit is left alone; they return whether something changed.
bool pad_vocab(Program& program, int64_t multiple);
bool merge_siblings(Program& program, bool fused = false);
bool fold_slices(Graph& graph, const Target& target);
// A fusion that fold_slices would take apart, or none.
NodeId find_foldable_product(const Graph& graph, const Target& target);

}  // namespace octet
