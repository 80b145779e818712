// Norms whose kernels sum up over ranks first, against the sum and the norm apart: the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "base/rng.h"
#include "cuda/gpu_ranks.h"
#include "ir/plan.h"
#include "ir/text.h"
#include "passes/fuse_patterns.h"
#include "passes/plan_memory.h"

namespace octet {
namespace {

struct Case {
  int64_t rows, cols;
  const char* dtype = "bf16";
  bool residual = true, layer = false, codes = false;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.rows << " x " << c.cols << " " << c.dtype << (c.residual ? " residual" : "") << (c.layer ? " layer" : "")
       << (c.codes ? " codes" : "");
}

Program program_of(const Case& c) {
  const std::string type = fmt::format("{}[{},{}]", c.dtype, c.rows, c.cols), weight = fmt::format("f32[{}]", c.cols);
  std::string text = fmt::format(
      "graph @g mesh tp=2 stage sharded %given = input : {}+tp @x %z = input : {} @z %w = input : {} @w"
      " %x = scale %given {{value=1.0}} %sum = all_reduce %x {{reduction=\"sum\", over=\"tp\"}}",
      type, type, weight);
  const char* normed = "%sum";
  if (c.residual) text += " %added = add %z, %sum output @added %added", normed = "%added";
  text +=
      fmt::format(" %y = {} {}, %w{} {{eps=1e-5}}", c.layer ? "layer_norm" : "rms_norm", normed, c.layer ? ", %w" : "");
  if (c.codes) {
    text += " %q = quantize %y {format=\"e4m3\", scaling=\"row\"} output @codes %q output @scale_inv %q.1 end";
  } else {
    text += " output @y %y end";
  }
  Program program;
  program.add_graph(parse_graph(text));
  return program;
}

std::vector<std::vector<std::byte>> rounds(Executor& executor, const Case& c, int32_t rank) {
  std::vector<std::vector<std::byte>> outputs;
  for (int round = 0; round < 5; ++round) {  // launched, captured, replayed: boxes of two calls in turn
    for (const char* name : {"x", "z", "w"}) {
      const DType dtype = name[0] == 'w' ? DType::kF32 : parse_dtype(c.dtype);
      Philox random(static_cast<uint64_t>(100 * round + (name[0] == 'x' ? rank : 0)), static_cast<uint64_t>(name[0]));
      const std::span<std::byte> to = executor.input("g", name);
      for (int64_t i = 0; i < std::ssize(to) / dtype_bytes(dtype); ++i)
        store_element(dtype, to.data(), i, 3 * random.normal());
    }
    executor.run("g");
    for (const NamedValue& output : executor.program().graph("g").outputs()) {
      const auto bytes = executor.output("g", output.name);
      outputs.emplace_back(bytes.begin(), bytes.end());
    }
  }
  return outputs;
}

class NormOfRanks : public testing::TestWithParam<Wire> {};

TEST_P(NormOfRanks, IsTheSumAndTheNorm) {
  const Wire wire = GetParam();
  const Mesh mesh{{1, 1, 1, 2}};
  if (const std::string why = no_ranks(wire, mesh); !why.empty()) GTEST_SKIP() << why;
  Target target = cuda_target();
  target.allow(Producer::kNorm, {FusionPart::kRankSum});
  const std::vector<Case> cases = {{1, 4096},
                                   {8, 8192, "bf16", true, false, true},
                                   {3, 1000, "bf16", false},
                                   {17, 768, "bf16", true, true},
                                   {5, 12288, "bf16", true, false, true},
                                   {6, 10240, "bf16", false, true, true},
                                   {7, 256},          // a warp per row
                                   {33, 640, "f32"},  // by a kernel of its own
                                   {32, 2048}};
  std::mutex reporting;
  run_gpu_ranks(wire, mesh, [&](Communicator& rank, cuda::DeviceRanks& ranks) {
    for (const Case& c : cases) {
      const Program apart = program_of(c);
      Program fused = apart;
      ASSERT_TRUE(fuse_graph(fused.graphs()[0], target));
      ASSERT_TRUE(std::ranges::any_of(fused.graphs()[0].nodes(), [](const Node& node) {
        return node.op == Op::kFusion && exchange_of(node) != nullptr;
      })) << testing::PrintToString(c);
      fused.graphs()[0].set_stage(Stage::kFused);
      for (const bool eager : {true, false}) {
        if (wire == Wire::kHost && !eager) continue;
        std::vector<std::vector<std::byte>> bytes[2];
        for (const bool is_fused : {false, true}) {
          const Plan plan = plan_memory(is_fused ? fused : apart, target);
          const auto executor = make_cuda_executor(plan, rank_options(wire, ranks, eager));
          barrier(rank);
          bytes[is_fused] = rounds(*executor, c, rank.rank());
        }
        const std::lock_guard lock(reporting);
        EXPECT_EQ(bytes[0], bytes[1]) << testing::PrintToString(c) << (eager ? " eager" : " replayed") << ", rank "
                                      << rank.rank();
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Wires, NormOfRanks, testing::Values(Wire::kHost, Wire::kNccl),
                         [](const auto& info) { return info.param == Wire::kNccl ? "nccl" : "host"; });

}  // namespace
}  // namespace octet
