#include <algorithm>

#include "ir/facts.h"
#include "ir/fusion.h"
#include "ir/plan.h"
#include "ir/rewrite.h"
#include "passes/passes.h"
#include "passes/stage_graphs.h"

namespace octet {
namespace {

constexpr size_t kMaxMakers = 4;  // nodes that move up with a collective whose operand they make
constexpr size_t kFarthest = 64;  // nodes, from which products come down behind one

class Schedule {
 public:
  Schedule(const Graph& graph, const Target& target) : graph_(graph) {
    for (int32_t i = 0; i < graph.size(); ++i) {
      const NodeSeconds seconds = seconds_of(graph, NodeId{i}, target);
      const bool alone = op_facts(graph.node(NodeId{i}).op).collective && seconds.link > 0;
      order_.push_back(NodeId{i});
      kernel_.push_back(seconds.kernel);
      wire_.push_back(seconds.exposed());
      // What takes little more than a call's latency takes as long beside kernels as it does between them.
      large_.push_back(alone && (target.link_bytes_per_second <= 0 || seconds.link > 1.1 * target.link_latency));
    }
    hides_.resize(order_.size());
    unread_.resize(order_.size());
  }

  // By node, which collectives are async in order(); those of fusions beside their own product.
  std::vector<bool> run() {
    std::vector<bool> async(order_.size());
    for (int32_t i = 0; i < graph_.size(); ++i)
      if (large_[static_cast<size_t>(i)]) unread_[static_cast<size_t>(i)] = lift_unread(NodeId{i});
    for (int32_t i = 0; i < graph_.size(); ++i) {
      const Node& node = graph_.node(NodeId{i});
      async[static_cast<size_t>(i)] =
          large_[static_cast<size_t>(i)]
              ? place(place_of(NodeId{i}))
              : node.op == Op::kFusion && fusion_producer(*node.body) == Producer::kProduct && exchanges(node);
    }
    for (int32_t i = 0; i < graph_.size(); ++i)
      if (unread_[static_cast<size_t>(i)] && among_activations(NodeId{i}))
        async[static_cast<size_t>(i)] = place(sink_unread(NodeId{i}));
    return async;
  }
  const std::vector<NodeId>& order() const { return order_; }

 private:
  size_t place_of(NodeId id) const { return static_cast<size_t>(std::ranges::find(order_, id) - order_.begin()); }

  // What no node reads, gradients on their way into a state, leaves as soon as it is made. Whether it is such.
  bool lift_unread(NodeId id) {
    const size_t at = place_of(id);
    if (reader(at) < order_.size()) return false;
    size_t to = at;
    while (to > 0 && !reads(at, at, order_[to - 1])) --to;
    std::rotate(begin_at(to), begin_at(at), begin_at(at + 1));
    return true;
  }

  // Whether the ranks of its group exchange activations too, again and again: these end it.
  bool among_activations(NodeId id) const {
    return AxisSet(parse_axes(graph_.node(id).attr<std::string>("over"))).has(Axis::kContext);
  }

  // Then such a one leaves later, where kernels hide it before the next exchange, or most of it. Its place.
  size_t sink_unread(NodeId id) {
    const size_t first = place_of(id);
    size_t at = first, best = first;
    double most = room(at);
    while (most < wire_[slot(id)] && at + 1 < order_.size() && at - first < kFarthest &&
           !overwrites(at + 1, at + 2, shown_by_inputs(id))) {
      std::swap(order_[at], order_[at + 1]);
      if (const double seconds = room(++at); seconds > most) most = seconds, best = at;
    }
    std::rotate(begin_at(best), begin_at(at), begin_at(at + 1));
    return best;
  }

  // Seconds of kernels behind a place until another exchange is waited for, that no such one takes.
  double room(size_t at) const {
    double seconds = -backlog(at);
    size_t others = 0;
    for (size_t i = at + 1; i < order_.size(); ++i) {
      seconds += kernel_[slot(order_[i])];
      if (!exchanges(graph_.node(order_[i]))) continue;
      if (!unread_[slot(order_[i])] || ++others == 2) break;
      seconds -= wire_[slot(order_[i])];
    }
    return seconds;
  }

  // Moves kernels between the collective at a place of the order and its first reader until they hide it. Returns
  // whether it may be async, and anything hides it.
  bool place(size_t at) {
    const NodeId id = order_[at];
    const size_t join = first_wait(at);
    double hidden = 0;
    for (size_t i = at + 1; i < join; ++i) hidden += kernel_[slot(order_[i])];
    const bool read = reader(at) < order_.size();
    if (read) hidden += rise(at, wire_[slot(id)] + backlog(at) - hidden);
    while (read && hidden < wire_[slot(id)]) {
      const size_t filler = find_filler(at, join);
      if (filler == at) break;
      hidden += kernel_[slot(order_[filler])];
      std::rotate(begin_at(filler), begin_at(filler + 1), begin_at(join));  // right before the join
      --at;
    }
    for (size_t i = at + 1; i < join; ++i) hides_[slot(order_[i])] = true;
    return hidden > 0 && !overwrites(at + 1, join, shown_by_inputs(id));
  }

  // How long one in front that nobody waits for may still be under way.
  double backlog(size_t at) const {
    double passed = 0;
    for (size_t i = at; i-- > 0 && at - i < kFarthest;) {
      if (exchanges(graph_.node(order_[i])))
        return unread_[slot(order_[i])] ? std::max(wire_[slot(order_[i])] - passed, 0.0) : 0;
      passed += kernel_[slot(order_[i])];
    }
    return 0;
  }

  // Moves the collective up, not before another one whose result is read, with the nodes that make its operand where
  // others are in front of them, until nodes of so many seconds are behind it. Returns how many that are, and its place
  // in `at`.
  double rise(size_t& at, double seconds) {
    const bool forward = graph_.node(order_[at]).phase == Phase::kForward;
    double passed = 0;
    size_t begin = at;  // of what moves
    for (size_t makers = 0; passed < seconds && begin > 0; --begin) {
      const NodeId before = order_[begin - 1];
      const Node& node = graph_.node(before);
      if ((exchanges(node) && !unread_[slot(before)]) ||
          (!is_named_leaf(node.op) && (node.phase == Phase::kForward) != forward))
        break;
      if (!reads(begin, at, before)) {
        std::rotate(begin_at(begin - 1), begin_at(begin), begin_at(at + 1));
        passed += kernel_[slot(before)];
        --at;
      } else if (!is_named_leaf(node.op) && (++makers > kMaxMakers || !overwritten_inputs(node).empty())) {
        break;
      }
    }
    return passed;
  }

  // The last product for a weight's gradient in front of the place that may as well run behind it, before `join`; the
  // place itself: none.
  size_t find_filler(size_t at, size_t join) const {
    for (size_t i = at; i-- > 0 && at - i < kFarthest;) {
      const NodeId id = order_[i];
      const Node& node = graph_.node(id);
      if (hides_[slot(id)] || node.attrs.get_or<std::string>("role", "") != "wgrad") continue;
      if (!reads(i + 1, join - 1, id) && !overwrites(i + 1, join, shown_by_inputs(id))) return i;
    }
    return at;
  }

  std::vector<NodeId>::iterator begin_at(size_t place) { return order_.begin() + static_cast<ptrdiff_t>(place); }

  // Whether a node at the places [begin, end] reads a result of `maker`.
  bool reads(size_t begin, size_t end, NodeId maker) const {
    for (size_t i = begin; i <= end; ++i)
      for (const Value input : graph_.node(order_[i]).inputs)
        if (input.exists() && input.node == maker) return true;
    return false;
  }

  // The collective's join, if those that are large are async.
  size_t first_wait(size_t at) const {
    const size_t end = reader(at);
    size_t others = 0;
    for (size_t i = at + 1; i < end; ++i)
      if (exchanges(graph_.node(order_[i])) && (!large_[slot(order_[i])] || ++others == 2)) return i;
    return end;
  }

  // The first place behind the collective where its result is read, not only shown.
  size_t reader(size_t at) const {
    std::vector<NodeId> shown = {order_[at]};
    for (size_t i = at + 1; i < order_.size(); ++i) {
      const Node& node = graph_.node(order_[i]);
      if (std::ranges::none_of(shown, [&](NodeId maker) { return reads(i, i, maker); })) continue;
      if (!op_facts(node.op).view) return i;
      shown.push_back(order_[i]);
    }
    return order_.size();
  }

  Value shown_by(Value value) const {
    while (op_facts(graph_.node(value).op).view) value = graph_.node(value).inputs[0];
    return value;
  }
  std::vector<Value> shown_by_inputs(NodeId id) const {
    std::vector<Value> values;
    for (const Value input : graph_.node(id).inputs)
      if (input.exists()) values.push_back(shown_by(input));
    return values;
  }

  // Whether a node at the places [begin, end) writes over one of the values.
  bool overwrites(size_t begin, size_t end, const std::vector<Value>& values) const {
    for (size_t i = begin; i < end; ++i) {
      const Node& node = graph_.node(order_[i]);
      for (const int input : overwritten_inputs(node))
        if (std::ranges::find(values, shown_by(node.inputs[static_cast<size_t>(input)])) != values.end()) return true;
    }
    return false;
  }

  const Graph& graph_;
  std::vector<NodeId> order_;
  std::vector<double> kernel_, wire_;  // seconds, by node
  std::vector<bool> large_;            // by node: a collective that is worth hiding
  std::vector<bool> hides_;            // by node: one of them
  std::vector<bool> unread_;           // by node: a large collective whose result no node reads
};

void set_async(Node& node) {
  if (node.body == nullptr) return node.attrs.set("async", true);
  auto body = std::make_shared<Graph>(*node.body);
  for (int32_t i = 0; i < body->size(); ++i)
    if (exchanges(body->node(NodeId{i}))) set_async(body->mutable_node(NodeId{i}));
  node.body = std::move(body);
}

}  // namespace

bool schedule(Graph& graph, const CompileOptions& options) {
  if (!options.parallel.overlap || graph.mesh().ranks() == 1 || !is_model_graph(graph)) return false;
  Schedule schedule(graph, options.target);
  const std::vector<bool> async = schedule.run();
  if (std::ranges::find(async, true) == async.end()) return false;
  Rewriter rewriter(graph);
  for (const NodeId id : schedule.order()) {
    if (!async[slot(id)]) {
      rewriter.copy(id);
      continue;
    }
    Node node = rewriter.mapped(id);
    set_async(node);
    rewriter.replace(id, std::move(node));
  }
  graph = rewriter.finish();
  return true;
}

}  // namespace octet
