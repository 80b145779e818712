// Passes over text: what octet-opt runs and what the text-in, text-out tests compare.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "passes/pass.h"

namespace octet {

// The pipeline's passes by name, and "plan_memory". Throws kInvalidArgument with the nearest name.
std::vector<std::string> pass_names();
const Pass& find_pass(const std::string& name);

// Parses a graph or a program, runs the passes in the order given, verifies after each, and prints what came out: a
// graph when a graph came in and it is still alone. A last "plan_memory" prints the memory plan instead.
std::string run_passes(std::string_view text, const std::string& where, const std::vector<std::string>& passes,
                       const CompileOptions& options);

// The plan as text: bytes per graph, then the place of every value ("%12.0 arena 4096 + 512  layers.0.norm1").
std::string print(const Plan& plan);

}  // namespace octet
