// The whole pipeline on the CPU executor: switching fusions, packing or recomputation off changes no bit of a run, and
// its losses stay with the interpreter's.
#include <gtest/gtest.h>

#include "exec/testing/tiny_program.h"

namespace octet {
namespace {

struct Outcome {
  std::vector<double> losses;
  std::vector<std::vector<std::byte>> weights;
  bool operator==(const Outcome&) const = default;
};

Outcome run(Executor& executor) {
  tiny::initialize(executor);
  Outcome result{.losses = tiny::train(executor, 2)};
  for (const StateEntry& entry : executor.program().states()) {
    if (entry.role == StateRole::kMaster) result.weights.push_back(tiny::state(executor, entry.name));
  }
  return result;
}

Outcome run_compiled(const std::string& architecture, const CompileOptions& options) {
  auto executor = make_cpu_executor(compile(tiny::training_program(architecture), options));
  return run(*executor);
}

using Case = std::tuple<const char*, const char*, Recompute>;
class Compiled : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Some, Compiled,
    ::testing::Values(Case{"llama", "fp32", Recompute::kNone}, Case{"llama", "bf16", Recompute::kSelective},
                      Case{"llama", "fp8-current", Recompute::kNone}, Case{"llama", "fp8-delayed", Recompute::kFull},
                      Case{"llama", "fp8-block", Recompute::kSelective}, Case{"gpt2", "bf16", Recompute::kFull},
                      Case{"gpt2", "fp8-current", Recompute::kSelective},
                      Case{"gpt2", "fp8-delayed", Recompute::kNone}));

TEST_P(Compiled, PassesOffAgreeBitForBit) {
  auto [architecture, recipe, recompute] = GetParam();
  CompileOptions all{.target = cpu_target(), .recipe = parse_recipe(recipe), .recompute = recompute};
  CompileOptions none = all;
  none.disabled = {"fuse", "pack", "recompute", "merge_common_nodes", "remove_dead_nodes"};
  Outcome fused = run_compiled(architecture, all), plain = run_compiled(architecture, none);
  EXPECT_EQ(fused, plain);
  auto interpreter = make_interpreter(compile(tiny::training_program(architecture), none).program);
  std::vector<double> defined = run(*interpreter).losses;
  // Products accumulate in another order: float32 rounding, then one code more or less here and there.
  double tolerance = std::string(recipe) == "fp32" ? 1e-5 : 0.01;
  for (size_t i = 0; i < defined.size(); ++i) EXPECT_NEAR(fused.losses[i], defined[i], tolerance * defined[i]);
}

}  // namespace
}  // namespace octet
