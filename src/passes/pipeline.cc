// The pipeline: the readable list of passes and the loop that verifies, times, dumps and disables them.

#include <fmt/ranges.h>
#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/error.h"
#include "base/file.h"
#include "ir/facts.h"
#include "ir/rewrite.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "passes/pass.h"
#include "passes/passes.h"
#include "passes/plan_memory.h"
#include "passes/precision_parts.h"

namespace octet {
namespace {

int64_t node_count(const Program& program) {
  int64_t nodes = 0;
  for (const Graph& graph : program.graphs()) nodes += graph.size();
  return nodes;
}

// Runs `work`; an error names who did it.
template <typename Work>
void with_pass_context(const std::string& who, const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", who, error.message()));
  }
}

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
    const bool given = op_info(node.op).max_inputs == 0 || !op_facts(node.op).must_alias.empty();
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
    require(std::ranges::none_of(members, [](const Node& member) { return member.op == Op::kFusion; }), graph, id,
            "a fusion's members are ops, and one is a fusion");
  });
}

void no_foldable_slice(const Program&, const Graph& graph, const CompileOptions& options) {
  const NodeId left = find_foldable_product(graph, options.target);
  if (left != NodeId::kNone) require(false, graph, left, "its readers' kernels take columns of the product themselves");
}

void no_dead_node(const Program&, const Graph& graph, const CompileOptions&) {
  const std::vector<std::vector<int32_t>> uses = graph.count_uses();
  for_nodes(graph, [&](NodeId id, const Node& node) {
    const std::vector<int32_t>& own = uses[slot(id)];
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

Recompute parse_recompute(const std::string& name, const Target& target) {
  const std::vector<std::string> names = {"none", "light", "selective", "full", "auto"};
  auto found = std::ranges::find(names, name);
  check(found != names.end(), ErrorCode::kInvalidArgument, "recompute: '{}' is not one of {}{}", name,
        fmt::join(names, ", "), if_near(name, names, " (nearest: {})"));
  if (*found == "auto") return target.prefer_recompute ? Recompute::kLight : Recompute::kNone;
  return static_cast<Recompute>(found - names.begin());
}

const std::vector<Pass>& pipeline_passes() {
  static const std::vector<Pass> passes = {
      {"merge_common_nodes", on_graphs<merge_common_nodes>, Stage::kModel},
      {"autodiff", autodiff, Stage::kGradient, autodiff_steps()},
      {"precision", precision, Stage::kPrecise},
      {"merge_common_nodes", on_graphs<merge_common_nodes>, Stage::kPrecise},
      // From here on there are clones that equal their originals: nothing may merge common nodes.
      {"recompute", recompute, Stage::kPrecise, recompute_steps()},
      {"stages", stages, Stage::kPrecise},
      {"shard", shard, Stage::kSharded},
      {"fuse", fuse, Stage::kFused, fuse_steps()},
      {"group_collectives", on_graphs<group_collectives>, Stage::kFused},
      {"pack", pack, Stage::kPacked, pack_steps()},
      {"group_updates", group_updates, Stage::kPacked},
      {"remove_dead_nodes", on_graphs<remove_dead_nodes>, Stage::kPacked},
      {"schedule", on_graphs<schedule>, Stage::kPacked},
  };
  return passes;
}

void check_disabled(const std::set<std::string>& disabled) {
  std::vector<std::string> names;
  for (const Pass& pass : pipeline_passes()) {
    names.push_back(pass.name);
    for (const Step& step : pass.steps) names.emplace_back(step.name);
  }
  for (const std::string& name : disabled) {
    check(std::ranges::find(names, name) != names.end(), ErrorCode::kInvalidArgument,
          "disable: no pass is named '{}' ({}all: {})", name, if_near(name, names, "nearest: {}; "),
          fmt::join(names, ", "));
  }
}

bool run_steps(std::span<const Step> steps, Program& program, const CompileOptions& options) {
  bool changed = false;
  for (const Step& step : steps) {
    if (options.disabled.contains(step.name)) continue;
    with_pass_context(step.name, [&] { changed |= step.run(program, options); });
  }
  return changed;
}

bool run_pass(const Pass& pass, Program& program, const CompileOptions& options) {
  bool changed = false;
  with_pass_context("pass " + pass.name, [&] {
    if (!options.disabled.contains(pass.name)) {
      const uint64_t before = options.verify ? fingerprint(program) : 0;
      changed = pass.run(program, options);
      const bool differs = options.verify ? fingerprint(program) != before : changed;
      check(changed == differs, ErrorCode::kInternal, "it says that it changed {} of the program, which is {}",
            changed ? "something" : "nothing", differs ? "another" : "the same");
    }
    for (Graph& graph : program.graphs()) graph.set_stage(std::max(graph.stage(), pass.stage));
    if (options.verify) verify(program), check_stage_rules(pass.name, program, options);
  });
  return changed;
}

namespace {

// Runs passes of the list, reports them and dumps what they changed.
class Compilation {
 public:
  using Clock = std::chrono::steady_clock;
  Compilation(const CompileOptions& options, std::vector<PassReport>* reports) : options_(options), reports_(reports) {
    if (reports == nullptr) return;  // dumps are numbered on
    dumps_ = static_cast<int>(std::ranges::count_if(*reports, [](const PassReport& r) { return r.changed; }));
  }

  void run(std::span<const Pass> passes, Program& program) {
    for (const Pass& pass : passes) {
      const auto begin = Clock::now();
      const bool changed = run_pass(pass, program, options_);
      report(pass.name, changed, begin, program);
      if (changed) dump(pass.name, program);
    }
  }

  void report(const std::string& name, bool changed, Clock::time_point begin, const Program& after) {
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (reports_ != nullptr) reports_->push_back({name, changed, seconds, node_count(after)});
  }

  void dump(const std::string& name, const Program& program) {
    if (options_.dump_dir.empty()) return;
    make_folders(options_.dump_dir);
    write_file(fmt::format("{}/{:02}_{}.txt", options_.dump_dir, dumps_++, name), print(program));
  }

 private:
  const CompileOptions& options_;
  std::vector<PassReport>* reports_;
  int dumps_ = 0;
};

// The passes before `stages`, and the others.
std::span<const Pass> passes_of(bool whole) {
  const std::vector<Pass>& passes = pipeline_passes();
  const auto first = std::ranges::find(passes, "stages", &Pass::name);
  return whole ? std::span(passes.begin(), first) : std::span(first, passes.end());
}

}  // namespace

Program compile_whole(Program program, const CompileOptions& options, std::vector<PassReport>* reports) {
  check_disabled(options.disabled);
  Compilation compilation(options, reports);
  const auto begin = Compilation::Clock::now();
  with_pass_context("pass build", [&] {
    collect_state(program);
    if (options.verify) verify(program);
  });
  compilation.report("build", true, begin, program);
  compilation.dump("build", program);
  compilation.run(passes_of(/*whole=*/true), program);
  return program;
}

Plan compile_stage(Program program, const CompileOptions& options, std::vector<PassReport>* reports) {
  Compilation compilation(options, reports);
  compilation.run(passes_of(/*whole=*/false), program);
  const auto begin = Compilation::Clock::now();
  Plan plan;
  with_pass_context("pass plan_memory", [&] {
    plan = plan_memory(std::move(program), options.target);
    if (options.verify) check_plan(plan);
  });
  compilation.report("plan_memory", true, begin, plan.program);
  return plan;
}

Plan compile(Program program, const CompileOptions& options, std::vector<PassReport>* reports) {
  std::vector<PassReport> own;  // dumps are numbered on
  if (reports == nullptr) reports = &own;
  return compile_stage(compile_whole(std::move(program), options, reports), options, reports);
}

void check_stage_rules(std::string_view pass, const Program& program, const CompileOptions& options) {
  for (const StageRule& rule : kRules) {
    if (rule.pass != pass || options.disabled.contains(rule.pass) || options.disabled.contains(rule.step)) continue;
    for (const Graph& graph : program.graphs()) rule.check(program, graph, options);
  }
}

}  // namespace octet
