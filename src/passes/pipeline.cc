// The pipeline: the readable list of passes and the loop that verifies, times, dumps and disables them.
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/file.h"
#include "ir/rewrite.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "passes/autodiff.h"
#include "passes/pass.h"
#include "passes/plan_check.h"
#include "passes/plan_memory.h"
#include "passes/precision.h"
#include "passes/recompute.h"

namespace octet {
namespace {

// What the graphs of a program have become after a pass, whether or not it found something to do.
struct Row {
  Pass pass;
  Stage stage;
};

Pass graph_pass(std::string name, bool (*run)(Graph&)) {
  return {std::move(name), [run](Program& program, const CompileOptions&) {
            bool changed = false;
            for (Graph& graph : program.graphs()) changed |= run(graph);
            return changed;
          }};
}

const std::vector<Row>& rows() {
  static const std::vector<Row> table = {
      {graph_pass("merge_common_nodes", merge_common_nodes), Stage::kModel},
      {{"autodiff", autodiff}, Stage::kGradient},
      {{"precision", precision}, Stage::kPrecise},
      {graph_pass("merge_common_casts", merge_common_nodes), Stage::kPrecise},
      // From here on clones equal their originals: nothing may merge common nodes.
      {{"recompute", recompute}, Stage::kPrecise},
      {graph_pass("remove_dead_nodes", remove_dead_nodes), Stage::kPacked},
  };
  return table;
}

int64_t node_count(const Program& program) {
  int64_t nodes = 0;
  for (const Graph& graph : program.graphs()) nodes += graph.size();
  return nodes;
}

void check_disabled(const std::set<std::string>& disabled) {
  std::vector<std::string> names;
  for (const Row& row : rows()) names.push_back(row.pass.name);
  for (const std::string& name : disabled) {
    check(std::find(names.begin(), names.end(), name) != names.end(), ErrorCode::kInvalidArgument,
          "disable: no pass is named '{}' (nearest: {}; all: {})", name, nearest_name(name, names),
          fmt::join(names, ", "));
  }
}

// Runs `step`; an error names the pass.
template <typename Step>
void blame(const std::string& pass, const Step& step) {
  try {
    step();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("pass {}: {}", pass, error.message()));
  }
}

}  // namespace

Recompute parse_recompute(const std::string& name) {
  const std::vector<std::string> names = {"none", "selective", "full"};
  auto found = std::find(names.begin(), names.end(), name);
  check(found != names.end(), ErrorCode::kInvalidArgument, "recompute: '{}' is not one of {} (nearest: {})", name,
        fmt::join(names, ", "), nearest_name(name, names));
  return static_cast<Recompute>(found - names.begin());
}

const std::vector<Pass>& pipeline_passes() {
  static const std::vector<Pass> passes = [] {
    std::vector<Pass> list;
    for (const Row& row : rows()) list.push_back(row.pass);
    return list;
  }();
  return passes;
}
