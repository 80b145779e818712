// What the graphs and states of a pipeline's stage are called, and the cut of a model's layers into pieces.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "passes/pass.h"

namespace octet {

inline std::string forward_graph(int32_t chunk, bool adding) {
  return fmt::format("forward.{}{}", chunk, adding ? ".add" : "");
}
inline std::string backward_graph(int32_t chunk, bool adding) {
  return fmt::format("backward.{}{}", chunk, adding ? ".add" : "");
}
inline std::string eval_graph(int32_t chunk) { return fmt::format("eval.{}", chunk); }

// The states of a chunk for what it sends, or receives, in one direction; in order, the same at both ends.
std::string transfer_state(bool sent, bool gradient, int32_t chunk, int32_t index);
std::vector<std::string> transfer_states(const Program& program, bool sent, bool gradient, int32_t chunk);

// By node of a graph: the layer that its piece is known by, of `layers`; kAnywhere: of leaves alone, made again where
// it is read. Nodes outside the layers are the first one's where they come before it, else the last one's.
inline constexpr int32_t kAnywhere = -1;
std::vector<int32_t> layers_of(const Graph& graph, int32_t layers);
int32_t layer_count(const Graph& graph);

// By the rates that the Target has, else by some that weigh arithmetic against memory as devices do. Of a collective
// what travels, of a fusion with one both: `hidden` of the link's time passes beside the kernel.
struct NodeSeconds {
  double kernel = 0, link = 0, hidden = 0;
  double exposed() const { return link - hidden; }
  double all() const { return kernel + exposed(); }
};
NodeSeconds seconds_of(const Graph& graph, NodeId id, const Target& target);

// Zero rows under a vocabulary, so that both ends of a tied table have the same ones: before layers are cut. Returns
// whether something changed.
bool pad_for_stages(Program& program, const CompileOptions& options);

// By stage, the first one whose program is the same but for names of layers and the slots of what it saves.
std::vector<int32_t> alike_stages(const Program& whole, const std::vector<int32_t>& cut, const Parallel& parallel);

// By layer, its piece: parallel.cut, else runs of layers, the longest of which takes as little of the Target's time as
// can be. Throws kInvalidArgument where there are fewer layers than pieces.
std::vector<int32_t> cut_layers(const Graph& train, const Parallel& parallel, const Target& target);
// Its two halves, for who knows the seconds of layers: seconds_of() by layer, and the runs.
std::vector<double> layer_seconds(const Graph& train, const Target& target);
std::vector<int32_t> balance_layers(const std::vector<double>& seconds, int32_t stages, int32_t chunks);

}  // namespace octet
