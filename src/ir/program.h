// A Program: several graphs over one named state table.
//
// Training has "train" (forward + backward of one micro-batch, writing gradients), "accumulate" (the same, adding to
// them; only when micro-batches > 1), "apply" (clip, optimiser, scales, compute copies of weights), "prepare" (compute
// copies from master weights: run after loading) and "eval"; under recipe auto also "train_stats" ("train" with
// statistics of every GEMM's operands). Inference has one forward graph per bucket.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace octet {

enum class StateKind : uint8_t {
  kParam,      // the logical parameter itself: float32 master in training, the loaded weights in inference
  kCompute,    // a copy derived from a parameter by "prepare"/"apply": bf16, FP8 codes, scales. Never saved
  kMoment,     // optimiser state
  kGradient,   // what micro-batches of a step add up: gradients, the loss, amaxes of delayed scaling
  kScale,      // FP8 scales, amaxes and histories: saved
  kQuantized,  // inference: FP8 codes and scales of a parameter, in its place; made while loading
  kKvCache,
};
const char* state_kind_name(StateKind kind);

struct StateEntry {
  std::string name;
  TensorType type;
  StateKind kind = StateKind::kParam;
  std::string param;   // the logical parameter this belongs to, or ""
  double initial = 0;  // fill value of a fresh run (scales start at 1)
};

class Program {
 public:
  std::string name = "program";

  // Adds or returns the entry; a second add with another type throws kInternal.
  StateEntry& add_state(StateEntry entry);
  const StateEntry* find_state(const std::string& name) const;
  const std::vector<StateEntry>& states() const { return states_; }
  std::vector<StateEntry>& states() { return states_; }
  int64_t state_bytes(StateKind kind) const;

  Graph& add_graph(Graph graph);  // replaces one of the same name
  Graph* find_graph(const std::string& name);
  const Graph* find_graph(const std::string& name) const;
  Graph& graph(const std::string& name);  // throws kNotFound listing what there is
  const Graph& graph(const std::string& name) const;
  std::vector<Graph>& graphs() { return graphs_; }
  const std::vector<Graph>& graphs() const { return graphs_; }

 private:
  std::vector<StateEntry> states_;
  std::map<std::string, size_t> state_index_;
  std::vector<Graph> graphs_;
};

// Gives every param and state leaf and every update of the graphs a StateEntry where none exists yet: kParam for
// params, kKvCache for what scatter_rows appends to, kScale for the rest (their makers declare what is something else;
// the leaf's attr initial is their fill value).
void collect_state(Program& program);

}  // namespace octet
