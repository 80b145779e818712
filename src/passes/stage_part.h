// One graph of the whole model, and the parts of it that pieces of a pipeline run.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "ir/program.h"

namespace octet {

class StagePart {
 public:
  // pieces: by node, kAnywhere (stage_graphs.h) where it is made again. New states are declared in `program`.
  StagePart(const Graph& whole, std::vector<int32_t> pieces, int32_t stages, Program& program);

  // The part of a piece, forward or backward. Backward first: it says what forward saves for it, in `slots` copies.
  Graph part(int32_t piece, bool backward, std::string name, int32_t slots);

 private:
  struct Building;

  int32_t piece(Value value) const { return pieces_[slot(value.node)]; }
  bool anywhere(Value value) const;
  bool is_backward(Value value) const { return whole_.node(value).phase != Phase::kForward; }
  int32_t chunk(int32_t piece) const { return piece / stages_; }

  // Sums of gradients of a table that several pieces read: each keeps its own addends.
  void split_sums(Value value, const std::string& state);
  bool adds_to(Value value, const std::string& state) const;
  // What crosses from a piece to its neighbour, in order.
  void find_crossings();
  void cross(std::vector<Value>& list, Value value);
  Value source(Value value) const;  // what a view shows

  Value get(Building& b, Value value);
  // The leaf of a state that holds what `value` of the whole graph is.
  Value state(Building& b, const std::string& name, Value value, StateRole role, int32_t slots);
  void add_node(Building& b, NodeId id);

  const Graph& whole_;
  std::vector<int32_t> pieces_;
  int32_t stages_;
  Program& program_;
  ValueTable<char> is_rows_;
  std::map<std::pair<int32_t, size_t>, std::string>
      dropped_;                                         // node and operand that is another piece's sum: its state
  std::vector<NamedValue> updates_;                     // of the graph, those of split sums once for each piece
  std::vector<std::vector<Value>> forward_, backward_;  // by piece that makes them
  std::vector<Value> saved_;                            // of the piece whose backward was made last
};

}  // namespace octet
