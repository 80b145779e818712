// Bringing values of a graph from one layout to another, by collectives.
#pragma once

#include <map>
#include <string>
#include <tuple>

#include "base/threads.h"
#include "ir/graph.h"

namespace octet {

class Relayout {
 public:
  explicit Relayout(Graph& graph) : graph_(graph) {}

  // The phase of the nodes added from now on.
  void set_phase(Phase phase) { phase_ = phase; }

  // The value in this layout. One reduction of a value; one gather in forward and one behind it: backward gathers again
  // what forward had gathered, so that only the part is kept. Copies cannot become a sum (kInternal).
  Value redistribute(Value x, const Layout& want);

  // Adds a node of one operand, with the name and layer of what made the operand.
  Value emit(Op op, Value x, Attrs attrs);

 private:
  const Layout& layout(Value value) const { return graph_.layout(value); }
  // What `make` made of x for this layout before, or makes now.
  Value known(Value x, const Layout& want, bool backward, FunctionRef<Value()> make);
  Value settle_pending(Value x, const Layout& want);
  Value recut(Value x, const Layout& want);
  Value gather(Value x, int dim, const AxisList& over);
  Value reduce(Value x, Pending kind, const AxisList& over);
  Value along(Op op, Value x, int axis, const AxisList& over);

  Graph& graph_;
  Phase phase_ = Phase::kForward;
  std::map<std::tuple<int32_t, int32_t, bool, std::string>, Value> known_;
};

}  // namespace octet
