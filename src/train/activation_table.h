// `octet plan --activations`: bytes that a layer keeps for its backward pass, ours beside the formulas of "Reducing
// Activation Recomputation in Large Transformer Models" (arXiv 2205.05198, equations 1 to 4 and table 2; 16-bit,
// dropout as there), for the models of its table 3 at s = 2048.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/target.h"
#include "passes/pass.h"
#include "precision/recipe.h"

namespace octet {

// A term of the paper's sum, in units of sbh bytes, and what of our kept values stands for it.
struct ActivationTerm {
  std::string name;
  double paper_none = 0, ours_none = 0, paper_selective = 0, ours_selective = 0;
  std::string reason;  // why they differ
};

// Bytes of one inner layer that one of the t tensor-parallel ranks keeps.
struct ActivationRow {
  std::string name;
  int64_t s = 0, b = 0, h = 0, a = 0, t = 1;
  int64_t ours_none = 0, ours_light = 0, ours_selective = 0, ours_full = 0;
  double paper_none = 0, paper_selective = 0, paper_full = 0;
  std::vector<ActivationTerm> terms;  // the last is what no term claims

  double sbh() const { return static_cast<double>(s) * static_cast<double>(b) * static_cast<double>(h); }
};

// Throws kInvalidArgument for a mesh of other axes than tensor: the formulas know no others.
std::vector<ActivationRow> activation_table(const Recipe& recipe, const Target& target, const Parallel& parallel = {});

// What a rank of the first stage keeps of all its micro-batches in the paper's meshes (table 3), under selective
// recomputation and sequence parallelism: sbhL/t (34 f + p/L), where L/p layers keep p micro-batches and interleaving
// makes it f = 1 + (p - 1) / (p v) as many; where p = 1 the head adds 4 sbh/t (1 + vocabulary/h) (section 4.2.3).
struct StageActivationRow {
  std::string name;
  int64_t layers = 0, t = 1, p = 1, v = 1, micro_batches = 1;
  int64_t ours = 0;         // kept by layers, head and embedding
  int64_t slots = 0;        // micro-batches, each of one chunk, that it keeps
  int64_t stage_bytes = 0;  // all that a rank of the stage needs, without a sharded optimiser
  double paper_layers = 0, paper = 0;
};
std::vector<StageActivationRow> stage_activation_table(const std::string& recipe, const Target& target);
std::string to_text(const std::vector<StageActivationRow>& rows);

// `explain`: with every row's terms.
std::string to_text(const std::vector<ActivationRow>& rows, bool explain);

}  // namespace octet
