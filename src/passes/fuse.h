// Fuse: a producer, what is added before or after it and the sinks of its result become one fusion node, as far as the
// Target's kernels go (ir/fusion.h).
//
// A fusion node has a body graph: input leaves in the order of the node's inputs, outputs in the order of its results;
// results nobody uses are dropped. Body leaves and outputs are called "<member>.<index>": "norm.0" among the inputs is
// the norm's first input, "norm.0" among the outputs its first result. Every value in a body still rounds to its
// declared type: fused and unfused agree bit for bit.
//
// Sums can merge into a product's accumulator instead, and round once where two roundings were: kAccumulate (float32
// sums) and kResidual (in the compute type) of Producer::kProduct.
//
// Steps: merge_sums for these, fuse_patterns for the others.
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
