#include "exec/batch.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "exec/parts.h"

namespace octet {

HostTensor& Batch::add(const std::string& name, TensorType type, bool optional) {
  const auto bytes = static_cast<size_t>(type.bytes());
  return tensors[name] = {.type = std::move(type), .bytes = std::vector<std::byte>(bytes), .optional = optional};
}

const HostTensor* Batch::find(const std::string& name) const {
  const auto found = tensors.find(name);
  return found == tensors.end() ? nullptr : &found->second;
}

void write_inputs(Executor& executor, const std::string& graph, const Batch& batch, const Batch& others) {
  const Graph& planned = executor.program().graph(graph);
  for (int32_t i = 0; i < planned.size(); ++i) {
    const Node& node = planned.node(NodeId{i});
    if (node.op != Op::kInput) continue;
    const Layout& layout = planned.layout({NodeId{i}, 0});
    const HostTensor* tensor = batch.find(node.name);
    if (tensor == nullptr) tensor = others.find(node.name);
    const TensorType type{node.results[0].dtype, whole_shape(node.results[0].shape, layout, planned.mesh())};
    check(tensor != nullptr, ErrorCode::kInvalidArgument,
          "graph '{}': input '{}' is {}, the batch has none of this name", graph, node.name, to_string(type));
    check(tensor->type == type, ErrorCode::kInvalidArgument, "graph '{}': input '{}' is {}, the batch's is {}", graph,
          node.name, to_string(type), to_string(tensor->type));
    copy_part(tensor->bytes, node.results[0], layout, planned.mesh(), executor.coordinate(),
              executor.input(graph, node.name));
  }
  for (const Batch* each : {&batch, &others}) {
    for (const auto& [name, tensor] : each->tensors)
      check(tensor.optional || planned.find_leaf(Op::kInput, name).exists(), ErrorCode::kInvalidArgument,
            "graph '{}' has no input '{}' for the batch's {}", graph, name, to_string(tensor.type));
  }
}

Batch token_batch(int64_t sequences, int64_t length, bool targets) {
  Batch batch;
  const int64_t tokens = sequences * length;
  batch.add("ids", {DType::kI32, {tokens}});
  auto positions = batch.add("positions", {DType::kI32, {tokens}}, /*optional=*/true).values<int32_t>();
  for (int64_t t = 0; t < tokens; ++t) positions[static_cast<size_t>(t)] = static_cast<int32_t>(t % length);
  auto segments = batch.add("segments", {DType::kI32, {sequences + 1}}).values<int32_t>();
  for (int64_t s = 0; s <= sequences; ++s) segments[static_cast<size_t>(s)] = static_cast<int32_t>(s * length);
  if (targets) std::ranges::fill(batch.add("targets", {DType::kI32, {tokens}}).values<int32_t>(), -1);
  return batch;
}

}  // namespace octet
