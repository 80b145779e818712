#include "passes/stage_graphs.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>

#include "base/error.h"
#include "ir/facts.h"
#include "ir/text.h"

namespace octet {
namespace {

bool is_backward(const Node& node) { return node.phase == Phase::kBackward; }

// Values that leaves of one kind make: of inputs (positions), or of parameters (a cast of them).
std::vector<bool> made_of_leaves(const Graph& graph) {
  enum : uint8_t { kInputs = 1, kStates = 2, kOthers = 4 };
  std::vector<uint8_t> from;
  std::vector<bool> result;
  for (const Node& node : graph.nodes()) {
    uint8_t of = node.op == Op::kInput ? kInputs : node.op == Op::kParam || node.op == Op::kState ? kStates : 0;
    for (Value input : node.inputs)
      if (input.exists()) of |= from[slot(input.node)];
    if ((of & kInputs) != 0 && (of & kStates) != 0) of = kOthers;
    from.push_back(of);
    result.push_back((of & kOthers) == 0);
  }
  return result;
}

}  // namespace

std::string transfer_state(bool sent, bool gradient, int32_t chunk, int32_t index) {
  return fmt::format("{}.{}.{}.{}", sent ? "sent" : "received", gradient ? "gradient" : "activation", chunk, index);
}

std::vector<std::string> transfer_states(const Program& program, bool sent, bool gradient, int32_t chunk) {
  std::vector<std::string> names;
  for (int32_t i = 0; program.find_state(transfer_state(sent, gradient, chunk, i)) != nullptr; ++i)
    names.push_back(transfer_state(sent, gradient, chunk, i));
  return names;
}

NodeSeconds seconds_of(const Graph& graph, NodeId id, const Target& target) {
  const Node& node = graph.node(id);
  const OpFacts& facts = op_facts(node.op);
  if (op_info(node.op).max_inputs == 0 || facts.view) return {};
  const Cost cost = node_cost(graph, id);
  constexpr double kFlops = 1e12, kBytes = 1e11;
  const double memory = target.bytes_per_second > 0 ? target.bytes_per_second : kBytes, bytes = cost.bytes / memory;
  NodeSeconds seconds;
  const Node* exchange = exchange_of(node);
  if (exchange != nullptr) {
    const double sent = exchanged_bytes(graph, node);
    seconds.link =
        target.link_bytes_per_second > 0 ? target.link_latency + sent / target.link_bytes_per_second : sent / memory;
    if (exchange == &node) return seconds;
  }
  const DType dtype = node.inputs.empty() ? DType::kF32 : graph.dtype(node.inputs[0]);
  constexpr double kUnitsPerLane =
      16;  // how much faster bf16 products are than float32 on devices that have units for them
  const double f32 = target.f32_flops > 0 ? target.f32_flops : target.bf16_flops / kUnitsPerLane;
  const double rate = storage_bytes(dtype, 2) <= 2 ? target.fp8_flops : dtype == DType::kBF16 ? target.bf16_flops : f32;
  seconds.kernel = std::max(cost.flops / (rate > 0 ? rate : kFlops), bytes);
  if (exchange != nullptr && exchange->attr<bool>("async"))
    seconds.hidden =
        std::min(seconds.link, seconds.kernel / graph.mesh().parts(parse_axes(exchange->attr<std::string>("over"))));
  return seconds;
}

int32_t layer_count(const Graph& graph) {
  int32_t last = -1;
  for (const Node& node : graph.nodes()) last = std::max(last, node.layer);
  return last + 1;
}

std::vector<int32_t> layers_of(const Graph& graph, int32_t layers) {
  const std::vector<bool> anywhere = made_of_leaves(graph);
  std::vector<int32_t> layer(static_cast<size_t>(graph.size()), kAnywhere);
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(NodeId{i});
    auto& own = layer[static_cast<size_t>(i)];
    if (anywhere[static_cast<size_t>(i)]) continue;
    if (node.layer >= 0) {
      own = node.layer;
      continue;
    }
    own = is_backward(node) ? layers - 1 : 0;
    for (Value input : node.inputs) {
      const int32_t other = input.exists() ? layer[slot(input.node)] : kAnywhere;
      if (other == kAnywhere) continue;
      own = is_backward(node) ? std::min(own, other) : std::max(own, other);
    }
  }
  return layer;
}

std::vector<int32_t> alike_stages(const Program& whole, const std::vector<int32_t>& cut, const Parallel& parallel) {
  const auto layers = static_cast<int32_t>(cut.size());
  std::vector<std::string> text(cut.size());  // by layer: its nodes without names
  for (const Graph& graph : whole.graphs()) {
    if (graph.role() == GraphRole::kApply || graph.role() == GraphRole::kPrepare) continue;
    const std::vector<int32_t> layer = layers_of(graph, layers);
    for (int32_t i = 0; i < graph.size(); ++i) {
      const Node& node = graph.node(NodeId{i});
      if (layer[static_cast<size_t>(i)] == kAnywhere) continue;
      std::string& own = text[static_cast<size_t>(layer[static_cast<size_t>(i)])];
      own += fmt::format("{} {} {}", graph.name(), op_name(node.op), static_cast<int>(node.phase));
      for (const auto& [key, value] : node.attrs.entries())
        if (key != "gemm" && key != "key") own += " " + key + "=" + print(value);  // key: of dropout's numbers
      for (Value input : node.inputs) own += input.exists() ? " " + to_string(graph.type(input)) : " none";
      for (const TensorType& type : node.results) own += " " + to_string(type);
      own += "\n";
    }
  }
  std::map<std::string, int32_t> kinds, first;  // of layers by text, of stages by kinds of layers
  std::vector<std::string> stages(static_cast<size_t>(parallel.mesh[Axis::kPipeline]));
  std::vector<std::map<std::string, size_t>> names(stages.size());  // updates stand in the order of names
  for (size_t l = 0; l < cut.size(); ++l) {
    const size_t stage = static_cast<size_t>(cut[l]) % stages.size();
    const int32_t kind = kinds.emplace(text[l], static_cast<int32_t>(kinds.size())).first->second;
    stages[stage] += fmt::format("{}:{} ", static_cast<size_t>(cut[l]) / stages.size(), kind);
    names[stage].emplace(fmt::format("layers.{}.", l), names[stage].size());
  }
  for (size_t s = 0; s < stages.size(); ++s)
    for (const auto& [name, place] : names[s]) stages[s] += fmt::format("{} ", place);
  std::vector<int32_t> alike;
  for (size_t s = 0; s < stages.size(); ++s)
    alike.push_back(first.emplace(stages[s], static_cast<int32_t>(s)).first->second);
  return alike;
}

std::vector<double> layer_seconds(const Graph& train, const Target& target) {
  const int32_t layers = layer_count(train);
  std::vector<double> seconds(static_cast<size_t>(layers), 0.0);
  const std::vector<int32_t> layer = layers_of(train, layers);
  for (int32_t i = 0; i < train.size(); ++i)
    if (const int32_t l = layer[static_cast<size_t>(i)]; l != kAnywhere)
      seconds[static_cast<size_t>(l)] += seconds_of(train, NodeId{i}, target).all();
  return seconds;
}

std::vector<int32_t> cut_layers(const Graph& train, const Parallel& parallel, const Target& target) {
  if (!parallel.cut.empty()) return parallel.cut;
  return balance_layers(layer_seconds(train, target), parallel.mesh[Axis::kPipeline], parallel.chunks);
}

std::vector<int32_t> balance_layers(const std::vector<double>& seconds, int32_t stages, int32_t chunks) {
  const auto layers = static_cast<int32_t>(seconds.size());
  const int32_t pieces = stages * chunks;
  check(
      pieces <= layers, ErrorCode::kInvalidArgument,
      "parallel.pipeline={} x parallel.chunks={} are {} pieces, and the model has {} layers: want at most {} stages{}",
      stages, chunks, pieces, layers, std::max(layers / chunks, 1),
      chunks > 1 ? fmt::format(", or parallel.chunks from 1 to {}", std::max(layers / stages, 1)) : "");
  std::vector<double> until(static_cast<size_t>(layers) + 1, 0.0);  // seconds of the layers before
  std::ranges::copy(seconds, until.begin() + 1);
  for (size_t l = 1; l < until.size(); ++l) until[l] += until[l - 1];
  // longest[g][l]: of the first l layers in g + 1 pieces; begin[g][l]: where the last of these begins.
  const auto size = static_cast<size_t>(layers) + 1;
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> longest(static_cast<size_t>(pieces), std::vector(size, kInfinite));
  std::vector<std::vector<size_t>> begin(static_cast<size_t>(pieces), std::vector<size_t>(size, 0));
  longest[0] = until;
  for (size_t g = 1; g < longest.size(); ++g) {
    for (size_t l = g + 1; l < size; ++l) {
      for (size_t b = g; b < l; ++b) {
        const double most = std::max(longest[g - 1][b], until[l] - until[b]);
        if (most < longest[g][l]) longest[g][l] = most, begin[g][l] = b;
      }
    }
  }
  std::vector<int32_t> piece(static_cast<size_t>(layers), 0);
  size_t end = size - 1;
  for (size_t g = longest.size() - 1; g > 0; --g) {
    for (size_t l = begin[g][end]; l < end; ++l) piece[l] = static_cast<int32_t>(g);
    end = begin[g][end];
  }
  return piece;
}

}  // namespace octet
