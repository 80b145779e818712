// The pipeline: the readable list of passes and the loop that verifies, times, dumps and disables them.
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/file.h"
#include "ir/fingerprint.h"
#include "ir/rewrite.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "passes/autodiff.h"
#include "passes/fuse.h"
#include "passes/group_updates.h"
#include "passes/pack.h"
#include "passes/pass.h"
#include "passes/plan_check.h"
#include "passes/plan_memory.h"
#include "passes/precision.h"
#include "passes/recompute.h"
#include "passes/shard.h"
#include "passes/stage_rules.h"

namespace octet {
namespace {

Pass graph_pass(std::string name, bool (*run)(Graph&), Stage stage) {
  return {std::move(name),
          [run](Program& program, const CompileOptions&) {
            bool changed = false;
            for (Graph& graph : program.graphs()) changed |= run(graph);
            return changed;
          },
          stage};
}

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

}  // namespace

Recompute parse_recompute(const std::string& name, const Target& target) {
  const std::vector<std::string> names = {"none", "light", "selective", "full", "auto"};
  auto found = std::find(names.begin(), names.end(), name);
  check(found != names.end(), ErrorCode::kInvalidArgument, "recompute: '{}' is not one of {}{}", name,
        fmt::join(names, ", "), if_near(name, names, " (nearest: {})"));
  if (*found == "auto") return target.prefer_recompute ? Recompute::kLight : Recompute::kNone;
  return static_cast<Recompute>(found - names.begin());
}

const std::vector<Pass>& pipeline_passes() {
  static const std::vector<Pass> passes = {
      graph_pass("merge_common_nodes", merge_common_nodes, Stage::kModel),
      {"autodiff", autodiff, Stage::kGradient, autodiff_steps()},
      {"precision", precision, Stage::kPrecise},
      graph_pass("merge_common_nodes", merge_common_nodes, Stage::kPrecise),
      // From here on there are clones that equal their originals: nothing may merge common nodes.
      {"recompute", recompute, Stage::kPrecise, recompute_steps()},
      {"shard", shard, Stage::kSharded},
      {"fuse", fuse, Stage::kFused, fuse_steps()},
      {"pack", pack, Stage::kPacked, pack_steps()},
      {"group_updates", group_updates, Stage::kPacked},
      graph_pass("remove_dead_nodes", remove_dead_nodes, Stage::kPacked),
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
    check(std::find(names.begin(), names.end(), name) != names.end(), ErrorCode::kInvalidArgument,
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

Plan compile(Program program, const CompileOptions& options, std::vector<PassReport>* reports) {
  check_disabled(options.disabled);
  using Clock = std::chrono::steady_clock;
  int dumps = 0;
  auto dump = [&](const std::string& name) {
    if (options.dump_dir.empty()) return;
    if (dumps == 0) make_folders(options.dump_dir);
    write_file(fmt::format("{}/{:02}_{}.txt", options.dump_dir, dumps++, name), print(program));
  };
  auto report = [&](const std::string& name, bool changed, Clock::time_point begin, const Program& after) {
    double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (reports != nullptr) reports->push_back({name, changed, seconds, node_count(after)});
  };
  auto begin = Clock::now();
  with_pass_context("pass build", [&] {
    collect_state(program);
    if (options.verify) verify(program);
  });
  report("build", true, begin, program);
  dump("build");
  for (const Pass& pass : pipeline_passes()) {
    begin = Clock::now();
    bool changed = run_pass(pass, program, options);
    report(pass.name, changed, begin, program);
    if (changed) dump(pass.name);
  }
  begin = Clock::now();
  Plan plan;
  with_pass_context("pass plan_memory", [&] {
    plan = plan_memory(std::move(program), options.target);
    if (options.verify) check_plan(plan);
  });
  report("plan_memory", true, begin, plan.program);
  return plan;
}

}  // namespace octet
