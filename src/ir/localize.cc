#include "ir/localize.h"

#include <algorithm>

#include "base/error.h"

namespace octet {
namespace {

class Localizer {
 public:
  Localizer(Graph& graph, const Coordinate& at) : graph_(graph), mesh_(graph.mesh()), at_(at) {}

  void run() {
    for (int32_t i = 0; i < graph_.size(); ++i) localize(graph_.mutable_node(NodeId{i}));
  }

 private:
  void localize(Node& node) {
    switch (node.op) {
      case Op::kEmbedding: return set_first(node, graph_.layout(node.inputs[1]), graph_.shape(node.inputs[1]), 0);
      case Op::kEmbeddingGrad:
        if (!node.layouts.empty()) set_first(node, node.layouts[0], node.results[0].shape, 0);
        return;
      case Op::kCrossEntropy:
      case Op::kCrossEntropyGrad:
      case Op::kRowLse: return set_first(node, graph_.layout(node.inputs[0]), graph_.shape(node.inputs[0]), 1);
      case Op::kDropout: return set_origin(node);
      case Op::kAttention:
      case Op::kAttentionGrad:
      case Op::kPagedAttention: return set_heads(node);
      case Op::kSquareSum: return set_counted(node);
      case Op::kFusion: {
        Graph body = *node.body;
        octet::localize(body, at_);
        node.body = std::make_shared<const Graph>(std::move(body));
        return;
      }
      default: return;
    }
  }

  int64_t first(const Layout& layout, const Shape& shape, int dim) const {
    return first_element(layout, dim, shape[dim], mesh_, at_);
  }

  void set_first(Node& node, const Layout& layout, const Shape& shape, int dim) const {
    if (!layout.cut_axes(dim).empty()) node.attrs.set("first", first(layout, shape, dim));
  }

  // First row, first column and columns of the whole matrix.
  void set_origin(Node& node) const {
    const Layout& x = graph_.layout(node.inputs[0]);
    const Shape& shape = graph_.shape(node.inputs[0]);
    if (x.cuts.empty()) return;
    check(shape.rank() == 2 && x.outer(0) == 1 && x.outer(1) == 1, ErrorCode::kUnsupported,
          "dropout of {}, which is no matrix cut into blocks, in node {}", print(graph_.type(node.inputs[0]), x),
          node.name);
    node.attrs.set("origin",
                   std::vector<int64_t>{first(x, shape, 0), first(x, shape, 1), whole_shape(shape, x, mesh_).cols()});
  }

  void set_heads(Node& node) const {
    const Layout& q = graph_.layout(node.inputs[0]);
    if (q.cuts.empty()) return;
    const int64_t heads = node.attr<int64_t>("heads");
    node.attrs.set("first_head", first(q, {1, heads}, 1));
    node.attrs.set("all_heads", heads * mesh_.parts(q.cut_axes(1)));
  }

  // An operand that an axis of the sum does not cut is the same on all its ranks: it counts on the first.
  void set_counted(Node& node) const {
    if (node.layouts.empty()) return;
    std::vector<int64_t> counted;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const AxisSet copied =
          node.layouts[0].pending_axes(Pending::kSum) - graph_.layout(node.inputs[i]).cut_axes() - Axis::kPipeline;
      const AxisList axes = copied.list();
      if (std::all_of(axes.begin(), axes.end(), [&](Axis axis) { return at_[axis] == 0; }))
        counted.push_back(static_cast<int64_t>(i));
    }
    node.attrs.set("counted", std::move(counted));
  }

  Graph& graph_;
  const Mesh& mesh_;
  const Coordinate& at_;
};

}  // namespace

void localize(Graph& graph, const Coordinate& at) {
  if (graph.mesh().ranks() > 1) Localizer(graph, at).run();
}

namespace {

// The part of a parameter's rows that lies in rows and columns [first, first + extent) of the state; extents may be 0.
Placement part_of(const Placement& whole, const StateEntry& entry, const Shape& state, const Mesh& mesh,
                  const Coordinate& at) {
  const int64_t row = whole.dims.empty() || whole.dims[0].stride == 0 ? 0 : whole.offset / whole.dims[0].stride;
  check(whole == place_rows(whole.param, whole.shape, row), ErrorCode::kUnsupported,
        "state {}: {} does not lie in whole rows, and the state is cut over ranks", entry.name, whole.param);
  Placement part = whole;
  part.offset = 0;
  int64_t stride = 1;
  for (int d = state.rank() - 1; d >= 0; --d) {
    const int64_t extent = entry.type.shape[d], first = first_element(entry.layout, d, extent, mesh, at);
    const int64_t begins = d == 0 ? row : 0;  // of the parameter in the whole state
    const int64_t from = std::max(first, begins), to = std::min(first + extent, begins + whole.shape[d]);
    PlacedDim& dim = part.dims[static_cast<size_t>(d)];
    dim = {from - begins, std::max<int64_t>(to - from, 0), std::max<int64_t>(to - from, 0), stride, 0};
    dim.run_stride = stride * dim.extent;
    part.offset += (from - first) * stride;
    stride *= extent;
  }
  return part;
}

// The part of one of several tensors that lie side by side in a state, each cut by itself: the box begins where the
// whole one's place does.
Placement own_part_of(const Placement& whole, const Layout& layout, const Mesh& mesh, const Coordinate& at) {
  Placement part = whole;
  for (size_t d = 0; d < part.dims.size(); ++d) {
    PlacedDim& dim = part.dims[d];
    const auto axis = static_cast<int>(d);
    dim.extent = dim.run = whole.shape[axis] / mesh.parts(layout.cut_axes(axis));
    dim.origin = first_element(layout, axis, dim.extent, mesh, at);
    dim.run_stride = dim.stride * dim.extent;
  }
  return part;
}

}  // namespace

void localize(Program& program, const Coordinate& at) {
  const Mesh mesh = program.mesh();
  for (StateEntry& entry : program.states()) {
    if (entry.layout.cuts.empty() && entry.slots > 0) continue;
    const Shape state = whole_shape(entry.type.shape, entry.layout, mesh);
    if (entry.placements.empty()) entry.placements = {place_rows(entry.param, state)};
    const bool joined = entry.placements.size() > 1;
    for (Placement& placement : entry.placements) {
      if (entry.slots > 0)
        placement =
            joined ? own_part_of(placement, entry.layout, mesh, at) : part_of(placement, entry, state, mesh, at);
      else  // another stage's
        for (PlacedDim& dim : placement.dims) dim.extent = dim.run = 0;
    }
  }
  for (Graph& graph : program.graphs()) localize(graph, at);
}

bool is_localized(const Node& node) {
  if (node.body != nullptr) return std::any_of(node.body->nodes().begin(), node.body->nodes().end(), is_localized);
  for (const char* key : {"first", "origin", "first_head", "counted"})
    if (node.attrs.has(key)) return true;
  return false;
}

}  // namespace octet
