// The layouts of a program's states on a mesh.
#pragma once

#include <map>
#include <string>

#include "ir/program.h"
#include "passes/pass.h"

namespace octet {

// Axes whose ranks have the same parameters and other tokens: parallel.shard cuts over them.
inline const AxisSet kReplicas = AxisSet(Axis::kData) | Axis::kContext;

class StateLayouts {
 public:
  // Throws kInvalidArgument, naming a parameter, where a size does not divide.
  StateLayouts(const Program& program, const Parallel& parallel);

  // Of masters and moments, with the cut of a sharded optimiser.
  const Layout& master(const std::string& param) const { return masters_.at(param); }
  const Layout& gradient(const std::string& param) const {
    return parallel_.level >= ShardLevel::kGradients ? masters_.at(param) : weights_.at(param);
  }
  // Of products' operands: what tp alone cuts.
  const Layout& weight(const std::string& param) const { return weights_.at(param); }
  // Of an entry: caches are cut by heads. Gradients and buffers are as their makers give them: these have none yet.
  Layout of(const Program& program, const StateEntry& entry) const;

 private:
  std::map<std::string, Layout> weights_, masters_;
  Parallel parallel_;
};

// Throws kInvalidArgument, with the values that would do, where heads do not divide among the ranks of tp and cp.
void check_heads(const Program& program, const Mesh& mesh);

}  // namespace octet
