// Passes over text: what octet-opt runs and what the text-in, text-out tests compare.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "passes/pass.h"
#include "passes/serving_graphs.h"

namespace octet {

// Names that run_passes() takes, a line each: the pipeline's passes, each before its steps; "plan_memory"; and what
// makes graphs of serving from a model's graph outside the pipeline: kv_cache, forward_graph, sample_graph,
// copy_blocks_graph.
std::string list_passes();
// A pass, or a step as a pass of its own. Throws kInvalidArgument with the nearest name.
Pass find_pass(const std::string& name);

// Sizes for the graphs of serving. `words` are "sequences=2"; an unknown one throws kInvalidArgument with the nearest.
struct ServingSizes {
  KvCacheOptions cache = {.blocks = {8}, .block_size = 4, .sequences = 2, .blocks_per_sequence = 4};  // of every group
  ServingStates states = {.sequences = 2, .rows = 2};
  SampleGraphOptions sample = {.rows = 2};
};
ServingSizes parse_serving_sizes(const std::vector<std::string>& words);

// Parses a graph or a program, runs the passes in the order given, verifies after each, and prints what came out: a
// graph when a graph came in and it is still alone. A last "plan_memory" prints the memory plan instead.
std::string run_passes(std::string_view text, const std::string& where, const std::vector<std::string>& passes,
                       const CompileOptions& options, const ServingSizes& sizes = {});

// The plan as text: bytes per graph, then the place of every value ("%12.0 arena 4096 + 512  layers.0.norm1").
std::string print(const Plan& plan);

}  // namespace octet
