// Layout rules against what ops compute, on the case list: operands are cut (or split into addends) in all ways that a
// rule accepts, each rank's part is evaluated by itself in float64, and the parts of the results are joined as their
// layouts say. That must be the result of the whole operands.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "exec/parts.h"
#include "ir/facts.h"
#include "ir/localize.h"
#include "kernels/cpu/testing/cases.h"

namespace octet {
namespace {

using cpu::RefTensor;

constexpr int64_t kMaxElements = 20000;
constexpr int kTries = 300, kMaxEvaluated = 6, kMaxOfOp = 100;

// Every rank's part of a value; addends and operands of a maximum are made up so that they join to it.
std::vector<RefTensor> cut(const RefTensor& whole, const TensorType& local, const Layout& layout, const Mesh& mesh) {
  std::vector<RefTensor> parts;
  const AxisList sum = layout.pending_axes(Pending::kSum).list(), max = layout.pending_axes(Pending::kMax).list();
  for (int32_t rank = 0; rank < mesh.ranks(); ++rank) {
    const Coordinate at = mesh.coordinate(rank);
    const bool first_max = std::all_of(max.begin(), max.end(), [&](Axis axis) { return at[axis] == 0; });
    int32_t addend = 0;
    for (Axis axis : sum) addend = addend * mesh[axis] + at[axis];
    const int32_t addends = mesh.parts(sum);
    RefTensor part{local, std::vector<double>(static_cast<size_t>(local.shape.elements()))};
    for_each_element(local.shape, layout, mesh, at, [&](int64_t from, int64_t to) {
      double value = whole.values[static_cast<size_t>(from)];
      if (addends > 1)
        value = addend == 0 ? value - 0.25 * (addends - 1) * static_cast<double>(from % 7)
                            : 0.25 * static_cast<double>(from % 7);
      part.values[static_cast<size_t>(to)] = first_max ? value : value - 1;
    });
    parts.push_back(std::move(part));
  }
  return parts;
}

double sum_of_sizes(const std::map<int32_t, double>& pieces) {
  double size = 0;
  for (const auto& [piece, value] : pieces) size += std::abs(value);
  return size;
}

// "" or how a result differs from the whole one, whose parts all ranks have.
std::string compare(const std::vector<const RefTensor*>& parts, const Layout& layout, const Mesh& mesh,
                    const RefTensor& whole) {
  std::map<int64_t, std::map<int32_t, double>> joined;  // element -> pending part -> value
  for (int32_t rank = 0; rank < mesh.ranks(); ++rank) {
    const Coordinate at = mesh.coordinate(rank);
    int32_t piece = 0;
    for (Axis axis : layout.pending_axes().list()) piece = piece * mesh[axis] + at[axis];
    std::string fault;
    for_each_element(parts[static_cast<size_t>(rank)]->type.shape, layout, mesh, at, [&](int64_t to, int64_t from) {
      const double value = parts[static_cast<size_t>(rank)]->values[static_cast<size_t>(from)];
      auto [found, added] = joined[to].emplace(piece, value);
      if (!added && found->second != value) fault = fmt::format("copies of element {} differ", to);
    });
    if (!fault.empty()) return fault;
  }
  for (const auto& [element, pieces] : joined) {
    double sum = 0, max = -INFINITY, exps = 0;
    for (const auto& [piece, value] : pieces) sum += value, max = std::isnan(max) || max > value ? max : value;
    for (const auto& [piece, value] : pieces) exps += std::exp(value - max);
    const double got = !layout.pending_axes(Pending::kMax).empty()   ? max
                       : !layout.pending_axes(Pending::kLse).empty() ? max + std::log(exps)
                                                                     : sum;
    const double want = whole.values[static_cast<size_t>(element)];
    // Addends of 16 bits are each rounded.
    const bool rounded = pieces.size() > 1 && dtype_bytes(whole.type.dtype) == 2;
    const double tolerance = rounded ? 0x1p-7 * sum_of_sizes(pieces) : 1e-10 * std::max(1.0, std::abs(want));
    const bool equal = got == want || (std::isnan(got) && std::isnan(want)) || std::abs(got - want) <= tolerance;
    if (!equal) return fmt::format("element {} is {}, of the whole {}", element, got, want);
  }
  return "";
}

// Attributes that are sizes, in the ways a part may have them.
std::vector<Attrs> variants(const Node& node, const Mesh& mesh, const AxisList& axes) {
  const int64_t n = mesh.parts(axes);
  std::vector<Attrs> list = {node.attrs};
  const auto with = [&](const Attrs& base, const char* key, Attr value) {
    Attrs attrs = base;
    attrs.set(key, std::move(value));
    list.push_back(std::move(attrs));
    return list.back();
  };
  if (node.attrs.has("heads") && node.attr<int64_t>("heads") % n == 0) {
    const Attrs part = with(node.attrs, "heads", node.attr<int64_t>("heads") / n);
    if (node.attrs.has("kv_heads") && node.attr<int64_t>("kv_heads") % n == 0)
      with(part, "kv_heads", node.attr<int64_t>("kv_heads") / n);
  }
  if (node.op == Op::kEmbeddingGrad && node.attr<int64_t>("rows") % n == 0)
    with(with(node.attrs, "rows", node.attr<int64_t>("rows") / n), "over", print(axes));
  if (node.op == Op::kReshape) {
    const auto shape = node.attr<std::vector<int64_t>>("shape");
    for (size_t d = 0; d < shape.size(); ++d) {
      std::vector<int64_t> part = shape;
      if (part[d] % n == 0) part[d] /= n, with(node.attrs, "shape", part);
    }
  }
  return list;
}

struct Tally {
  int accepted = 0, evaluated = 0;
};

class RuleCheck {
 public:
  RuleCheck(const cpu::Case& c, const cpu::BuiltCase& built, const Mesh& mesh, const AxisList& axes)
      : name_(cpu::case_name(c, DType::kF32)), built_(built), mesh_(mesh), axes_(axes) {}

  Tally run() {
    const Node& node = built_.node();
    for (const TensorType& type : node.results) elements_ = std::max(elements_, type.shape.elements());
    for (const RefTensor& input : built_.inputs) elements_ = std::max(elements_, input.type.shape.elements());
    if (elements_ > kMaxElements) return tally_;
    attrs_ = variants(node, mesh_, axes_);
    Philox random(7, 0);
    for (int i = 0; i < kTries && tally_.evaluated < kMaxEvaluated; ++i) {
      std::vector<Layout> layouts;
      const uint32_t preferred = random.next_u32() % 4;
      for (const RefTensor& input : built_.inputs) layouts.push_back(choose(input.type, random, preferred));
      const size_t variant = random.next_u32() % attrs_.size();
      std::string key = std::to_string(variant);
      for (const Layout& layout : layouts) key += print({DType::kF32, Shape{8, 8, 8, 8}}, layout);
      if (tried_.insert(key).second) attempt(layouts, attrs_[variant]);
    }
    return tally_;
  }

 private:
  Layout choose(const TensorType& type, Philox& random, uint32_t preferred) {
    const int rank = type.shape.rank();
    const uint32_t choice = random.next_u32() % 3 == 0 ? random.next_u32() % 5 : preferred;
    if (choice == 3 && is_float(type.dtype) && !is_code(type.dtype) && random.next_u32() % 2 == 0)
      return Layout().with_pending(random.next_u32() % 4 == 0 ? Pending::kMax : Pending::kSum, axes_);
    if (choice < 3 && static_cast<int>(choice) < rank && type.shape[static_cast<int>(choice)] % mesh_.parts(axes_) == 0)
      return Layout().cut(static_cast<int>(choice), axes_);
    return {};
  }

  void attempt(const std::vector<Layout>& layouts, const Attrs& attrs) {
    if (std::all_of(layouts.begin(), layouts.end(), [](const Layout& l) { return l.copies(); })) return;
    Graph graph("part");
    graph.set_mesh(mesh_);
    graph.set_stage(Stage::kPacked);
    Node node = built_.node();
    node.attrs = attrs;
    NodeId id = NodeId::kNone;
    try {
      size_t next = 0;
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (!node.inputs[i].exists()) continue;
        TensorType type = built_.inputs[i].type;
        for (const Layout::Cut& cut : layouts[i].cuts) type.shape[cut.dim] /= mesh_[cut.axis];
        node.inputs[i] = {
            graph.add(
                {.op = Op::kInput, .results = {type}, .layouts = {layouts[i]}, .name = fmt::format("in{}", next++)}),
            0};
      }
      id = graph.add(std::move(node));
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kInvalidArgument) << name_ << ": " << error.message();
      return;
    }
    for (size_t r = 0; r < built_.node().results.size(); ++r) {
      const Layout& layout = graph.layout({id, static_cast<int32_t>(r)});
      if (!layout.pending_axes(Pending::kNever).empty()) continue;
      if (!(whole_shape(graph.node(id).results[r].shape, layout, mesh_) == built_.node().results[r].shape)) return;
    }
    ++tally_.accepted;
    evaluate(graph, id, layouts);
  }

  void evaluate(const Graph& graph, NodeId id, const std::vector<Layout>& layouts) {
    ++tally_.evaluated;
    if (whole_.empty()) whole_ = cpu::evaluate_node(built_.graph, built_.node(), built_.in(), false);
    std::vector<std::vector<RefTensor>> parts;  // of each operand
    for (size_t i = 0; i < built_.inputs.size(); ++i) {
      const Value leaf = i < graph.node(id).inputs.size() ? graph.node(id).inputs[i] : Value::none();
      parts.push_back(leaf.exists() ? cut(built_.inputs[i], graph.type(leaf), layouts[i], mesh_)
                                    : std::vector<RefTensor>());
    }
    std::vector<std::vector<RefTensor>> results;
    for (int32_t rank = 0; rank < mesh_.ranks(); ++rank) {
      Graph own = graph;
      localize(own, mesh_.coordinate(rank));
      std::vector<const RefTensor*> in;
      for (size_t i = 0; i < own.node(id).inputs.size(); ++i)
        in.push_back(parts[i].empty() ? nullptr : &parts[i][static_cast<size_t>(rank)]);
      results.push_back(cpu::evaluate_node(own, own.node(id), in, false));
    }
    for (size_t r = 0; r < whole_.size(); ++r) {
      const Layout& layout = graph.layout({id, static_cast<int32_t>(r)});
      if (!layout.pending_axes(Pending::kNever).empty()) continue;
      std::vector<const RefTensor*> of_ranks;
      for (const auto& result : results) of_ranks.push_back(&result[r]);
      EXPECT_EQ(compare(of_ranks, layout, mesh_, whole_[r]), "") << name_ << ", result " << r << "\n"
                                                                 << describe(graph, id);
    }
  }

  static std::string describe(const Graph& graph, NodeId id) {
    std::string text = op_name(graph.node(id).op);
    for (Value input : graph.node(id).inputs)
      text += " " + (input.exists() ? print(graph.type(input), graph.layout(input)) : "_");
    for (size_t r = 0; r < graph.node(id).results.size(); ++r)
      text += (r == 0 ? " -> " : ", ") + print(graph.node(id).results[r], graph.layout({id, static_cast<int32_t>(r)}));
    return text;
  }

  std::string name_;
  const cpu::BuiltCase& built_;
  Mesh mesh_;
  AxisList axes_;
  int64_t elements_ = 0;
  std::vector<RefTensor> whole_;
  std::vector<Attrs> attrs_;
  std::set<std::string> tried_;
  Tally tally_;
};

TEST(LayoutRules, PartsJoinToTheWhole) {
  struct Way {
    Mesh mesh;
    AxisList axes;
  };
  const std::vector<Way> ways = {{{{1, 1, 1, 2}}, {Axis::kTensor}},
                                 {{{1, 1, 1, 3}}, {Axis::kTensor}},
                                 {{{1, 1, 1, 5}}, {Axis::kTensor}},
                                 {{{1, 2, 1, 2}}, {Axis::kData, Axis::kTensor}}};
  std::map<Op, Tally> tallies;
  for (const cpu::Case& c : cpu::all_cases()) {
    if (c.large || c.op == Op::kFusion || tallies[c.op].evaluated >= kMaxOfOp) continue;
    const cpu::BuiltCase built = cpu::build_case(c, DType::kF32);
    if (is_localized(built.node())) continue;  // a part already
    for (const Way& way : ways) {
      if (tallies[c.op].evaluated >= kMaxOfOp) break;
      const Tally tally = RuleCheck(c, built, way.mesh, way.axes).run();
      tallies[c.op].accepted += tally.accepted, tallies[c.op].evaluated += tally.evaluated;
    }
  }
  for (const OpInfo& info : all_ops()) {
    const OpFacts& facts = op_facts(info.op);
    if (info.max_inputs == 0 || facts.collective || info.op == Op::kFusion) continue;
    const bool whole =
        std::set{Op::kTrustRatio,         Op::kClipFactor,         Op::kComputeScale, Op::kUpdateScales,
                 Op::kTensorStats,        Op::kSelectTokenIds,     Op::kAdjustLogits, Op::kSample,
                 Op::kTopLogprobs,        Op::kSegmentMean,        Op::kTopK,         Op::kCoalesceRows,
                 Op::kGroupRows,          Op::kDispatchRows,       Op::kCombineRows,  Op::kCombineRowsGrad,
                 Op::kGroupedMatmulWgrad, Op::kScaledGroupedMatmul}
            .contains(info.op);
    EXPECT_EQ(tallies[info.op].evaluated == 0, whole) << info.name << ": " << tallies[info.op].accepted << " accepted";
  }
}

}  // namespace
}  // namespace octet
