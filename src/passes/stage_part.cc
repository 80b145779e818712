#include "passes/stage_part.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "ir/facts.h"
#include "passes/stage_graphs.h"

namespace octet {
namespace {

bool is_leaf(const Node& node) { return op_info(node.op).max_inputs == 0; }

}  // namespace

struct StagePart::Building {
  int32_t piece;
  bool backward;
  int32_t slots;
  Graph graph;
  std::unordered_map<Value, Value, ValueHash> map = {};
};

StagePart::StagePart(const Graph& whole, std::vector<int32_t> pieces, int32_t stages, Program& program)
    : whole_(whole),
      pieces_(std::move(pieces)),
      stages_(stages),
      program_(program),
      is_rows_(batch_rows(whole)),
      updates_(whole.updates()) {
  for (const NamedValue& update : whole.updates())
    if (program.find_state(update.name)->role == StateRole::kGradient) split_sums(update.value, update.name);
  find_crossings();
}

bool StagePart::anywhere(Value value) const { return is_leaf(whole_.node(value)) || piece(value) == kAnywhere; }

void StagePart::split_sums(Value value, const std::string& state) {
  if (anywhere(value)) return;
  const Node& node = whole_.node(value);
  for (const size_t i : addends(whole_, node)) {
    const Value addend = node.inputs[i];
    if (anywhere(addend)) continue;
    if (piece(addend) != piece(value)) {
      dropped_[{index(value.node), i}] = state;
      updates_.push_back({state, addend});
    }
    split_sums(addend, state);
  }
}

bool StagePart::adds_to(Value value, const std::string& state) const {
  const Node& node = whole_.node(value);
  if (is_leaf(node)) return node.name == state;
  return std::ranges::any_of(addends(whole_, node), [&](size_t i) {
    return !dropped_.contains({index(value.node), i}) && adds_to(node.inputs[i], state);
  });
}

Value StagePart::source(Value value) const {
  while (op_facts(whole_.node(value).op).view) value = whole_.node(value).inputs[0];
  return value;
}

void StagePart::cross(std::vector<Value>& list, Value value) {
  if (std::ranges::find(list, value) == list.end()) list.push_back(value);
}

void StagePart::find_crossings() {
  const auto pieces = static_cast<size_t>(1 + *std::ranges::max_element(pieces_));
  forward_.resize(pieces + 1), backward_.resize(pieces + 1);
  for (int32_t i = 0; i < whole_.size(); ++i) {
    const Value reader{NodeId{i}, 0};
    if (anywhere(reader)) continue;
    const Node& node = whole_.node(NodeId{i});
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      if (!node.inputs[k].exists() || dropped_.contains({i, k})) continue;
      const Value value = source(node.inputs[k]);
      if (anywhere(value) || piece(value) == piece(reader)) continue;
      const int32_t from = piece(value), to = piece(reader);
      const bool gradient = is_backward(value);
      check(to == from + (gradient ? -1 : 1) && (is_backward(reader) || !gradient), ErrorCode::kUnsupported,
            "parallel.pipeline: {} reads {} of a piece that is no neighbour ({} and {})", describe(whole_, NodeId{i}),
            describe(whole_, value.node), to, from);
      cross((gradient ? backward_ : forward_)[static_cast<size_t>(from)], value);
    }
  }
}

Value StagePart::state(Building& b, const std::string& name, Value value, StateRole role, int32_t slots) {
  const Value known = b.graph.find_leaf(Op::kState, name);
  if (known.exists()) return known;
  const TensorType& type = whole_.type(value);
  program_.add_state({.name = name, .type = type, .role = role, .slots = slots});
  return {b.graph.add({.op = Op::kState,
                       .results = {type},
                       .attrs = is_rows_[value] ? Attrs{{"rows", "batch"}} : Attrs(),
                       .name = name,
                       .phase = b.backward ? Phase::kBackward : Phase::kForward}),
          0};
}

Value StagePart::get(Building& b, Value value) {
  const auto found = b.map.find(value);
  if (found != b.map.end()) return found->second;
  const Node& node = whole_.node(value);
  if (anywhere(value) || op_facts(node.op).view) {
    add_node(b, value.node);
    return b.map.at(value);
  }
  const auto received = [&](bool gradient, int32_t from) {
    const std::vector<Value>& list = (gradient ? backward_ : forward_)[static_cast<size_t>(from)];
    const auto at = static_cast<int32_t>(std::ranges::find(list, value) - list.begin());
    return state(b, transfer_state(false, gradient, chunk(b.piece), at), value, StateRole::kTransfer, 1);
  };
  Value leaf;
  if (is_backward(value)) {
    leaf = received(true, b.piece + 1);
  } else if (!b.backward) {
    leaf = received(false, b.piece - 1);
  } else {
    const size_t at = saved_.size();
    saved_.push_back(value);
    leaf = state(b, fmt::format("saved.{}.{}", chunk(b.piece), at), value, StateRole::kSaved, b.slots);
  }
  return b.map[value] = leaf;
}

void StagePart::add_node(Building& b, NodeId id) {
  Node node = whole_.node(id);
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    Value& input = node.inputs[i];
    if (!input.exists()) continue;
    const auto dropped = dropped_.find({index(id), i});
    if (dropped == dropped_.end()) {
      input = get(b, input);
    } else if (whole_.role() == GraphRole::kAccumulate && !adds_to({id, 0}, dropped->second)) {
      input = state(b, dropped->second, {id, 0}, StateRole::kGradient, 1);
    } else {
      input = Value::none();
    }
  }
  if (node.op == Op::kAdd && (!node.inputs[0].exists() || !node.inputs[1].exists())) {
    b.map[{id, 0}] = node.inputs[node.inputs[0].exists() ? 0 : 1];
    return;
  }
  const auto results = static_cast<int32_t>(node.results.size());
  const NodeId made = b.graph.add(std::move(node));
  for (int32_t r = 0; r < results; ++r) b.map[{id, r}] = {made, r};
}

Graph StagePart::part(int32_t piece, bool backward, std::string name, int32_t slots) {
  Building b{.piece = piece, .backward = backward, .slots = slots, .graph = Graph(whole_.role())};
  b.graph.set_role(whole_.role(), std::move(name));
  b.graph.set_stage(whole_.stage());
  if (backward) saved_.clear();
  const auto is_here = [&](Value value) {
    return !anywhere(value) && this->piece(value) == piece && is_backward(value) == backward;
  };
  for (int32_t i = 0; i < whole_.size(); ++i)
    if (is_here({NodeId{i}, 0})) add_node(b, NodeId{i});
  const auto belongs = [&](Value value) {  // what is made anywhere: once
    return is_here(value) || (anywhere(value) && piece == 0 && backward == is_backward(value));
  };
  for (const NamedValue& output : whole_.outputs())
    if (belongs(output.value)) b.graph.outputs().push_back({output.name, get(b, output.value)});
  for (const NamedValue& update : updates_)
    if (belongs(update.value)) b.graph.updates().push_back({update.name, get(b, update.value)});
  const auto send = [&](const std::vector<Value>& list, bool gradient) {
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string sent = transfer_state(true, gradient, chunk(piece), static_cast<int32_t>(i));
      program_.add_state({.name = sent, .type = whole_.type(list[i]), .role = StateRole::kTransfer});
      b.graph.updates().push_back({sent, get(b, list[i])});
    }
  };
  if (backward) {
    send(backward_[static_cast<size_t>(piece)], true);
  } else {
    for (size_t i = 0; i < saved_.size(); ++i)
      b.graph.updates().push_back({fmt::format("saved.{}.{}", chunk(piece), i), get(b, saved_[i])});
    send(forward_[static_cast<size_t>(piece)], false);
  }
  return std::move(b.graph);
}

}  // namespace octet
