#include <bit>
#include <functional>

#include "ir/text.h"

namespace octet {
namespace {

class Hash {
 public:
  template <typename... Parts>
  explicit Hash(const Parts&... parts) {
    (add(parts), ...);
  }
  uint64_t value() const { return state_; }

 private:
  template <typename T>
  requires std::is_integral_v<T> || std::is_enum_v<T>
  void add(T value) {
    state_ = (std::rotl(state_, 23) ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15;
    state_ ^= state_ >> 32;
  }
  void add(double value) { add(std::bit_cast<uint64_t>(value)); }
  void add(const std::string& text) { add(std::hash<std::string>()(text)); }
  template <typename T>
  void add(const std::vector<T>& list) {
    add(list.size());
    for (const T& item : list) add(item);
  }
  template <typename... Parts>
  void add(const auto& first, const auto& second, const Parts&... rest) {
    add(first), add(second), (add(rest), ...);
  }
  void add(Value value) { add(value.node, value.result); }
  void add(const TensorType& type) { add(type.dtype, type.shape.dims); }
  void add(AxisSet axes) { add(axes.bits); }
  void add(const Layout& layout) {
    add(layout.cuts.size());
    for (const Layout::Cut& cut : layout.cuts) add(cut.axis, cut.dim, cut.outer);
    for (AxisSet axes : layout.pending) add(axes);
  }
  void add(const NamedValue& named) { add(named.name, named.value); }
  void add(const std::pair<std::string, Attr>& entry) {
    add(entry.first, entry.second.index());
    std::visit([this](const auto& value) { add(value); }, entry.second);
  }
  void add(const Attrs& attrs) { add(attrs.entries()); }
  void add(const Node& node) {
    add(node.op, node.inputs, node.results, node.attrs, node.name, node.layer, node.phase, node.body != nullptr);
    if (!node.layouts.empty()) add(node.layouts);
    if (node.body != nullptr) add(*node.body);
  }
  void add(const Graph& graph) {
    add(graph.name(), graph.role(), graph.nodes(), graph.outputs(), graph.updates());
    if (graph.mesh().ranks() > 1)
      add(graph.mesh().size[0], graph.mesh().size[1], graph.mesh().size[2], graph.mesh().size[3]);
  }
  void add(const PlacedDim& dim) { add(dim.origin, dim.extent, dim.run, dim.stride, dim.run_stride); }
  void add(const Placement& placement) { add(placement.param, placement.shape.dims, placement.offset, placement.dims); }
  void add(const StateEntry& entry) {
    add(entry.name, entry.type, entry.role, entry.param, entry.index, entry.initial, entry.placements);
    if (!entry.layout.copies()) add(entry.layout);
    if (entry.slots != 1) add(entry.slots);
    if (entry.update != Update::kDense) add(entry.update);
  }

  uint64_t state_ = 0;
};

}  // namespace

uint64_t fingerprint(const Program& program) { return Hash(program.name, program.states(), program.graphs()).value(); }

uint64_t computation_hash(const Node& node) { return Hash(node.op, node.inputs, node.attrs).value(); }

}  // namespace octet
