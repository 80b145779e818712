#include "passes/node_clock.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "ir/facts.h"

namespace octet {
namespace {

// FLOP/s of a product. Blocks of scales cost the tensor cores some of their rate.
double product_rate(const Graph& graph, const Node& node, const Target& target) {
  const StepRates& step = target.step;
  const DType dtype = node.inputs.empty() ? DType::kF32 : graph.dtype(node.inputs[0]);
  if (storage_bytes(dtype, 2) <= 2) {
    const bool blocks = node.attrs.get_or<std::string>("scaling_a", "tensor").starts_with("1x");
    return blocks ? step.fp8_block : step.fp8;
  }
  if (dtype == DType::kBF16) return step.bf16;
  constexpr double kUnits = 16;  // tensor cores over float32 lanes
  return target.f32_flops > 0 ? target.f32_flops : step.bf16 / kUnits;
}

// Softmax takes as long for a head of 64 as for one of 128, which bounds attention of narrow heads; tiles of the
// diagonal are half empty, which short sequences have more of (cuDNN on an H200: 418, 488 and 558 TFLOP/s at 2, 4 and 8
// k).
double attention_rate(const Graph& graph, const Node& node, const StepRates& step) {
  constexpr double kWide = 128, kShort = 900, kNarrow = 0.25;
  const Shape& q = graph.shape(node.inputs[0]);
  const auto dim = static_cast<double>(node.attr<int64_t>("head_dim"));
  const bool forward = node.op == Op::kAttention;
  if (node.attr<double>("dropout") > 0 && !node.attr<bool>("library_mask")) {
    const bool bytes = node.attr<int64_t>("bits") == 8;
    const double rate = forward ? (bytes ? step.byte_dropout_forward : step.dropout_forward)
                                : (bytes ? step.byte_dropout_backward : step.dropout_backward);
    const double width = std::min(1.0, dim / kWide);
    // Words are drawn as long as all else takes for heads of 128; bytes leave the products a part.
    if (rate > 0) return rate * (bytes ? std::sqrt(width) : width);
  }
  int64_t length = node.attr<int64_t>("equal_length");
  if (length <= 0) length = node.attr<int64_t>("max_length");
  const auto keys = static_cast<double>(length > 0 ? std::min(length, q[0]) : q[0]);
  return (forward ? step.attention_forward : step.attention_backward) * std::min(1.0, std::pow(dim / kWide, kNarrow)) *
         keys / (keys + kShort);
}

}  // namespace

WorkKind work_kind(const Node& node) {
  if (node.op == Op::kAttention || node.op == Op::kAttentionGrad) return WorkKind::kAttention;
  switch (node.op) {
    case Op::kMatmul:
    case Op::kScaledMatmul:
    case Op::kGroupedMatmul:
    case Op::kGroupedMatmulWgrad:
    case Op::kScaledGroupedMatmul: return WorkKind::kProducts;
    default: break;
  }
  if (node.body != nullptr)
    for (const Node& member : node.body->nodes())
      if (const WorkKind kind = work_kind(member); kind != WorkKind::kOther) return kind;
  return WorkKind::kOther;
}

double link_seconds(double bytes, const AxisList& over, const Mesh& mesh, const Target& target) {
  if (target.link_bytes_per_second <= 0) return 0;
  int64_t reach = 1, inner = 1;  // ranks from the first of a group to behind its last
  for (auto axis = std::rbegin(kAllAxes); axis != std::rend(kAllAxes); ++axis) {
    inner *= mesh[*axis];
    if (std::ranges::count(over, *axis) > 0 && mesh[*axis] > 1) reach = inner;
  }
  const bool leaves = target.node_devices > 0 && reach > target.node_devices && target.node_link_bytes_per_second > 0;
  return leaves ? target.node_link_latency + bytes / target.node_link_bytes_per_second
                : target.link_latency + bytes / target.link_bytes_per_second;
}

NodeSeconds clock_seconds(const Graph& graph, NodeId id, const Target& target) {
  NodeSeconds seconds = seconds_of(graph, id, target);
  if (const Node* exchange = exchange_of(graph.node(id)); exchange != nullptr && target.link_bytes_per_second > 0) {
    const double near = seconds.link;
    seconds.link = link_seconds(exchanged_bytes(graph, graph.node(id)), parse_axes(exchange->attr<std::string>("over")),
                                graph.mesh(), target);
    if (seconds.link < near) seconds.hidden = std::min(seconds.hidden, seconds.link);
  }
  if (!target.step.known() || seconds.kernel == 0) return seconds;
  const StepRates& step = target.step;
  const Node* node = &graph.node(id);
  const Cost cost = node_cost(graph, id);
  const WorkKind kind = work_kind(*node);
  const Graph* of = &graph;
  while (node->body != nullptr && kind != WorkKind::kOther) {  // the member that does the work
    of = node->body.get();
    for (const Node& member : of->nodes())
      if (work_kind(member) == kind) node = &member;
  }
  double rate = 0;
  if (kind == WorkKind::kProducts) rate = product_rate(*of, *node, target);
  if (kind == WorkKind::kAttention) rate = attention_rate(*of, *node, step);
  const double before = seconds.kernel;
  seconds.kernel = std::max(rate > 0 ? cost.flops / rate : 0, cost.bytes / step.bytes_per_second) + step.kernel_seconds;
  seconds.hidden = std::min(seconds.link, seconds.hidden * seconds.kernel / before);
  return seconds;
}

GraphSeconds& GraphSeconds::operator+=(const GraphSeconds& other) {
  for (size_t i = 0; i < kWorkKinds; ++i) kernels[i] += other.kernels[i];
  waiting += other.waiting;
  return *this;
}

GraphSeconds graph_seconds(const Graph& graph, const Target& target) {
  const std::vector<int32_t> joins = joins_of(graph);
  std::vector<std::pair<int32_t, double>> open;  // joins of asynchronous collectives, and when these end
  GraphSeconds made;
  double now = 0, ended = 0;  // of the kernels; of the last collective
  const auto wait = [&](double end) {
    made.waiting += std::max(end - now, 0.0);
    now = std::max(now, end);
  };
  double exchanged = 0;  // seconds of collectives
  for (int32_t i = 0; i <= graph.size(); ++i) {
    for (const auto& [join, end] : open)
      if (join == i) wait(end);
    std::erase_if(open, [&](const auto& one) { return one.first == i; });
    if (i == graph.size()) break;
    const NodeSeconds seconds = clock_seconds(graph, NodeId{i}, target);
    now += seconds.kernel;
    made.kernels[static_cast<size_t>(work_kind(graph.node(NodeId{i})))] += seconds.kernel;
    if (!exchanges(graph.node(NodeId{i}))) continue;
    ended = std::max(now, ended) + seconds.exposed();
    exchanged += seconds.link;
    if (const int32_t join = joins[static_cast<size_t>(i)]; join >= 0)
      open.emplace_back(join, ended);
    else
      wait(ended);
  }
  made.waiting += target.step.beside * std::max(exchanged - made.waiting, 0.0);
  return made;
}

}  // namespace octet
