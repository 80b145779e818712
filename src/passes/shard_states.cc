#include "passes/shard_states.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <vector>

#include "base/error.h"
#include "ir/facts.h"
#include "ir/scale_layout.h"

namespace octet {
namespace {

// The parameter a leaf belongs to; "" for others.
std::string param_of(const Program& program, const Node& leaf) {
  if (leaf.op != Op::kParam && leaf.op != Op::kState) return "";
  const StateEntry* entry = program.find_state(leaf.name);
  return entry != nullptr ? entry->param : "";
}

// Follows what makes a key or value back to its projection: through caches, positions, norms, views and bias.
void collect_projection(const Program& program, const Graph& graph, Value value, std::set<std::string>& params) {
  const Node& node = graph.node(value);
  const OpFacts& facts = op_facts(node.op);
  const bool product = node.op == Op::kMatmul || node.op == Op::kScaledMatmul || node.op == Op::kGroupedMatmul;
  const size_t x = node.op == Op::kScatterRows || node.op == Op::kScatterCodes ? 1 : 0;
  for (size_t i = product ? 1 : 0; i < node.inputs.size(); ++i) {
    if (!node.inputs[i].exists()) continue;
    const Node& maker = graph.node(node.inputs[i]);
    if (const std::string param = param_of(program, maker); !param.empty()) {
      params.insert(param);
    } else if (!product && (i == x || facts.elementwise) && op_info(maker.op).max_inputs != 0) {
      collect_projection(program, graph, node.inputs[i], params);
    }
  }
}

// Key and value projections, and caches, of attentions with one key head: each rank needs it, so it is copied.
std::set<std::string> shared_keys(const Program& program) {
  std::set<std::string> params;
  for (const Graph& graph : program.graphs()) {
    for (const Node& node : graph.nodes()) {
      if ((node.op != Op::kAttention && node.op != Op::kPagedAttention) || node.attr<int64_t>("kv_heads") != 1)
        continue;
      if (node.attr<int64_t>("heads") == 1) continue;
      for (size_t i : {1, 2}) collect_projection(program, graph, node.inputs[i], params);
    }
  }
  return params;
}

// As the model's graphs say it, of a parameter or of the codes in its place; graphs of the trainer read parameters
// without it.
std::string split_of(const Program& program, const StateEntry& entry) {
  for (const Graph& graph : program.graphs()) {
    const Value leaf = graph.find_leaf(entry.role == StateRole::kMaster ? Op::kParam : Op::kState, entry.name);
    if (!leaf.exists()) continue;
    const std::string& split = graph.node(leaf).attr<std::string>("split");
    if (split != "none") return split;
  }
  return "none";
}

// The entry whose shape is the parameter's: its master, in inference programs perhaps its codes alone.
bool stands_for_param(const Program& program, const StateEntry& entry) {
  return entry.role == StateRole::kMaster || (entry.role == StateRole::kCodes && entry.index == kPlainCodes &&
                                              program.find_state(entry.param, StateRole::kMaster) == nullptr);
}

// Rows of a parameter that no cut goes between: those that share scales.
int64_t rows_of_scale(const Program& program, const StateEntry& master) {
  for (int32_t form = kPlainCodes; form <= kBlockCodes + kTransposedCodes; ++form) {
    const StateEntry* scales = program.find_state(master.param, StateRole::kScaleInv, form);
    if (scales != nullptr && scales->type.shape.rank() == 2) return kScaleBlock;
  }
  return 1;
}

Layout scale_layout(const Program& program, const StateEntry& entry, const Layout& codes) {
  const StateEntry* of = program.find_state(entry.param, StateRole::kCodes, entry.index);
  if (of == nullptr || entry.type.shape == Shape{1}) return {};
  for (ScaleLayout layout :
       {ScaleLayout::kRow, ScaleLayout::kTile128, ScaleLayout::kRow128, ScaleLayout::kRow64, ScaleLayout::kRow32}) {
    if (scale_shape(layout, of->type.shape[0], of->type.shape[1]) != entry.type.shape) continue;
    return scales_layout(codes, layout);
  }
  return {};
}

}  // namespace

void check_heads(const Program& program, const Mesh& mesh) {
  const int64_t tp = mesh[Axis::kTensor], cp = mesh[Axis::kContext];
  for (const Graph& graph : program.graphs()) {
    for (const Node& node : graph.nodes()) {
      check(node.op != Op::kGroupRows || tp * cp == 1, ErrorCode::kUnsupported,
            "parallel.tensor={}, parallel.context={}: mixtures of experts are not split over ranks: use parallel.data "
            "alone",
            tp, cp);
      if (node.op != Op::kAttention && node.op != Op::kPagedAttention) continue;
      const int64_t heads = node.attr<int64_t>("heads"), kv_heads = node.attr<int64_t>("kv_heads");
      check(heads % (tp * cp) == 0, ErrorCode::kInvalidArgument,
            "parallel.tensor={} times parallel.context={}: {} heads do not divide among {} ranks (want one of {})", tp,
            cp, heads, tp * cp, fmt::join(divisors(heads), ", "));
      check(kv_heads == 1 || kv_heads % tp == 0, ErrorCode::kInvalidArgument,
            "parallel.tensor={}: {} key heads do not divide among {} ranks (want one of {})", tp, kv_heads, tp,
            fmt::join(divisors(kv_heads), ", "));
      const int64_t own = std::max<int64_t>(kv_heads / tp, 1);
      check(own == 1 || own % cp == 0, ErrorCode::kInvalidArgument,
            "parallel.context={}: {} key heads of a rank of parallel.tensor={} do not divide among {} ranks (want one "
            "of {})",
            cp, own, tp, cp, fmt::join(divisors(own), ", "));
    }
  }
}

StateLayouts::StateLayouts(const Program& program, const Parallel& parallel) : parallel_(parallel) {
  const std::set<std::string> copied = shared_keys(program);
  const int64_t tp = parallel.mesh[Axis::kTensor];
  for (const StateEntry& entry : program.states()) {
    if (entry.role == StateRole::kKvCache && tp > 1 && !copied.contains(entry.param))
      weights_[entry.param] = Layout().cut(1, {Axis::kTensor});
    if (!stands_for_param(program, entry)) continue;
    const std::string split = split_of(program, entry);
    const Shape& shape = entry.type.shape;
    Layout layout;
    const bool rows = split == "column" || split == "vocab", columns = split == "row" && shape.rank() == 2;
    if (tp > 1 && (rows || columns) && !copied.contains(entry.param)) {
      const int dim = rows ? 0 : 1;
      check(shape[dim] % tp == 0, ErrorCode::kInvalidArgument,
            "parallel.tensor={}: dim {} of {} is {}, which does not divide (want one of {})", tp, dim, entry.param,
            shape[dim], fmt::join(divisors(shape[dim]), ", "));
      layout = layout.cut(dim, {Axis::kTensor});
    }
    if (entry.update == Update::kRows) layout = {};
    weights_[entry.param] = layout;
    int64_t local = shape[0] / (rows && !layout.cuts.empty() ? tp : 1);
    for (Axis axis : kReplicas.list()) {
      const int64_t parts = parallel.mesh[axis];
      if (parallel.level == ShardLevel::kNone || parts == 1 || shape.rank() == 1 || entry.update == Update::kRows ||
          local % (parts * rows_of_scale(program, entry)) != 0)
        continue;
      layout = layout.cut(0, {axis});
      local /= parts;
    }
    masters_[entry.param] = layout;
  }
}

Layout StateLayouts::of(const Program& program, const StateEntry& entry) const {
  const auto known = weights_.find(entry.param);
  if (known == weights_.end()) return {};
  const Layout& weight = parallel_.level == ShardLevel::kParameters ? masters_.at(entry.param) : known->second;
  Layout codes = entry.index & kTransposedCodes ? weight.moved({1, 0}) : weight;
  if (program.find_state(entry.param, StateRole::kMagnitudes) != nullptr)
    codes = known->second;  // copies: i4 is not gathered
  switch (entry.role) {
    case StateRole::kMaster:
      if (entry.update == Update::kNone) return weight;  // products read it
      [[fallthrough]];
    case StateRole::kMoment: return masters_.at(entry.param);
    case StateRole::kGradient:  // others' makers say how they lie
      return is_row_gradient(entry) && parallel_.mesh[Axis::kData] > 1 ? Layout().cut(0, {Axis::kData}) : Layout();
    case StateRole::kCompute: return weight;
    case StateRole::kKvCache: return known->second;
    case StateRole::kCodes:
    case StateRole::kMagnitudes:
    case StateRole::kMagnitudeScales: return codes;
    case StateRole::kMagnitudeOffsets: return codes.whole(1);
    case StateRole::kZero:
    case StateRole::kScaleInv: {
      Layout scales = scale_layout(program, entry, codes);
      for (const Layout::Cut& cut : scales.cuts)
        check(entry.type.shape[cut.dim] % parallel_.mesh[cut.axis] == 0, ErrorCode::kInvalidArgument,
              "{}: its {} groups of one scale do not divide among {} ranks: use fewer ranks, smaller groups, or a "
              "recipe of a scale a row (fp8-current, int8)",
              entry.param, entry.type.shape[cut.dim], parallel_.mesh[cut.axis]);
      return scales;
    }
    case StateRole::kBuffer: {  // a table of adapters of this weight: rows of each slot, or columns, as its own
      const std::string split = known->second.cuts.empty() ? "none" : split_of(program, entry);
      const StateEntry* of = program.find_state(entry.param, StateRole::kMaster);
      if (of == nullptr) of = program.find_state(entry.param, StateRole::kCodes);
      if (of == nullptr || split == "none") return {};
      const int64_t groups = entry.type.shape[0] / of->type.shape[0];
      return split == "row" ? Layout().with(1, {Axis::kTensor}) : Layout().with(0, {Axis::kTensor}, groups);
    }
    default: return {};
  }
}

}  // namespace octet
