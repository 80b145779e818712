// Every node of real training programs has a CUDA kernel, and every fusion of serving programs one of its own: found
// without a GPU, since rows are chosen by types and shapes.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/error.h"
#include "infer/serving_program.h"
#include "ir/facts.h"
#include "ir/localize.h"
#include "kernels/cuda/kernel.h"
#include "passes/pass.h"
#include "train/language_model.h"
#include "train/stepper.h"

namespace octet {
namespace {

struct Case {
  const char* model;
  const char* recipe;
  Recompute recompute = Recompute::kNone;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model << " " << c.recipe << ", recompute " << static_cast<int>(c.recompute);
}

class CudaSupport : public testing::TestWithParam<Case> {};

// Why nodes have no kernel, each message once.
std::set<std::string> missing_kernels(const Program& program) {
  std::set<std::string> missing;
  for (const Graph& graph : program.graphs()) {
    for (const Node& node : graph.nodes()) {
      // Collectives are the executor's.
      if (node.op == Op::kInput || node.op == Op::kParam || node.op == Op::kState || op_facts(node.op).collective)
        continue;
      try {
        cuda::select_kernel(graph, node);
      } catch (const Error& error) {
        missing.insert(error.message());
      }
    }
  }
  return missing;
}

TEST_P(CudaSupport, EveryNodeHasAKernel) {
  const Case& c = GetParam();
  ModelConfig model = named_model(c.model);
  model.layers = 2;
  const Target target = h200_target();
  const Plan plan = compile(training_program(LanguageModel(model, 2, 256), {.optimizer = {.clip = 1.0}}),
                            {.target = target, .recipe = parse_recipe(c.recipe), .recompute = c.recompute});
  for (const std::string& message : missing_kernels(plan.program)) ADD_FAILURE() << message;
}

INSTANTIATE_TEST_SUITE_P(
    Programs, CudaSupport,
    testing::Values(Case{"gpt2-124m", "fp32"}, Case{"gpt2-124m", "bf16"}, Case{"gpt2-124m", "fp8-current"},
                    Case{"gpt2-124m", "fp8-delayed"}, Case{"gpt2-124m", "fp8-block"},
                    Case{"gpt2-124m", "fp8-current", Recompute::kSelective},
                    Case{"gpt2-124m", "fp8-current", Recompute::kLight},
                    Case{"gpt2-124m", "fp8-block", Recompute::kLight}, Case{"llama2-7b", "bf16", Recompute::kLight},
                    Case{"llama2-7b", "fp8-current", Recompute::kLight},
                    Case{"llama2-7b", "fp8-delayed", Recompute::kLight}, Case{"llama2-7b", "bf16"},
                    Case{"llama2-7b", "fp8-current"}, Case{"llama2-7b", "fp8-delayed", Recompute::kFull},
                    Case{"llama2-7b", "fp8-block", Recompute::kSelective}),
    [](const auto& info) {
      std::string name = std::string(info.param.model) + "_" + info.param.recipe;
      for (char& ch : name)
        if (ch == '-') ch = '_';
      return name + "_" + std::to_string(static_cast<int>(info.param.recompute));
    });

// Every node of a rank's program, too: parts of tables, classes, heads and matrices with dropout.
TEST(CudaTraining, EveryNodeOfARankHasAKernel) {
  std::set<Op> localized;
  for (const char* family : {"gpt2", "llama", "bloom", "falcon"}) {
    ModelConfig model = model_family(family);
    model.layers = 2, model.hidden = 512, model.heads = 8, model.vocab_size = 1024, model.max_positions = 256;
    model.dropout = 0.1;
    for (const char* recipe : {"fp32", "bf16", "fp8-current"}) {
      for (const bool sequence : {false, true}) {
        SCOPED_TRACE(fmt::format("{} {}, sequence {}", family, recipe, sequence));
        const Parallel parallel{.mesh = {{1, 2, 1, 2}},
                                .sequence = sequence,
                                .level = sequence ? ShardLevel::kOptimizer : ShardLevel::kNone};
        Plan plan = compile(training_program(LanguageModel(model, 2, 256), {.optimizer = {.clip = 1.0}}),
                            {.target = h200_target(), .parallel = parallel, .recipe = parse_recipe(recipe)});
        localize(plan.program, parallel.mesh.coordinate(3));
        for (const Graph& graph : plan.program.graphs()) {
          for (const Node& node : graph.nodes())
            if (is_localized(node)) localized.insert(node.op);
        }
        for (const std::string& message : missing_kernels(plan.program)) ADD_FAILURE() << message;
      }
    }
  }
  for (Op op : {Op::kEmbedding, Op::kEmbeddingGrad, Op::kRowLse, Op::kCrossEntropy, Op::kCrossEntropyGrad, Op::kDropout,
                Op::kAttention, Op::kAttentionGrad, Op::kSquareSum})
    EXPECT_TRUE(localized.contains(op)) << op_name(op);
}

std::set<std::string> experts_kernels(const Program& program) {
  std::set<std::string> found;
  for (const Graph& graph : program.graphs()) {
    for (const Node& node : graph.nodes()) {
      if (node.op == Op::kGroupedMatmul || node.op == Op::kGroupedMatmulWgrad || node.op == Op::kScaledGroupedMatmul)
        found.insert(cuda::select_kernel(graph, node).name);
    }
  }
  return found;
}

// Products of experts, forward and backward.
TEST(CudaTraining, ExpertsMultiplyOnTensorCores) {
  for (const char* name : {"olmoe-1b-7b", "qwen3-30b-a3b", "mixtral-8x7b"}) {
    for (const char* recipe : {"bf16", "fp8-current", "fp8-block"}) {
      ModelConfig model = named_model(name);
      model.layers = 1;
      const Plan plan = compile(training_program(LanguageModel(model, 1, 256), {}),
                                {.target = h200_target(), .recipe = parse_recipe(recipe)});
      std::set<std::string> wanted = {"grouped_matmul_wgmma", "grouped_matmul_wgrad_wgmma"};
      if (recipe != std::string("bf16")) wanted.insert("scaled_grouped_matmul_wgmma");
      EXPECT_EQ(experts_kernels(plan.program), wanted) << name << " " << recipe;
    }
  }
}

// Training: no fusion of any family runs member by member, in any recipe.
TEST(CudaTraining, EveryFusionHasAKernelOfItsOwn) {
  for (const std::string& family : architectures()) {
    ModelConfig model = model_family(family);
    model.layers = 2, model.hidden = 512, model.heads = 8, model.vocab_size = 1024, model.max_positions = 256;
    for (const char* recipe : {"bf16", "fp8-current", "fp8-delayed", "fp8-block"}) {
      SCOPED_TRACE(family + " " + recipe);
      const Plan plan =
          compile(training_program(LanguageModel(model, 2, 256), {.optimizer = {.clip = 1.0}}),
                  {.target = h200_target(), .recipe = parse_recipe(recipe), .recompute = Recompute::kLight});
      std::set<std::string> members;
      for (const Graph& graph : plan.program.graphs()) {
        for (const Node& node : graph.nodes()) {
          if (node.op == Op::kFusion && cuda::select_kernel(graph, node).name == std::string("fusion_members"))
            members.insert(graph.name() + ": " + fusion_label(node) + " " + node.name);
        }
      }
      for (const std::string& member : members) ADD_FAILURE() << member;
    }
  }
}

// Serving with FP8 codes per token, and in the compute type: no fusion of any family runs member by member.
TEST(CudaServing, EveryFusionHasAKernelOfItsOwn) {
  for (const std::string& family : architectures()) {
    ModelConfig model = model_family(family);
    model.layers = 2, model.hidden = 512, model.heads = 8, model.vocab_size = 1024, model.max_positions = 256;
    for (const char* recipe : {"bf16", "fp8-current"}) {
      SCOPED_TRACE(family + " " + recipe);
      ServingOptions options{
          .engine = {.context = 256, .max_sequences = 4, .max_step_tokens = 64, .kv_cache_bytes = int64_t{1} << 28},
          .target = h200_target(),
          .recipe = parse_recipe(recipe),
          .cache_dtype = DType::kBF16};
      const ServingProgram program = build_serving_program(model, options);
      std::set<std::string> members;
      int fusions = 0;
      for (const Graph& graph : program.plan.program.graphs()) {
        for (const Node& node : graph.nodes()) {
          if (node.op != Op::kFusion) continue;
          ++fusions;
          if (cuda::select_kernel(graph, node).name == std::string("fusion_members")) {
            members.insert(fusion_label(node) + " " + node.name);
          }
        }
      }
      EXPECT_GT(fusions, 0);
      for (const std::string& member : members) ADD_FAILURE() << member;
    }
  }
}

// Experts in codes multiply in the kernels for them, in decode steps and with prompts.
TEST(CudaServing, ExpertsInCodesHaveKernelsOfTheirOwn) {
  const std::map<std::string, std::set<std::string>> wanted = {
      {"w4a8", {"scaled_grouped_matmul_int4"}},
      {"w4a16", {"scaled_grouped_matmul_int4"}},
      {"int8", {"scaled_grouped_matmul_gemv", "scaled_grouped_matmul_wgmma"}},
      {"fp8-block", {"scaled_grouped_matmul_gemv", "scaled_grouped_matmul_wgmma"}}};
  for (const auto& [recipe, names] : wanted) {
    ModelConfig model = named_model("qwen3-30b-a3b");
    model.layers = 1;
    const ServingProgram program = build_serving_program(
        model,
        {.engine = {.context = 256, .max_sequences = 4, .max_step_tokens = 64, .kv_cache_bytes = int64_t{1} << 28},
         .target = h200_target(),
         .recipe = parse_recipe(recipe),
         .cache_dtype = DType::kBF16});
    EXPECT_EQ(experts_kernels(program.plan.program), names) << recipe;
  }
}

// Encoders: every node has a kernel, and no fusion runs member by member.
TEST(CudaEncoding, EveryNodeAndFusionHasAKernelOfItsOwn) {
  for (const std::string& family : encoder_architectures()) {
    ModelConfig model = model_family(family);
    model.layers = 2, model.hidden = 512, model.heads = 8, model.vocab_size = 1024, model.max_positions = 256;
    model.head = Head::kMaskedLm, model.bias.head = true, model.labels = 2;
    for (const char* recipe : {"fp32", "bf16", "fp8-current"}) {
      SCOPED_TRACE(family + " " + recipe);
      Graph graph("encode", GraphRole::kForward);
      Builder b(graph);
      const ModelOutputs outputs = build_outputs(b, model, {.tokens = 512, .max_segments = 8, .max_length = 256});
      b.output("mean", b.segment_mean(outputs.hidden, b.segments(8)));
      b.output("logits", outputs.logits), b.output("classes", outputs.classes);
      Program program;
      program.name = "encoder";
      program.add_graph(std::move(graph));
      const Plan plan = compile(std::move(program), {.target = h200_target(), .recipe = parse_recipe(recipe)});
      for (const std::string& message : missing_kernels(plan.program)) ADD_FAILURE() << message;
      const Graph& planned = plan.program.graph("encode");
      for (const Node& node : planned.nodes()) {
        if (node.op != Op::kFusion) continue;
        EXPECT_NE(cuda::select_kernel(planned, node).name, std::string("fusion_members"))
            << fusion_label(node) << " " << node.name;
      }
    }
  }
}

// Ropes and appends of a layer are one node and one kernel: with rotary positions in whole and in part, grouped heads,
// none; in the compute type and in codes. They and the activations read the columns of merged products in place.
TEST(CudaServing, LayersAppendInOneKernel) {
  for (const char* name : {"llama2-7b", "llama3-8b", "gptj-6b", "gpt2-124m"}) {
    for (DType cache : {DType::kBF16, DType::kE4M3}) {
      SCOPED_TRACE(fmt::format("{} {}", name, dtype_name(cache)));
      ModelConfig model = named_model(name);
      model.layers = 2;
      const Target target = h200_target();
      const ServingProgram serving = build_serving_program(
          model,
          {.engine = {.context = 256, .max_sequences = 4, .max_step_tokens = 64, .kv_cache_bytes = int64_t{1} << 26},
           .target = target,
           .recipe = parse_recipe("fp8-current"),
           .cache_dtype = cache});
      for (const auto* buckets : {&serving.decode, &serving.mixed}) {
        for (const ForwardBucket& bucket : *buckets) {
          const Graph& graph = serving.plan.program.graph(bucket.graph);
          int fused = 0, apart = 0, split = 0;
          for (const Node& node : graph.nodes()) {
            if (node.op == Op::kFusion)
              fused += std::string(cuda::select_kernel(graph, node).name) == "rope_scatter_rows";
            apart += node.op == Op::kRope || node.op == Op::kScatterRows;
            split += node.op == Op::kFusion && fusion_producer(*node.body) == Producer::kProduct &&
                     (fusion_parts(*node.body) & static_cast<uint32_t>(FusionPart::kSlices)) != 0;
          }
          // Of a prompt's last layer the queries that are read are taken out of q+k+v and turned by themselves.
          const bool read = bucket.read_rows > 0, rope = model.architecture != "gpt2";
          EXPECT_EQ(split, read && model.architecture == "llama") << bucket.graph;
          EXPECT_EQ(fused, 2) << bucket.graph;
          EXPECT_EQ(apart, 1 + (read && rope ? 2 : 0)) << bucket.graph;  // hidden rows of tokens to sample
        }
      }
    }
  }
}

}  // namespace
}  // namespace octet
