// Collectives over ranks as threads: results by hand, cuts within an outer part of a dim, rounding, sharded graphs.
#include "exec/collectives.h"

#include <gtest/gtest.h>

#include <mutex>

#include "base/error.h"
#include "exec/executor.h"
#include "ir/text.h"
#include "passes/fuse_patterns.h"
#include "passes/plan_memory.h"

namespace octet {
namespace {

using MakeExecutor = std::function<std::unique_ptr<Executor>(const Program&, Communicator&)>;

std::unique_ptr<Executor> on_cpu(const Program& program, Communicator& rank) {
  return make_cpu_executor(plan_memory(program, cpu_target()), &rank);
}

// Runs the graph's text on all ranks of its mesh; fill(rank) gives input @x. Output @y of each rank.
std::vector<std::vector<float>> run(const std::string& text, const std::function<std::vector<float>(int32_t)>& fill,
                                    const MakeExecutor& make) {
  Program program;
  program.add_graph(parse_graph(text));
  const Mesh mesh = program.graphs()[0].mesh();
  std::vector<std::vector<float>> outputs(static_cast<size_t>(mesh.ranks()));
  run_thread_ranks(mesh, [&](Communicator& rank) {
    auto executor = make(program, rank);
    const std::vector<float> x = fill(rank.rank());
    std::copy(x.begin(), x.end(), input_as<float>(*executor, "g", "x").begin());
    executor->run("g");
    const auto y = output_as<float>(*executor, "g", "y");
    outputs[static_cast<size_t>(rank.rank())].assign(y.begin(), y.end());
  });
  return outputs;
}

// The same of the interpreter, whose results those of the CPU executor must be.
std::vector<std::vector<float>> run(const std::string& text, const std::function<std::vector<float>(int32_t)>& fill,
                                    InterpretMode mode = InterpretMode::kFloat32) {
  auto outputs = run(
      text, fill, [&](const Program& program, Communicator& rank) { return make_interpreter(program, mode, &rank); });
  if (mode == InterpretMode::kFloat32) {
    EXPECT_EQ(run(text, fill, on_cpu), outputs) << text;
  }
  return outputs;
}

std::string graph_of(const std::string& mesh, const std::string& x, const std::string& op) {
  return "graph @g mesh " + mesh + " stage sharded %0 = input : " + x + " @x %1 = " + op + " output @y %1 end";
}

std::vector<float> tens(int32_t rank, int n) {
  std::vector<float> values;
  for (int i = 0; i < n; ++i) values.push_back(static_cast<float>(10 * rank + i));
  return values;
}

TEST(Collectives, ResultsByHand) {
  const auto two = [](int32_t rank) { return tens(rank, 2); };
  EXPECT_EQ(run(graph_of("tp=2", "f32[2]+tp", R"(all_reduce %0 {reduction="sum", over="tp"})"), two),
            (std::vector<std::vector<float>>{{10, 12}, {10, 12}}));
  EXPECT_EQ(run(graph_of("tp=2", "f32[2]^tp", R"(all_reduce %0 {reduction="max", over="tp"})"), two),
            (std::vector<std::vector<float>>{{10, 11}, {10, 11}}));
  EXPECT_EQ(run(graph_of("tp=2", "f32[2]+tp", R"(reduce_scatter %0 {axis=0, over="tp"})"), two),
            (std::vector<std::vector<float>>{{10}, {12}}));
  EXPECT_EQ(run(graph_of("tp=2", "f32[1*tp,2]", R"(all_gather %0 {axis=0, over="tp"})"), two),
            (std::vector<std::vector<float>>{{0, 1, 10, 11}, {0, 1, 10, 11}}));
}

TEST(Collectives, PartsOfRowsAndColumns) {
  const auto four = [](int32_t rank) { return tens(rank, 4); };
  EXPECT_EQ(run(graph_of("tp=2", "f32[2,2*tp]", R"(all_gather %0 {axis=1, over="tp"})"), four)[1],
            (std::vector<float>{0, 1, 10, 11, 2, 3, 12, 13}));
  EXPECT_EQ(run(graph_of("cp=2", "f32[2*cp,2]", R"(all_to_all %0 {split_axis=1, axis=0, over="cp"})"), four),
            (std::vector<std::vector<float>>{{0, 2, 10, 12}, {1, 3, 11, 13}}));
  EXPECT_EQ(run(graph_of("tp=2", "f32[4*tp@2]", R"(all_gather %0 {axis=0, over="tp"})"), four)[0],
            (std::vector<float>{0, 1, 10, 11, 2, 3, 12, 13}))
      << "within each of two";
  EXPECT_EQ(run(graph_of("dp=2 tp=2", "f32[4]", R"(take_part %0 {axis=0, over="tp,dp"})"),
                [](int32_t) { return tens(0, 4); }),
            (std::vector<std::vector<float>>{{0}, {2}, {1}, {3}}))
      << "tp is the outer one";
}

TEST(Collectives, LogSumExpsJoin) {
  const auto out = run(graph_of("tp=2", "f32[1]~tp", R"(all_reduce %0 {reduction="lse", over="tp"})"),
                       [](int32_t rank) { return std::vector<float>{rank == 0 ? 1.0f : 2.0f}; });
  EXPECT_FLOAT_EQ(out[0][0], std::log(std::exp(1.0f) + std::exp(2.0f)));
  EXPECT_EQ(out[0], out[1]);
}

// 1 + 2^-24 + 2^-24: in order of ranks each addend is lost in float32, in float64 both count.
TEST(Collectives, SumsAreInOrderOfRanks) {
  const auto fill = [](int32_t rank) { return std::vector<float>{rank == 0 ? 1.0f : 0x1p-24f}; };
  const std::string text = graph_of("tp=3", "f32[1]+tp", R"(all_reduce %0 {reduction="sum", over="tp"})");
  EXPECT_EQ(run(text, fill)[2][0], 1.0f);
  EXPECT_EQ(run(text, fill, InterpretMode::kFloat64)[2][0], 1.0f + 0x1p-23f);
}

TEST(Collectives, NeedRanks) {
  Program program;
  program.add_graph(parse_graph(graph_of("tp=2", "f32[2]+tp", R"(all_reduce %0 {reduction="sum", over="tp"})")));
  for (const auto& make : {+[](const Program& p) { return make_interpreter(p); },
                           +[](const Program& p) { return make_cpu_executor(plan_memory(p, cpu_target())); }}) {
    try {
      make(program);
      FAIL();
    } catch (const Error& error) {
      EXPECT_NE(error.message().find("is one for 2 ranks, given are 1"), std::string::npos) << error.message();
    }
  }
}

// Of 3 million and 7 elements: several pieces of the workspace, the last ones of unlike sizes.
TEST(Collectives, LargerThanTheWorkspace) {
  constexpr int kCount = 3'000'007, kRanks = 3;
  const auto fill = [](int32_t rank) {
    std::vector<float> x(kCount);
    for (int i = 0; i < kCount; ++i) x[static_cast<size_t>(i)] = static_cast<float>((i + rank) % 61);
    return x;
  };
  const auto sums =
      run("graph @g mesh tp=3 stage sharded %0 = input : f32[3000007] @x %1 = cast %0 {to=\"bf16\"} : bf16[3000007] "
          "%2 = scale %1 {value=1.0} : bf16[3000007] %3 = cast %2 {to=\"f32\"} : f32[3000007] output @y %3 end",
          fill, on_cpu);
  const auto all = run(
      "graph @g mesh tp=3 stage sharded %0 = input : f32[3000007]+tp @x %1 = cast %0 {to=\"f32\"} : f32[3000007]+tp "
      "%2 = all_reduce %1 {reduction=\"sum\", over=\"tp\"} : f32[3000007] output @y %2 end",
      fill, on_cpu);
  for (size_t rank = 0; rank < kRanks; ++rank) {
    for (size_t i = 0; i < kCount; ++i)
      ASSERT_EQ(all[rank][i], sums[0][i] + sums[1][i] + sums[2][i]) << "element " << i << " of rank " << rank;
  }
}

// The sum over ranks as a member of the norm's fusion.
TEST(Collectives, AFusionIsItsMembers) {
  const std::string text =
      "graph @g mesh tp=2 stage sharded %0 = input : f32[3,8]+tp @x %s = all_reduce %0 {reduction=\"sum\", over=\"tp\"}"
      " %w = constant {value=0.5} : f32[8] %z = constant {value=0.25} : f32[3,8] %a = add %s, %z"
      " %n = rms_norm %a, %w {eps=1e-5} output @y %n end";
  Graph fused = parse_graph(text);
  Target target = interpreter_target();
  target.allow(Producer::kNorm, {FusionPart::kResidual, FusionPart::kRankSum});
  ASSERT_TRUE(fuse_graph(fused, target));
  fused.set_stage(Stage::kFused);
  const Node& node = fused.node(fused.output("y"));
  EXPECT_EQ(fusion_label(node), "all_reduce+add+rms_norm");
  EXPECT_EQ(exchange_of(node)->op, Op::kAllReduce);
  EXPECT_FALSE(is_async(node));
  const auto fill = [](int32_t rank) { return tens(rank, 24); };
  const auto interpret = [](const Program& program, Communicator& rank) {
    return make_interpreter(program, InterpretMode::kFloat32, &rank);
  };
  EXPECT_EQ(run(print(fused), fill, interpret), run(text, fill, interpret));
}

// Rows in, rows out: a linear cut by columns and one cut by rows, with the vocabulary's loss on parts.
TEST(Collectives, AShardedGraphIsTheWholeOne) {
  const std::string whole =
      "graph @g %0 = input : f32[2,4] @x %1 = constant {value=0.5} : f32[6,4] %2 = matmul %0, %1 {trans_b=true}"
      " %3 = relu %2 %4 = constant {value=0.25} : f32[4,6] %5 = matmul %3, %4 {trans_b=true} %6 = add %5, %0"
      " output @y %6 end";
  const std::string sharded =
      "graph @g mesh tp=2 stage sharded %0 = input : f32[1*tp,4] @x %x = all_gather %0 {axis=0, over=\"tp\"}"
      " %1 = constant {value=0.5} : f32[3*tp,4] %2 = matmul %x, %1 {trans_b=true} : f32[2,3*tp] %3 = relu %2"
      " %4 = constant {value=0.25} : f32[4,3*tp] %5 = matmul %3, %4 {trans_b=true} : f32[2,4]+tp"
      " %p = reduce_scatter %5 {axis=0, over=\"tp\"} %6 = add %p, %0 : f32[1*tp,4] output @y %6 end";
  const std::vector<float> x = {1, -2, 3, 4, -5, 6, 7, -8};
  const auto expected = run(whole, [&](int32_t) { return std::vector(x); })[0];
  const auto parts =
      run(sharded, [&](int32_t rank) { return std::vector(x.begin() + 4 * rank, x.begin() + 4 * rank + 4); });
  for (int32_t rank = 0; rank < 2; ++rank)
    EXPECT_EQ(parts[static_cast<size_t>(rank)],
              std::vector(expected.begin() + 4 * rank, expected.begin() + 4 * rank + 4));
}

}  // namespace
}  // namespace octet
