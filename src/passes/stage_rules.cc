#include "passes/stage_rules.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "ir/facts.h"
#include "passes/pack.h"
#include "passes/precision.h"
#include "passes/precision_plan.h"

namespace octet {
namespace {

void require(bool holds, const Graph& graph, NodeId id, std::string_view rule) {
  check(holds, ErrorCode::kInternal, "graph {}: {}: {}", graph.name(), describe(graph, id), rule);
}

template <typename Check>
void for_nodes(const Graph& graph, const Check& check_node) {
  for (int32_t i = 0; i < graph.size(); ++i) check_node(NodeId{i}, graph.node(NodeId{i}));
}

void no_plain_product_of_codes(const Program& program, const Graph& graph, const CompileOptions& options) {
  if (!is_model_graph(graph)) return;
  for (const auto& [i, gemm] : plan_precision(graph, options, !is_training(program)).gemms) {
    require(!gemm.used.codes, graph, NodeId{i}, "the recipe makes this product one of codes, and it is plain");
  }
}

// float32, the recipe's compute type and formats; caches keep the type of their state.
void no_unknown_type(const Program&, const Graph& graph, const CompileOptions& options) {
  const Recipe& recipe = options.recipe;
  for_nodes(graph, [&](NodeId id, const Node& node) {
    const bool given = op_info(node.op).max_inputs == 0 || op_facts(node.op).must_alias >= 0;
    for (const TensorType& type : node.results) {
      const bool known = given || !is_float(type.dtype) || type.dtype == DType::kF32 || type.dtype == DType::kF64 ||
                         type.dtype == recipe.compute || type.dtype == recipe.forward_format ||
                         type.dtype == recipe.gradient_format;
      require(known, graph, id, "its type is none of float32, the recipe's compute type and formats");
    }
  });
}

void no_nested_fusion(const Program&, const Graph& graph, const CompileOptions&) {
  for_nodes(graph, [&](NodeId id, const Node& node) {
    if (node.op != Op::kFusion) return;
    const auto& members = node.body->nodes();
    require(std::none_of(members.begin(), members.end(), [](const Node& member) { return member.op == Op::kFusion; }),
            graph, id, "a fusion's members are ops, and one is a fusion");
  });
}

void no_foldable_slice(const Program&, const Graph& graph, const CompileOptions& options) {
  const NodeId left = find_foldable_product(graph, options.target);
  if (left != NodeId::kNone) require(false, graph, left, "its readers' kernels take columns of the product themselves");
}

void no_dead_node(const Program&, const Graph& graph, const CompileOptions&) {
  const std::vector<std::vector<int32_t>> uses = graph.count_uses();
  for_nodes(graph, [&](NodeId id, const Node& node) {
    const std::vector<int32_t>& own = uses[static_cast<size_t>(index(id))];
    require(node.op == Op::kInput || std::accumulate(own.begin(), own.end(), 0) > 0, graph, id, "nothing reads it");
  });
}

struct StageRule {
  const char* pass;  // after which it holds
  const char* step;  // that makes it hold
  void (*check)(const Program&, const Graph&, const CompileOptions&);
};
constexpr StageRule kRules[] = {
    {"precision", "precision", no_plain_product_of_codes},
    {"precision", "precision", no_unknown_type},
    {"fuse", "fuse", no_nested_fusion},
    {"pack", "fold_slices", no_foldable_slice},
    {"remove_dead_nodes", "remove_dead_nodes", no_dead_node},
};

}  // namespace

void check_stage_rules(std::string_view pass, const Program& program, const CompileOptions& options) {
  for (const StageRule& rule : kRules) {
    if (rule.pass != pass || options.disabled.contains(rule.pass) || options.disabled.contains(rule.step)) continue;
    for (const Graph& graph : program.graphs()) rule.check(program, graph, options);
  }
}

}  // namespace octet
