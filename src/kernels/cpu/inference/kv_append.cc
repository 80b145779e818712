// kv_append: new rows copied into their slots of the cache, in place; slot -1 writes nowhere.
#include <cstring>

#include "base/error.h"
#include "kernels/cpu/kernel.h"

namespace octet::cpu {
namespace {

bool accepts(const Graph& graph, const Node& node) {
  return is_float(graph.dtype(node.inputs[1])) && node.inputs.size() == 3;
}

BoundKernel bind(const Graph& graph, const Node& node) {
  const DType from = graph.dtype(node.inputs[1]), to = node.results[0].dtype;
  const int64_t slots = node.results[0].shape.rows(), width = node.results[0].shape.cols();
  const int64_t tokens = graph.shape(node.inputs[2]).elements();
  return [=](const KernelArgs& args) {
    const int32_t* slot = args.in[2].as<const int32_t>();
    for (int64_t t = 0; t < tokens; ++t) {
      check(slot[t] >= -1 && slot[t] < slots, ErrorCode::kInvalidArgument, "kv_append: slot {} of a cache of {}",
            slot[t], slots);
    }
    auto* cache = args.out[0].as<std::byte>();
    if (args.in[0].data != cache) std::memcpy(cache, args.in[0].data, static_cast<size_t>(args.out[0].type->bytes()));
    // In token order on one thread: few bytes, and the last of two tokens of one slot wins.
    for (int64_t t = 0; t < tokens; ++t) {
      if (slot[t] < 0) continue;
      convert(from, args.in[1].as<const std::byte>() + t * width * dtype_bytes(from), to,
              cache + slot[t] * width * dtype_bytes(to), width);
    }
  };
}

}  // namespace

std::span<const KernelRow> kv_append_rows() {
  static const KernelRow rows[] = {{Op::kKvAppend, "kv_append_copy", accepts, bind}};
  return rows;
}

}  // namespace octet::cpu
