// For tests only: one training step of a compiled tiny program through the interpreter, and what each of its nodes was
// given and made, with the tolerance that float32 kernels are held to on values of a model.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "exec/testing/tiny_program.h"
#include "kernels/cpu/testing/conformance.h"
#include "passes/passes.h"
#include "precision/policy.h"

namespace octet::conformance {

// Errors relative to the largest result. Fusions round a value of a few ulp difference inside (bf16, then codes), which
// moves some results to a neighbour.
inline constexpr double kRelative = 1e-5;
inline constexpr double kShare = 0.02, kBF16Unit = 0x1p-8;

struct Visit {
  const Graph& graph;
  const Node& node;
  std::vector<cpu::RefTensor> inputs;  // absent ones empty
  const std::vector<cpu::RefTensor>& results;
  double scale = 0;  // the largest value that the node's sums are made of
  cpu::Tolerance tolerance;
  cpu::Neighbours neighbours;
  std::string where;  // "train layer0.attn.q (matmul)"
};

inline double largest(const std::vector<cpu::RefTensor>& results) {
  double value = 0;
  for (const cpu::RefTensor& result : results) {
    if (!is_float(result.type.dtype) || is_fp8(result.type.dtype)) continue;
    for (double element : result.values) value = std::fmax(value, std::fabs(element));
  }
  return value;
}

inline bool has_16_bits(const Graph& graph) {
  for (const Node& node : graph.nodes()) {
    for (const TensorType& type : node.results) {
      if (type.dtype == DType::kBF16 || type.dtype == DType::kF16) return true;
    }
  }
  return false;
}

// Every node of every graph, on the values that it has at the end of the first step.
inline void visit_step(const Program& program, const std::function<void(const Visit&)>& visit) {
  auto executor = make_interpreter(program);
  tiny::initialize(*executor);
  tiny::train(*executor, 1);  // leaves a step's inputs staged and the states of a run
  if (program.find_graph(GraphRole::kTrainStats) != nullptr) tiny::loss(*executor, "train_stats", 0);
  for (const Graph& graph : program.graphs()) {
    std::map<std::string, cpu::RefTensor> leaves;
    const auto leaf = [&](const Node& node) -> const cpu::RefTensor& {
      const std::string key = std::string(op_name(node.op)) + node.name;
      if (const auto found = leaves.find(key); found != leaves.end()) return found->second;
      const TensorType& type = node.results[0];
      std::vector<std::byte> bytes(static_cast<size_t>(type.bytes()));
      if (node.op == Op::kInput) {
        const auto staged = executor->input(graph.name(), node.name);
        std::copy(staged.begin(), staged.end(), bytes.begin());
      } else {
        executor->read_state(node.name, bytes);
      }
      return leaves.emplace(key, cpu::load_tensor(type, bytes.data())).first->second;
    };
    const auto observe = [&](const Node& node, cpu::RefInputs in, const std::vector<cpu::RefTensor>& results) {
      Visit v{.graph = graph, .node = node, .inputs = {}, .results = results, .scale = largest(results)};
      for (const cpu::RefTensor* input : in) v.inputs.push_back(input != nullptr ? *input : cpu::RefTensor{});
      if (node.op == Op::kReduce) v.scale = std::fmax(v.scale, largest(v.inputs));  // sums that cancel (key biases)
      const bool narrow = node.op == Op::kFusion && has_16_bits(*node.body);
      v.neighbours = {.share = narrow ? kShare : 0, .f32_unit = kBF16Unit * v.scale};
      v.tolerance = {.relative = kRelative,
                     .absolute = kRelative * v.scale,
                     .reason = "float32 kernel, relative to the largest result"};
      if (node.op == Op::kTensorStats)  // counts and maxima beside noise, each of its own size
        v.tolerance = {
            .relative = kRelative, .absolute = 1e-9, .reason = "counts are exact, means of ratios float32 sums"};
      v.where = graph.name() + " " + node.name + " (" + node_label(node) + ")";
      visit(v);
    };
    cpu::evaluate(graph, leaf, true, observe);
  }
}

struct Setting {
  const char* architecture;
  const char* recipe;
  Recompute recompute = Recompute::kNone;
  bool switched = false;  // recipe auto after switches: neighbouring GEMMs on all three of its rungs
};

inline void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.architecture << " " << setting.recipe << ", recompute ";
  PrintTo(setting.recompute, out);
  if (setting.switched) *out << ", switched";
}

// Every recipe; recomputation where it makes fusions that the other programs have not.
inline const std::vector<Setting>& settings() {
  static const std::vector<Setting> list = {{"gpt2", "fp32"},
                                            {"gpt2", "tf32"},
                                            {"gpt2", "bf16"},
                                            {"gpt2", "fp8-current"},
                                            {"gpt2", "fp8-delayed"},
                                            {"gpt2", "fp8-block"},
                                            {"gpt2", "fp8-delayed", Recompute::kSelective},
                                            {"gpt2", "fp8-current", Recompute::kLight},
                                            {"gpt2", "fp8-block", Recompute::kLight},
                                            {"gpt2", "auto"},
                                            {"gpt2", "auto", Recompute::kLight, true},
                                            {"llama", "fp32"},
                                            {"llama", "tf32"},
                                            {"llama", "bf16"},
                                            {"llama", "fp8-current"},
                                            {"llama", "fp8-delayed"},
                                            {"llama", "fp8-block"},
                                            {"llama", "fp8-current", Recompute::kSelective},
                                            {"llama", "fp8-current", Recompute::kLight},
                                            {"llama", "fp8-delayed", Recompute::kFull},
                                            {"llama", "auto"},
                                            {"llama", "auto", Recompute::kLight, true},
                                            {"qwen3_moe", "bf16"},
                                            {"qwen3_moe", "fp8-current"},
                                            {"qwen3_moe", "fp8-delayed"},
                                            {"qwen3_moe", "fp8-block"},
                                            {"qwen3_moe", "fp8-current", Recompute::kSelective}};
  return list;
}

inline std::string setting_name(const Setting& setting) {
  std::string name = std::string(setting.architecture) + "_" + setting.recipe;
  std::replace(name.begin(), name.end(), '-', '_');
  if (setting.switched) name += "_switched";
  return name + std::to_string(static_cast<int>(setting.recompute));
}

// every_expert: a mixture's tokens go to all experts, so that no rounding sends one to others.
inline Plan compiled_plan(const Setting& setting, const Target& target, bool every_expert = false) {
  ModelConfig model = tiny::model(setting.architecture);
  if (every_expert) model.experts.per_token = model.experts.count;
  CompileOptions options{.target = target, .recipe = parse_recipe(setting.recipe), .recompute = setting.recompute};
  Program program = tiny::training_program(model);
  if (setting.switched) {  // in the order of the graph: q, k and v, and the three products of a linear, stand apart
    int64_t next = 0;
    for (const GemmReport& gemm : precision_report(program, options)) {
      if (gemm.graph == GraphRole::kTrain)
        options.recipe.decisions[gemm.gemm + "/" + gemm_role_name(gemm.role)] =
            level_precision(static_cast<PrecisionLevel>(next++ % 3));
    }
  }
  return compile(std::move(program), options);
}

}  // namespace octet::conformance
