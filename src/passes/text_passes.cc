#include "passes/text_passes.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "passes/plan_check.h"
#include "passes/plan_memory.h"

namespace octet {
namespace {

constexpr const char* kPlanMemory = "plan_memory";

// The first word that is not in a comment.
std::string_view first_word(std::string_view text) {
  while (!text.empty()) {
    size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == std::string_view::npos) return {};
    text.remove_prefix(begin);
    if (text.front() != '#') return text.substr(0, text.find_first_of(" \t\r\n"));
    size_t end = text.find('\n');
    text.remove_prefix(end == std::string_view::npos ? text.size() : end);
  }
  return {};
}

std::string place(const BufferRef& ref, int64_t bytes, const Program& program) {
  switch (ref.kind) {
    case BufferRef::Kind::kNone: return "unused";
    case BufferRef::Kind::kArena: return fmt::format("arena {} + {}", ref.offset, bytes);
    case BufferRef::Kind::kState: return fmt::format("state {}", program.states()[static_cast<size_t>(ref.index)].name);
    case BufferRef::Kind::kInput: return fmt::format("input {}", ref.index);
  }
  return "";
}

}  // namespace

std::vector<std::string> pass_names() {
  std::vector<std::string> names;
  for (const Pass& pass : pipeline_passes()) {
    if (std::find(names.begin(), names.end(), pass.name) == names.end()) names.push_back(pass.name);
  }
  names.push_back(kPlanMemory);
  return names;
}

const Pass& find_pass(const std::string& name) {
  for (const Pass& pass : pipeline_passes()) {
    if (pass.name == name) return pass;
  }
  fail(ErrorCode::kInvalidArgument, "no pass is named '{}' ({}all: {})", name,
       if_near(name, pass_names(), "nearest: {}; "), fmt::join(pass_names(), ", "));
}

std::string run_passes(std::string_view text, const std::string& where, const std::vector<std::string>& passes,
                       const CompileOptions& options) {
  Program program;
  bool is_program = first_word(text) == "program";
  if (is_program) {
    program = parse_program(text, where);
  } else {
    program.add_graph(parse_graph(text, where));
  }
  collect_state(program);
  verify(program);
  for (const std::string& name : passes) {
    if (name == kPlanMemory) {
      check(&name == &passes.back(), ErrorCode::kInvalidArgument, "{} makes a plan: it must be the last pass", name);
      Plan plan = plan_memory(std::move(program), options.target);
      check_plan(plan);
      return print(plan);
    }
    run_pass(find_pass(name), program, options);
  }
  return is_program || program.graphs().size() > 1 ? print(program) : print(program.graphs().front());
}

std::string print(const Plan& plan) {
  std::string text = fmt::format("arena {} bytes ({} of them workspace), states {}, inputs {}\n", plan.arena_bytes,
                                 plan.workspace_bytes, plan.state_bytes, plan.input_bytes);
  for (const Graph& graph : plan.program.graphs()) {
    const GraphPlan& graph_plan = plan.graphs.at(graph.name());
    text += fmt::format("graph {}: arena {}, live {}, saved {}, peak at {}\n", graph.name(), graph_plan.arena_bytes,
                        graph_plan.live_bytes, graph_plan.saved_bytes,
                        graph_plan.peak_node == NodeId::kNone ? "none" : describe(graph, graph_plan.peak_node));
    for (int32_t i = 0; i < graph.size(); ++i) {
      const Node& node = graph.node(NodeId{i});
      for (size_t r = 0; r < node.results.size(); ++r) {
        const BufferRef& ref = graph_plan.buffers[static_cast<size_t>(i)][r];
        text += fmt::format("  %{}.{} {} {}: {}\n", i, r, op_name(node.op), node.name,
                            place(ref, node.results[r].bytes(), plan.program));
      }
    }
  }
  return text;
}

}  // namespace octet
