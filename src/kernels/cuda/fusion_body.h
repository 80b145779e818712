// Where a fusion's members find their operands among the node's inputs and results. Read once, when a kernel is bound.
#pragma once

#include <span>
#include <string_view>

#include "ir/graph.h"
#include "kernels/cuda/kernel.h"

namespace octet::cuda {

class FusionBody {
 public:
  explicit FusionBody(const Node& fusion) : body_(*fusion.body) {}
  const Graph& graph() const { return body_; }

  // The member of this name ("norm", "quantize": passes/fuse_patterns.cc), or null.
  const Node* member(std::string_view name) const;
  // Which of the fusion's inputs is this member's input `slot`; -1 when another member makes it, or it is absent.
  int input(const Node& member, size_t slot) const;
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
  // Which of the fusion's results is this member's result; -1 when nobody outside reads it.
  int result(const Node& member, int32_t result) const;
  // Whether the member's input `slot` is result 0 of `maker`.
  bool reads(const Node& member, size_t slot, const Node& maker) const;

 private:
  NodeId id(const Node& member) const { return NodeId{static_cast<int32_t>(&member - body_.nodes().data())}; }
  const Graph& body_;
};

}  // namespace octet::cuda
