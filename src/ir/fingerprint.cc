#include "ir/fingerprint.h"

#include <bit>
#include <functional>

namespace octet {
namespace {

class Hash {
 public:
  void add(uint64_t value) {
    state_ = (std::rotl(state_, 23) ^ value) * 0x9e3779b97f4a7c15;
    state_ ^= state_ >> 32;
  }
  void add(int64_t value) { add(static_cast<uint64_t>(value)); }
  void add(int32_t value) { add(static_cast<uint64_t>(value)); }
  void add(bool value) { add(static_cast<uint64_t>(value)); }
  void add(double value) { add(std::bit_cast<uint64_t>(value)); }
  void add(const std::string& text) { add(static_cast<uint64_t>(std::hash<std::string>()(text))); }
  template <typename T>
  void add(const std::vector<T>& list) {
    add(static_cast<uint64_t>(list.size()));
    for (const T& item : list) add(item);
  }
  void add(Value value) {
    add(index(value.node));
    add(value.result);
  }
  void add(const TensorType& type) {
    add(static_cast<uint64_t>(type.dtype));
    add(type.shape.dims);
  }
  void add(const Layout& layout) {
    add(static_cast<uint64_t>(layout.cuts.size()));
    for (const Layout::Cut& cut : layout.cuts) add(static_cast<uint64_t>(cut.axis)), add(cut.dim), add(cut.outer);
    for (AxisSet axes : layout.pending) add(static_cast<uint64_t>(axes.bits));
  }
  void add(const NamedValue& named) {
    add(named.name);
    add(named.value);
  }
  void add(const Attrs& attrs) {
    add(static_cast<uint64_t>(attrs.entries().size()));
    for (const auto& [key, attr] : attrs.entries()) {
      add(key);
      add(static_cast<uint64_t>(attr.index()));
      std::visit([this](const auto& value) { add(value); }, attr);
    }
  }
  void add(const Node& node) {
    add(static_cast<uint64_t>(node.op));
    add(node.inputs);
    add(node.results);
    add(node.layouts);
    add(node.attrs);
    add(node.name);
    add(node.layer);
    add(static_cast<uint64_t>(node.phase));
    add(node.body != nullptr);
    if (node.body != nullptr) add(*node.body);
  }
  void add(const Graph& graph) {
    add(graph.name());
    add(static_cast<uint64_t>(graph.role()));
    for (Axis axis : kAllAxes) add(graph.mesh()[axis]);
    add(graph.nodes());
    add(graph.outputs());
    add(graph.updates());
  }
  void add(const PlacedDim& dim) {
    add(std::vector<int64_t>{dim.origin, dim.extent, dim.run, dim.stride, dim.run_stride});
  }
  void add(const Placement& placement) {
    add(placement.param);
    add(placement.shape.dims);
    add(placement.offset);
    add(placement.dims);
  }
  void add(const StateEntry& entry) {
    add(entry.name);
    add(entry.type);
    add(entry.layout);
    add(static_cast<uint64_t>(entry.role));
    add(entry.param);
    add(entry.index);
    add(entry.initial);
    add(entry.placements);
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0;
};

}  // namespace

uint64_t fingerprint(const Program& program) {
  Hash hash;
  hash.add(program.name);
  hash.add(program.states());
  hash.add(program.graphs());
  return hash.value();
}

}  // namespace octet
