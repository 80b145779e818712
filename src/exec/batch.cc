#include "exec/batch.h"

#include <algorithm>
#include <cstring>
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

namespace {

TensorType whole_type(const Graph& graph, NodeId input) {
  const TensorType& type = graph.node(input).results[0];
  return {type.dtype, whole_shape(type.shape, graph.layout({input, 0}), graph.mesh())};
}

// What stands behind the first `given` bytes.
void fill_rest(const Node& input, std::span<std::byte> all, size_t given) {
  const std::string& rest = input.attr<std::string>("rest");
  if (given == all.size() || rest == "any") return;
  const DType dtype = input.results[0].dtype;
  const auto size = static_cast<size_t>(dtype_bytes(dtype));
  int64_t element = input.attr<int64_t>("pad");  // of integers the low bytes
  if (is_float(dtype)) {
    const auto pad = static_cast<float>(element);
    convert(DType::kF32, &pad, dtype, &element, 1);
  }
  const std::span<std::byte> behind = all.subspan(given);
  std::memcpy(behind.data(),
              rest == "last" && given > 0 ? behind.data() - size : reinterpret_cast<const std::byte*>(&element), size);
  for (size_t filled = size; filled < behind.size(); filled *= 2)  // what is filled again
    std::memcpy(behind.data() + filled, behind.data(), std::min(filled, behind.size() - filled));
}

void write_input(Executor& executor, const Graph& graph, NodeId id, std::span<const std::byte> given) {
  const Node& input = graph.node(id);
  const TensorType type = whole_type(graph, id);
  if (std::cmp_greater(given.size(), type.bytes()))
    fail(ErrorCode::kInvalidArgument, "graph '{}': input '{}' is {}, of {} bytes, and {} are given", graph.name(),
         input.name, to_string(type), type.bytes(), given.size());
  const bool cut = !graph.layout({id, 0}).cuts.empty();
  std::vector<std::byte> whole(cut ? static_cast<size_t>(type.bytes()) : 0);
  const std::span<std::byte> to = executor.input(graph.name(), input.name), all = cut ? std::span(whole) : to;
  std::ranges::copy(given, all.begin());
  fill_rest(input, all, given.size());
  if (cut) copy_part(all, input.results[0], graph.layout({id, 0}), graph.mesh(), executor.coordinate(), to);
}

}  // namespace

void write_inputs(Executor& executor, const std::string& graph, std::span<const InputValues> values) {
  const Graph& planned = executor.program().graph(graph);
  for (const NodeId id : planned.inputs()) {
    const Node& input = planned.node(id);
    const auto given = std::ranges::find(values, input.name, &InputValues::name);
    if (given == values.end() && !input.attr<bool>("optional"))
      fail(ErrorCode::kInvalidArgument, "graph '{}': input '{}' is {}, the batch has none of this name", graph,
           input.name, to_string(whole_type(planned, id)));
    write_input(executor, planned, id, given != values.end() ? given->bytes : std::span<const std::byte>());
  }
}

void pad_inputs(Executor& executor, const std::string& graph) {
  const Graph& planned = executor.program().graph(graph);
  for (const NodeId id : planned.inputs()) write_input(executor, planned, id, {});
}

void write_inputs(Executor& executor, const std::string& graph, const Batch& batch, const Batch& others) {
  const Graph& planned = executor.program().graph(graph);
  std::vector<InputValues> values;
  for (const Batch* each : {&batch, &others}) {
    for (const auto& [name, tensor] : each->tensors) {
      const Value input = planned.find_leaf(Op::kInput, name);
      check(tensor.optional || input.exists(), ErrorCode::kInvalidArgument,
            "graph '{}' has no input '{}' for the batch's {}", graph, name, to_string(tensor.type));
      if (!input.exists()) continue;
      const TensorType type = whole_type(planned, input.node);
      check(tensor.type == type, ErrorCode::kInvalidArgument, "graph '{}': input '{}' is {}, the batch's is {}", graph,
            name, to_string(type), to_string(tensor.type));
      values.emplace_back(name, tensor.bytes);
    }
  }
  write_inputs(executor, graph, values);
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
