#include "ir/program.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "ir/builder.h"

namespace octet {
const char* state_role_name(StateRole role) {
  constexpr const char* kNames[] = {"master",   "compute",  "codes",       "scale_inv",        "zero",
                                    "columns",  "scale",    "amax",        "amax_history",     "gradient",
                                    "moment",   "kv_cache", "cache_scale", "cache_scale_inv",  "buffer",
                                    "saved",    "transfer", "magnitudes",  "magnitude_scales", "magnitude_offsets",
                                    "statistic"};
  return kNames[static_cast<size_t>(role)];
}

std::string state_name(StateRole role, const std::string& param, int32_t index, DType dtype) {
  const auto form = [&](const char* what) {
    return fmt::format("{}.{}{}{}", param, index & kBlockCodes ? "block_" : "", what,
                       index & kTransposedCodes ? "_t" : "");
  };
  const auto cache = [&](const char* what) {
    constexpr const char* kSides[] = {"k", "v", "k_scales", "v_scales"};
    return fmt::format("kv.{}.{}{}", param, kSides[index], what);
  };
  switch (role) {
    case StateRole::kMaster:
    case StateRole::kStatistic:
    case StateRole::kBuffer:
    case StateRole::kSaved: return param;
    case StateRole::kTransfer: return "peer." + param;
    case StateRole::kCompute: return fmt::format("{}.{}", param, dtype_name(dtype));
    case StateRole::kCodes: return form("codes");
    case StateRole::kScaleInv: return form("scale_inv");
    case StateRole::kZero: return form("zero");
    case StateRole::kColumns: return form("columns");
    case StateRole::kScale: return "scale." + param;
    case StateRole::kAmax: return "amax." + param;
    case StateRole::kAmaxHistory: return "amax_history." + param;
    case StateRole::kGradient: return (index == kGradientIds ? "grad_ids." : "grad.") + param;
    case StateRole::kMoment: return fmt::format("moment{}.{}", index, param);
    case StateRole::kKvCache: return cache("");
    case StateRole::kCacheScale: return cache("_scale");
    case StateRole::kCacheScaleInv: return cache("_scale_inv");
    case StateRole::kMagnitudes:
    case StateRole::kMagnitudeScales:
    case StateRole::kMagnitudeOffsets: return fmt::format("{}.{}", param, state_role_name(role));
  }
  return param;
}

int64_t slot_bytes(const StateEntry& entry, int64_t alignment) {
  return (entry.type.bytes() + alignment - 1) / alignment * alignment * entry.slots;
}

StateEntry& Program::add_state(StateEntry entry) {
  if (entry.role == StateRole::kMaster && entry.param.empty()) entry.param = entry.name;
  if (entry.name.empty()) entry.name = state_name(entry.role, entry.param, entry.index, entry.type.dtype);
  auto [found, added] = state_index_.try_emplace(entry.name, states_.size());
  if (!added) {
    StateEntry& known = states_[found->second];
    check(known.type == entry.type, ErrorCode::kInternal, "state {} is {} and is now declared as {}", entry.name,
          to_string(known.type), to_string(entry.type));
    return known;
  }
  if (!entry.param.empty() && entry.role != StateRole::kBuffer) {
    auto [other, first] = by_role_.try_emplace({entry.param, entry.role, entry.index}, states_.size());
    if (!first)
      fail(ErrorCode::kInvalidArgument, "states {} and {} are both {} {} of {}", states_[other->second].name,
           entry.name, state_role_name(entry.role), entry.index, entry.param);
  }
  states_.push_back(std::move(entry));
  return states_.back();
}

const StateEntry* Program::find_state(const std::string& name) const {
  auto found = state_index_.find(name);
  return found == state_index_.end() ? nullptr : &states_[found->second];
}

const StateEntry* Program::find_state(const std::string& param, StateRole role, int32_t index) const {
  auto found = by_role_.find({param, role, index});
  return found == by_role_.end() ? nullptr : &states_[found->second];
}

int64_t Program::state_bytes(std::initializer_list<StateRole> roles) const {
  int64_t bytes = 0;
  for (const StateEntry& entry : states_)
    bytes += std::ranges::count(roles, entry.role) * entry.type.bytes() * entry.slots;
  return bytes;
}

Graph& Program::add_graph(Graph graph) {
  if (Graph* known = find_graph(graph.name())) return *known = std::move(graph);
  graphs_.push_back(std::move(graph));
  return graphs_.back();
}

const Graph* Program::find_graph(const std::string& name) const {
  auto found = std::ranges::find(graphs_, name, &Graph::name);
  return found == graphs_.end() ? nullptr : &*found;
}

const Graph* Program::find_graph(GraphRole role) const {
  auto found = std::ranges::find(graphs_, role, &Graph::role);
  return found == graphs_.end() ? nullptr : &*found;
}

const Graph& Program::graph(const std::string& name) const {
  if (const Graph* found = find_graph(name)) return *found;
  std::vector<std::string> names;
  for (const Graph& graph : graphs_) names.push_back(graph.name());
  fail(ErrorCode::kNotFound, "program {} has no graph '{}'; it has: {}", this->name, name, fmt::join(names, ", "));
}

Layout layout_in(GraphRole role, const Layout& state) {
  Layout seen = state;
  if (runs_per_micro_batch(role))
    for (AxisSet& axes : seen.pending) axes = axes - Axis::kData;
  return seen;
}

Layout layout_in(GraphRole role, const StateEntry& state) {
  return is_row_gradient(state) && runs_per_micro_batch(role) ? Layout() : layout_in(role, state.layout);
}

Value declare_state(Program& program, Builder& builder, StateEntry entry) {
  const StateEntry& declared = program.add_state(std::move(entry));
  return builder.state(declared.name, declared.type);
}

void collect_state(Program& program) {
  auto add = [&](StateEntry entry) {
    if (program.find_state(entry.name) == nullptr) program.add_state(std::move(entry));
  };
  for (const Graph& graph : program.graphs()) {
    for (const Node& node : graph.nodes()) {
      if (node.op == Op::kParam) add({.name = node.name, .type = node.results[0], .update = update_of(node)});
      if (node.op == Op::kState && node.attrs.has("rate"))
        add({.name = node.name,
             .type = node.results[0],
             .role = StateRole::kStatistic,
             .param = node.name,
             .initial = node.attr<double>("initial")});
      if (node.op == Op::kState) add({.name = node.name, .type = node.results[0], .role = StateRole::kBuffer});
    }
    for (const NamedValue& update : graph.updates())
      add({.name = update.name, .type = graph.type(update.value), .role = StateRole::kBuffer});
  }
}

std::vector<LogicalState> logical_states(const Program& program) {
  std::vector<LogicalState> tensors;
  const bool training = is_training(program);
  for (const StateEntry& entry : program.states()) {
    const bool codes = entry.role >= StateRole::kCodes && entry.role <= StateRole::kColumns;
    const bool copy = entry.role == StateRole::kCompute || (codes && training && entry.update != Update::kNone);
    const bool passing =
        entry.role >= StateRole::kBuffer && !is_of_nf4(entry.role) && entry.role != StateRole::kStatistic;
    if (copy || entry.role == StateRole::kKvCache || passing) continue;
    const auto add = [&](const Placement& at) {
      const TensorType type{entry.type.dtype, at.shape};
      const bool own = at.param == entry.param;  // else one of several parameters in the entry
      tensors.push_back({.name = own ? entry.name : state_name(entry.role, at.param, entry.index, type.dtype),
                         .role = entry.role,
                         .param = at.param,
                         .index = entry.index,
                         .update = entry.update,
                         .type = type,
                         .state = entry.name,
                         .at = at});
    };
    for (const Placement& placement : entry.placements) add(placement);
    if (entry.placements.empty())
      add(place_rows(entry.param, whole_shape(entry.type.shape, entry.layout, program.mesh())));
  }
  return tensors;
}

int32_t slots_of(const Program& program, const Graph& graph) {
  int32_t slots = 1;
  const auto look = [&](const std::string& name) {
    const StateEntry* entry = program.find_state(name);
    if (entry != nullptr) slots = std::max(slots, entry->slots);
  };
  for (const Node& node : graph.nodes())
    if (node.op == Op::kState || node.op == Op::kParam) look(node.name);
  for (const NamedValue& update : graph.updates()) look(update.name);
  return slots;
}

const Node* find_leaf(const Program& program, const std::string& state) {
  for (const Graph& graph : program.graphs()) {
    for (Op op : {Op::kParam, Op::kState}) {
      const Value leaf = graph.find_leaf(op, state);
      if (leaf.exists()) return &graph.node(leaf);
    }
  }
  return nullptr;
}

Update update_of(const Node& leaf) {
  const std::string& update = leaf.attr<std::string>("update");
  return update == "none" ? Update::kNone : update == "rows" ? Update::kRows : Update::kDense;
}

bool is_training(const Program& program) {
  return program.find_graph(GraphRole::kApply) != nullptr ||
         std::ranges::any_of(program.states(), [](const StateEntry& entry) {
           return entry.role == StateRole::kMoment || entry.role == StateRole::kGradient;
         });
}

LogicalState find_logical_state(const Program& program, const std::string& param, StateRole role, int32_t index) {
  for (LogicalState& tensor : logical_states(program)) {
    if (tensor.param == param && tensor.role == role && tensor.index == index) return tensor;
  }
  fail(ErrorCode::kInternal, "no state of program '{}' holds {}", program.name, state_name(role, param, index));
}

}  // namespace octet
