// How long graphs take on a Target, for people: by what nodes reach within steps, where the Target has that
// (StepRates), else by seconds_of(), by which passes choose.
#pragma once

#include "passes/stage_graphs.h"

namespace octet {

enum class WorkKind : uint8_t { kProducts, kAttention, kOther };  // kOther: nodes that are bound by memory
inline constexpr size_t kWorkKinds = 3;

WorkKind work_kind(const Node& node);
NodeSeconds clock_seconds(const Graph& graph, NodeId id, const Target& target);

// Seconds for `bytes` that a rank sends over these axes of a mesh whose ranks fill machines one after the other, with
// tensor ranks next to each other and pipeline stages furthest apart.
double link_seconds(double bytes, const AxisList& over, const Mesh& mesh, const Target& target);

// Of one run of a graph: its kernels by kind, one after the other, and what they wait for collectives, of which those
// that are asynchronous pass beside kernels until their join.
struct GraphSeconds {
  std::array<double, kWorkKinds> kernels = {};
  double waiting = 0;
  double computing() const { return kernels[0] + kernels[1] + kernels[2]; }
  double all() const { return computing() + waiting; }
  GraphSeconds& operator+=(const GraphSeconds& other);
};
GraphSeconds graph_seconds(const Graph& graph, const Target& target);

}  // namespace octet
