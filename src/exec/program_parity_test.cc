// Every fast kernel row, fusions included, on the nodes and values of whole training programs under every recipe: one
// step of a tiny model through the interpreter, and each node's rows against its results.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "kernels/cpu/parity.h"
#include "passes/pass.h"
#include "passes/tiny_program.h"

namespace octet {
namespace {

using cpu::RefInputs;
using cpu::RefTensor;

// Float32 kernels on values of a model rather than of the case list: errors relative to the largest result. Fusions
// round a value of a few ulp difference inside (bf16, then codes), which moves some results to a neighbour.
constexpr double kRelative = 1e-5;
constexpr double kShare = 0.02, kBF16Unit = 0x1p-8;

double largest(const std::vector<RefTensor>& results) {
  double value = 0;
  for (const RefTensor& result : results) {
    if (!is_float(result.type.dtype) || is_fp8(result.type.dtype)) continue;
    for (double element : result.values) value = std::fmax(value, std::fabs(element));
  }
  return value;
}

bool has_16_bits(const Graph& graph) {
  for (const Node& node : graph.nodes()) {
    for (const TensorType& type : node.results) {
      if (type.dtype == DType::kBF16 || type.dtype == DType::kF16) return true;
    }
  }
  return false;
}

struct Case {
  const char* architecture;
  const char* recipe;
  Recompute recompute = Recompute::kNone;
};

Program compiled_program(const Case& c) {
  const CompileOptions options{.target = cpu_target(), .recipe = parse_recipe(c.recipe), .recompute = c.recompute};
  return compile(tiny::training_program(c.architecture), options).program;
}

std::string kind_of(const Node& node) {
  return node.op == Op::kFusion ? node.attrs.get<std::string>("kind") : std::string();
}

class ProgramParityOf : public testing::TestWithParam<Case> {};

TEST_P(ProgramParityOf, EveryRowAgreesOnEveryNode) {
  const Program program = compiled_program(GetParam());
  auto executor = make_interpreter(program);
  tiny::initialize(*executor);
  tiny::train(*executor, 1);           // leaves a step's inputs staged and the states of a run
  std::map<std::string, int> checked;  // by row
  for (const Graph& graph : program.graphs()) {
    std::map<std::string, RefTensor> leaves;
    const auto leaf = [&](const Node& node) -> const RefTensor& {
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
    const auto observe = [&](const Node& node, RefInputs in, const std::vector<RefTensor>& results) {
      std::vector<RefTensor> inputs;
      double scale = largest(results);
      for (const RefTensor* input : in) inputs.push_back(input != nullptr ? *input : RefTensor{});
      if (node.op == Op::kReduce) scale = std::fmax(scale, largest(inputs));  // sums that cancel (key biases)
      const bool narrow = node.op == Op::kFusion && has_16_bits(*node.body);
      const cpu::Neighbours neighbours{.share = narrow ? kShare : 0, .f32_unit = kBF16Unit * scale};
      const cpu::Tolerance tolerance{.relative = kRelative,
                                     .absolute = kRelative * scale,
                                     .reason = "float32 kernel, relative to the largest result"};
      for (const cpu::KernelRow& row : cpu::kernel_rows(node.op)) {
        if (std::string(row.name) == "reference" || !row.accepts(graph, node)) continue;
        SCOPED_TRACE(graph.name() + " " + node.name + " (" + op_name(node.op) + " " + kind_of(node) + ")");
        const auto failures = cpu::check_row(row, graph, node, inputs, results, tolerance, neighbours);
        for (const std::string& failure : failures) ADD_FAILURE() << failure;
        ++checked[row.name];
      }
      if (node.op != Op::kFusion) return;
      SCOPED_TRACE(graph.name() + " " + node.name + " (fusion " + kind_of(node) + ")");
      for (const std::string& failure : cpu::check_fusion(graph, node, inputs)) ADD_FAILURE() << failure;
    };
    cpu::evaluate(graph, leaf, true, observe);
  }
  for (const auto& [row, count] : checked) RecordProperty(row, count);
}

// Every recipe; recomputation where it makes fusions that the other programs have not.
const std::vector<Case>& cases() {
  static const std::vector<Case> list = {{"gpt2", "fp32"},
                                         {"gpt2", "bf16"},
                                         {"gpt2", "fp8-current"},
                                         {"gpt2", "fp8-delayed"},
                                         {"gpt2", "fp8-block"},
                                         {"gpt2", "fp8-delayed", Recompute::kSelective},
                                         {"llama", "fp32"},
                                         {"llama", "bf16"},
                                         {"llama", "fp8-current"},
                                         {"llama", "fp8-delayed"},
                                         {"llama", "fp8-block"},
                                         {"llama", "fp8-current", Recompute::kSelective},
                                         {"llama", "fp8-delayed", Recompute::kFull}};
  return list;
}

INSTANTIATE_TEST_SUITE_P(Recipes, ProgramParityOf, testing::ValuesIn(cases()), [](const auto& info) {
  std::string name = std::string(info.param.architecture) + "_" + info.param.recipe;
  std::replace(name.begin(), name.end(), '-', '_');
  return name + std::to_string(static_cast<int>(info.param.recompute));
});

// A kind that no program here has is one that nothing makes, or that nothing tests.
TEST(ProgramParity, MeetsEveryFusionKind) {
  std::map<std::string, int> met;
  for (const std::string& kind : cpu::fusion_kinds()) met[kind] = 0;
  for (const Case& c : cases()) {
    const Program program = compiled_program(c);
    for (const Graph& graph : program.graphs()) {
      for (const Node& node : graph.nodes()) {
        if (node.op == Op::kFusion) ++met.at(kind_of(node));
      }
    }
  }
  for (const auto& [kind, count] : met) EXPECT_GT(count, 0) << kind;
}

}  // namespace
}  // namespace octet
