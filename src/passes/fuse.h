// Fuse: patterns of nodes become one fusion node, for the kinds the Target names (its kernels).
//
// A fusion node has attr kind and a body graph: input leaves in the order of the node's inputs, outputs in the order of
// its results; results nobody uses are dropped. Body leaves and outputs are called "<member>.<index>" after the
// pattern's members (fuse_patterns.h), so that a kernel finds x, weight, codes by name: "norm.0" among the inputs is
// the norm's first input, "norm.0" among the outputs its first result. Every value in a body still rounds to its
// declared type: fused and unfused agree bit for bit.
//
// Two kinds merge a sum into a product's accumulator instead, and round once where two roundings were:
// "matmul_accumulate" (float32 sums) and "matmul_residual" (a residual in the compute type).
//
// Steps: merge_sums for these two kinds, fuse_patterns for the others.
#pragma once

#include <span>

#include "passes/pass.h"

namespace octet {

struct FusionPattern;

bool fuse(Program& program, const CompileOptions& options);
std::span<const Step> fuse_steps();

// Graph level. Returns whether something changed.
bool fuse_graph(Graph& graph, const Target& target);
bool fuse_graph(Graph& graph, const Target& target, std::span<const FusionPattern> patterns);  // fuse_patterns.h
bool merge_sums(Graph& graph, const Target& target);

}  // namespace octet
