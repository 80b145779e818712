// Where a fusion's members find their operands among the node's inputs and results; of a node alone, where it does.
// Read once, when a kernel is bound.
#pragma once

#include <span>

#include "ir/fusion.h"
#include "ir/graph.h"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/precision/quantize.h"

namespace octet::cuda {

class FusionBody {
 public:
  FusionBody(const Graph& graph, const Node& node)
      : body_(node.op == Op::kFusion ? *node.body : graph), alone_(node.op != Op::kFusion) {}
  const Graph& graph() const { return body_; }

  // The first member of this op, or null.
  const Node* member(Op op) const;
  // Which of the fusion's inputs is this member's input `slot`; -1 when another member makes it, or it is absent.
  int input(const Node& member, size_t slot) const;
  int input(Value value) const;  // of a fusion
  // The same where the member reads a slice of columns of an input: they begin at column `begin` of rows `stride` wide.
  struct Columns {
    int input = -1;
    int64_t begin = 0, stride = 0;
    // Where they begin, of two bytes each; null where there is no such input.
    const void* in(std::span<const Tensor> inputs) const {
      return input < 0 ? nullptr : inputs[static_cast<size_t>(input)].as<const uint16_t>() + begin;
    }
  };
  Columns columns(const Node& member, size_t slot) const;
  // Which of the fusion's results is this member's result; -1: unused outside, or no such member.
  int result(const Node& member, int32_t result) const;
  int result(const Node* member, int32_t result = 0) const {
    return member != nullptr ? this->result(*member, result) : -1;
  }
  // Whether the member's input `slot` is result 0 of `maker`.
  bool reads(const Node& member, size_t slot, const Node& maker) const;

 private:
  NodeId id(const Node& member) const { return NodeId{static_cast<int32_t>(&member - body_.nodes().data())}; }
  const Graph& body_;
  bool alone_;
};

// A fusion, read once for all entries.
struct Fusion {
  const Graph& graph;  // that the node is in
  const Node& node;
  FusionBody body;
  std::optional<Chain> chain;        // where it is one
  std::optional<Producer> producer;  // none: tests' own

  Fusion(const Graph& graph, const Node& node)
      : graph(graph), node(node), body(graph, node), chain(read_chain(*node.body)) {
    producer = chain ? chain->producer : fusion_producer(*node.body);
  }
};

// Where a quantize at the end of a fusion has its operands; nothing where there is none. `amax` is the reduce's where
// that is a member instead.
struct SinkPlaces {
  int scale = -1, codes = -1, scale_inv = -1, codes_t = -1, scale_inv_t = -1, amax = -1, column_sums = -1;
  SinkPlaces() = default;
  SinkPlaces(const FusionBody& body, const Sinks& sinks);
  void put_results(const KernelArgs& args, QuantizeJob& job) const;  // codes, inverse scales and amax
};

// The formula of a node with the attributes of scales, for codes of this format.
ScaleFormula scale_formula(const Node& node, DType format);

inline Activation activation_of(const Node& node) {
  return activation_of(node.op, node.attrs.get_or("approximate", false));
}

}  // namespace octet::cuda
