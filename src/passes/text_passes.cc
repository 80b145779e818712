#include "passes/text_passes.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/settings.h"
#include "ir/text.h"
#include "ir/text_words.h"
#include "ir/verify.h"
#include "passes/plan_memory.h"

namespace octet {
namespace {

constexpr const char* kPlanMemory = "plan_memory";

// What makes another graph from one, outside the pipeline.
struct GraphMaker {
  const char* name;
  Graph (*make)(Program& made, const Graph& graph, const ServingSizes& sizes);
};

KvCacheOptions cache_of(const Graph& graph, const ServingSizes& sizes) {
  KvCacheOptions cache = sizes.cache;
  cache.blocks.assign(attention_windows(graph).size(), sizes.cache.blocks.front());
  return cache;
}

constexpr GraphMaker kMakers[] = {
    {"kv_cache", [](Program& made, const Graph& graph,
                    const ServingSizes& sizes) { return add_kv_cache(made, graph, cache_of(graph, sizes)); }},
    {"forward_graph",
     [](Program& made, const Graph& graph, const ServingSizes& sizes) {
       return forward_graph(made, graph.name(), graph, cache_of(graph, sizes), sizes.states);
     }},
    {"read_rows_only",
     [](Program&, const Graph& graph, const ServingSizes& sizes) { return read_rows_only(graph, sizes.states.rows); }},
    {"sample_graph",
     [](Program& made, const Graph& graph, const ServingSizes& sizes) {
       return sample_graph(made, graph.name(), graph, sizes.sample, sizes.states);
     }},
    {"copy_blocks_graph", [](Program& made, const Graph& graph, const ServingSizes& sizes) {
       constexpr int64_t kPairs = 2;
       for (const auto& [state, group] : cache_groups(graph))
         made.add_state(
             {.name = state, .type = graph.type(graph.find_leaf(Op::kState, state)), .role = StateRole::kKvCache});
       return copy_blocks_graph(graph.name(), graph, 0, sizes.cache.block_size, kPairs);
     }}};

// Whether there is one of this name; every graph of the program is replaced then.
bool remake_graphs(const std::string& name, Program& program, const ServingSizes& sizes) {
  const auto* maker = std::ranges::find_if(kMakers, [&](const auto& m) { return m.name == name; });
  if (maker == std::end(kMakers)) return false;
  Program made;
  made.name = program.name;
  for (const Graph& graph : program.graphs()) made.add_graph(maker->make(made, graph, sizes));
  collect_state(made);
  verify(made);
  program = std::move(made);
  return true;
}

// All, each pass before its steps, which begin with `step_prefix`.
std::vector<std::string> known_names(const std::string& step_prefix = "") {
  std::vector<std::string> names;
  for (const Pass& pass : pipeline_passes()) {
    if (std::ranges::find(names, pass.name) != names.end()) continue;
    names.push_back(pass.name);
    for (const Step& step : pass.steps) names.push_back(step_prefix + step.name);
  }
  names.emplace_back(kPlanMemory);
  for (const GraphMaker& maker : kMakers) names.emplace_back(maker.name);
  return names;
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

std::string list_passes() { return fmt::format("{}\n", fmt::join(known_names("  "), "\n")); }

ServingSizes parse_serving_sizes(const std::vector<std::string>& words) {
  ServingSizes sizes;
  std::string cache_dtype = dtype_name(sizes.cache.cache_dtype), hidden_dtype = dtype_name(sizes.states.hidden_dtype);
  SettingsTable table;
  table.add("blocks", &sizes.cache.blocks.front(), {.meaning = "of the cache", .min = 1});
  table.add("block_size", &sizes.cache.block_size, {.meaning = "tokens of a block", .min = 1});
  table.add("blocks_per_sequence", &sizes.cache.blocks_per_sequence, {.meaning = "columns of a block table", .min = 1});
  table.add("sequences", &sizes.cache.sequences, {.meaning = "of a step", .min = 1});
  table.add("logit_rows", &sizes.cache.logit_rows, {.meaning = "rows that reach the head", .min = 1});
  table.add("max_query_len", &sizes.cache.max_query_len, {.meaning = "of a sequence; 0 = any number", .min = 0});
  table.add("cache_dtype", &cache_dtype, {.meaning = "of the cache"});
  table.add("scales", &sizes.cache.scales, {.meaning = "of an FP8 cache"});
  table.add("hidden_dtype", &hidden_dtype, {.meaning = "of state hidden"});
  table.add("rows", &sizes.sample.rows, {.meaning = "that are sampled", .min = 1});
  table.add("entries", &sizes.sample.entries, {.meaning = "of adjust_logits", .min = 0});
  table.add("masks", &sizes.sample.masks, {.meaning = "of adjust_logits", .min = 0});
  table.add("top_logprobs", &sizes.sample.top_logprobs, {.meaning = "0 = none", .min = 0});
  table.set_words(words);
  sizes.cache.cache_dtype = parse_dtype(cache_dtype);
  sizes.states.hidden_dtype = parse_dtype(hidden_dtype);
  sizes.states.sequences = sizes.cache.sequences;
  sizes.states.rows = sizes.sample.rows;
  return sizes;
}

Pass find_pass(const std::string& name) {
  for (const Pass& pass : pipeline_passes()) {
    if (pass.name == name) return pass;
    for (const Step& step : pass.steps) {
      if (step.name == name) return {step.name, step.run, pass.stage};
    }
  }
  fail(ErrorCode::kInvalidArgument, "no pass is named '{}' ({}all: {})", name,
       if_near(name, known_names(), "nearest: {}; "), fmt::join(known_names(), ", "));
}

std::string run_passes(std::string_view text, const std::string& where, const std::vector<std::string>& passes,
                       const CompileOptions& options, const ServingSizes& sizes) {
  check_disabled(options.disabled);
  Program program;
  const bool is_program = text::Reader(text, where).accept_word("program");
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
    if (!remake_graphs(name, program, sizes)) run_pass(find_pass(name), program, options);
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
