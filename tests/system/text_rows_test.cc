// Text of fp32 on CPUs does not depend on the rows of a step (docs/serving.md), so that drafts change no bit of it: no
// product of a serving program sums in an order that they choose.
#include <gtest/gtest.h>

#include "exec/executor.h"
#include "infer/serving_program.h"
#include "kernels/cpu/kernel.h"

namespace octet {
namespace {

TEST(TextRows, Float32ChoosesNoProductByThem) {
  for (const char* size : {"gpt2-124m", "llama2-7b", "mixtral-8x7b"}) {
    ModelConfig model = named_model(size);
    model.layers = 1;
    const ServingProgram serving = build_serving_program(
        model,
        {.engine = {.context = 256, .max_sequences = 4, .max_step_tokens = 256, .kv_cache_bytes = int64_t{1} << 28},
         .target = cpu_target(),
         .recipe = parse_recipe("fp32"),
         .cache_dtype = DType::kF32});
    int64_t most = 0;
    for (const Graph& graph : serving.plan.program.graphs()) {
      for (const Node& node : graph.nodes()) {
        if (node.op != Op::kMatmul) continue;
        most = std::max(most, graph.shape(node.inputs[0]).rows());
        EXPECT_STRNE(cpu::select_kernel(graph, node).name, "matmul_amx") << size << ", graph " << graph.name();
      }
    }
    EXPECT_GE(most, 128) << size;
  }
}

}  // namespace
}  // namespace octet
