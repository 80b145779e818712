// Collectives on GPUs against the interpreter: every op, type and dim, launched and replayed; lost ranks.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <mutex>

#include "base/rng.h"
#include "cuda/gpu_ranks.h"
#include "ir/text.h"
#include "passes/plan_memory.h"

namespace octet {
namespace {

struct Case {
  const char* name;
  const char* mesh;                 // "tp=2"
  std::vector<const char*> inputs;  // shapes with layouts, "[4*tp,6]"
  std::vector<const char*> dtypes;  // of all inputs
  const char* op;                   // with its attributes after "|"
  double tolerance = 0;             // relative; 0: the same bits
  bool planned = false;             // of operands in the plan's memory (twice the inputs), not in staging
};

const std::vector<const char*> kSums = {"f32", "bf16", "f16", "f64", "i32"}, kF32 = {"f32"},
                               kAny = {"f32", "bf16", "e4m3", "e5m2", "i8"};

// Sums of two ranks have one order; those of more only over the host.
std::vector<Case> cases(const std::string& axis, int ranks) {
  static std::vector<std::string> kept;  // what the cases point to
  kept.reserve(1000);
  const auto text = [&](std::string pattern) {
    for (size_t at; (at = pattern.find("AX")) != pattern.npos;) pattern.replace(at, 2, axis);
    for (size_t at; (at = pattern.find('N')) != pattern.npos;) pattern.replace(at, 1, std::to_string(ranks));
    for (size_t at; (at = pattern.find('M')) != pattern.npos;) pattern.replace(at, 1, std::to_string(8 * ranks));
    return kept.emplace_back(std::move(pattern)).c_str();
  };
  const char* mesh = text("AX=N");
  std::vector<Case> all;
  const auto add = [&](const char* name, std::vector<const char*> inputs, const std::vector<const char*>& dtypes,
                       const char* op, double tolerance = 0, bool planned = false) {
    for (const char*& input : inputs) input = text(input);
    all.push_back({name, mesh, inputs, dtypes, text(op), tolerance, planned});
  };
  const auto add_planned = [&](const char* name, std::vector<const char*> inputs, const char* op) {
    add(name, std::move(inputs), {"f32", "bf16"}, op, 0, true);
  };
  add("sum", {"[6,5]+AX"}, kSums, R"(all_reduce|{reduction="sum", over="AX"})");
  add("sum_large", {"[M,4099]+AX"}, {"f32", "bf16"}, R"(all_reduce|{reduction="sum", over="AX"})");
  add("sum_several", {"[1]+AX", "[7,3]+AX", "[64]+AX"}, kSums, R"(all_reduce|{reduction="sum", over="AX"})");
  add("max", {"[6,5]^AX"}, kSums, R"(all_reduce|{reduction="max", over="AX"})");
  add("max_several", {"[1]^AX", "[1]^AX", "[1000]^AX"}, kF32, R"(all_reduce|{reduction="max", over="AX"})");
  add("lse", {"[300]~AX"}, kF32, R"(all_reduce|{reduction="lse", over="AX"})", 0x1p-22);
  add("scatter_rows", {"[M,6]+AX"}, kSums, R"(reduce_scatter|{axis=0, over="AX"})");
  add("scatter_columns", {"[5,M]+AX"}, kSums, R"(reduce_scatter|{axis=1, over="AX"})");
  add("scatter_several", {"[M,3]+AX", "[M]+AX"}, {"f32", "bf16"}, R"(reduce_scatter|{axis=0, over="AX"})");
  add("gather_rows", {"[4*AX,6]"}, kAny, R"(all_gather|{axis=0, over="AX"})");
  add("gather_columns", {"[5,8*AX]"}, kAny, R"(all_gather|{axis=1, over="AX"})");
  add("gather_narrow_columns", {"[5,3*AX]"}, kAny, R"(all_gather|{axis=1, over="AX"})");
  add("gather_within", {"[12*AX@4,3]"}, kAny, R"(all_gather|{axis=0, over="AX"})");
  add("gather_several", {"[5,8*AX]", "[2,32*AX]", "[1,1*AX]"}, kAny, R"(all_gather|{axis=1, over="AX"})");
  add("rows_to_columns", {"[4*AX,M]"}, kAny, R"(all_to_all|{split_axis=1, axis=0, over="AX"})");
  add("columns_to_rows", {"[M,4*AX]"}, kAny, R"(all_to_all|{split_axis=0, axis=1, over="AX"})");
  add("middle_to_last", {"[2,3*AX,M]", "[1,2*AX,M]"}, kAny, R"(all_to_all|{split_axis=2, axis=1, over="AX"})");
  add("part_of_rows", {"[M,6]"}, kAny, R"(take_part|{axis=0, over="AX"})");
  add("part_of_columns", {"[6,M]"}, kAny, R"(take_part|{axis=1, over="AX"})");
  // More than ranks push into each other's memory at once.
  add_planned("sum_planned", {"[M,65600]+AX"}, R"(all_reduce|{reduction="sum", over="AX"})");
  add_planned("scatter_planned", {"[M,131200]+AX", "[M,65600]+AX"}, R"(reduce_scatter|{axis=0, over="AX"})");
  add_planned("scatter_beside", {"[M,131200]+AX", "[M,65600]+AX"}, R"(reduce_scatter|{async=true, axis=0, over="AX"})");
  add_planned("scatter_columns_beside", {"[65600,M]+AX"}, R"(reduce_scatter|{async=true, axis=1, over="AX"})");
  add_planned("gather_planned", {"[16*AX,65600]", "[8*AX,65600]"}, R"(all_gather|{axis=0, over="AX"})");
  add_planned("gather_beside", {"[65600,8*AX]"}, R"(all_gather|{async=true, axis=1, over="AX"})");
  add_planned("rows_to_columns_planned", {"[65600*AX,M]"}, R"(all_to_all|{split_axis=1, axis=0, over="AX"})");
  return all;
}

Program program_of(const Case& c, const std::string& dtype) {
  const std::string_view op = c.op;
  const size_t bar = op.find('|');
  std::string nodes, operands, outputs;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    nodes += fmt::format(" %{} = input : {}{} @x{}", i, dtype, c.inputs[i], i);
    if (c.planned) nodes += fmt::format(" %t{} = add %{}, %{}", i, i, i);
    operands += fmt::format("{} %{}{}", i > 0 ? "," : "", c.planned ? "t" : "", i);
    outputs += fmt::format(" output @y{} %y.{}", i, i);
  }
  Program program;
  program.add_graph(parse_graph(fmt::format("graph @g mesh {} stage sharded{} %y = {}{} {}{} end", c.mesh, nodes,
                                            op.substr(0, bar), operands, op.substr(bar + 1), outputs)));
  return program;
}

using Outputs = std::vector<std::vector<std::byte>>;

// Values by rank and round; of whole numbers where the type is one. Some maxima are of NaNs.
void fill(Executor& executor, const Case& c, DType dtype, int32_t rank, int round) {
  const bool nan = std::string_view(c.name) == "max" && is_float(dtype);
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    Philox random(static_cast<uint64_t>(100 * round + rank), i);
    const std::span<std::byte> to = executor.input("g", fmt::format("x{}", i));
    for (int64_t e = 0; e < std::ssize(to) / dtype_bytes(dtype); ++e) {
      const double value = dtype == DType::kI32 ? std::trunc(1000 * random.normal()) : 3 * random.normal();
      store_element(dtype, to.data(), e, nan && (e + rank) % 7 == 0 ? NAN : value);
    }
  }
}

std::vector<Outputs> rounds(Executor& executor, const Case& c, DType dtype, int32_t rank) {
  constexpr int kRounds = 4;  // launched, captured, replayed twice
  std::vector<Outputs> all;
  for (int round = 0; round < kRounds; ++round) {
    fill(executor, c, dtype, rank, round);
    executor.run("g");
    Outputs& outputs = all.emplace_back();
    for (size_t i = 0; i < c.inputs.size(); ++i) {
      const auto y = executor.output("g", fmt::format("y{}", i));
      outputs.emplace_back(y.begin(), y.end());
    }
  }
  return all;
}

void expect_equal(const Case& c, DType dtype, const std::vector<Outputs>& got, const std::vector<Outputs>& expected) {
  for (size_t round = 0; round < expected.size(); ++round) {
    for (size_t y = 0; y < expected[round].size(); ++y) {
      const std::vector<std::byte>&a = got[round][y], &b = expected[round][y];
      ASSERT_EQ(a.size(), b.size());
      int64_t differ = 0, count = std::ssize(a) / dtype_bytes(dtype);
      std::string first;
      for (int64_t i = 0; i < count; ++i) {
        const double p = load_element(dtype, a.data(), i), q = load_element(dtype, b.data(), i);
        const bool equal = p == q || (std::isnan(p) && std::isnan(q)) || std::fabs(p - q) <= c.tolerance * std::fabs(q);
        if (!equal && differ++ == 0) first = fmt::format("element {} is {}, not {}", i, p, q);
      }
      EXPECT_EQ(differ, 0) << "of " << count << " in round " << round << ", result " << y << ": " << first;
    }
  }
}

struct Ranks {
  Wire wire;
  const char* axis;
  int ranks;
};
void PrintTo(const Ranks& run, std::ostream* out) {
  *out << (run.wire == Wire::kNccl ? "NCCL" : "host") << ", " << run.ranks << " of " << run.axis;
}

class GpuCollectives : public testing::TestWithParam<Ranks> {};

TEST_P(GpuCollectives, AreThoseOfTheInterpreter) {
  const Ranks& run = GetParam();
  Mesh mesh;
  mesh[parse_axes(run.axis)[0]] = run.ranks;
  if (const std::string why = no_ranks(run.wire, mesh); !why.empty()) GTEST_SKIP() << why;
  struct Item {
    Case c;
    DType dtype;
    Program program;
    Plan plan;
    std::vector<std::vector<Outputs>> expected;  // by rank
  };
  std::vector<Item> items;
  for (const Case& c : cases(run.axis, run.ranks)) {
    if (c.planned && run.wire == Wire::kHost) continue;  // nothing else happens there
    for (const char* dtype : c.dtypes) {
      Program program = program_of(c, dtype);
      Plan plan = plan_memory(program, cuda_target());
      items.push_back({c, parse_dtype(dtype), std::move(program), std::move(plan), {}});
    }
  }
  for (Item& item : items) {
    item.expected.resize(static_cast<size_t>(run.ranks));
    run_thread_ranks(mesh, [&](Communicator& rank) {
      const auto executor = make_interpreter(item.program, InterpretMode::kFloat32, &rank);
      item.expected[static_cast<size_t>(rank.rank())] = rounds(*executor, item.c, item.dtype, rank.rank());
    });
  }
  std::mutex reporting;
  run_gpu_ranks(run.wire, mesh, [&](Communicator& rank, cuda::DeviceRanks& ranks) {
    for (const Item& item : items) {
      for (const bool eager : {true, false}) {
        if (run.wire == Wire::kHost && !eager) continue;
        const auto executor = make_cuda_executor(item.plan, rank_options(run.wire, ranks, eager));
        barrier(rank);
        const std::vector<Outputs> got = rounds(*executor, item.c, item.dtype, rank.rank());
        const std::lock_guard lock(reporting);
        SCOPED_TRACE(fmt::format("{} {} of rank {}, {}", item.c.name, dtype_name(item.dtype), rank.rank(),
                                 eager ? "eager" : "replayed"));
        expect_equal(item.c, item.dtype, got, item.expected[static_cast<size_t>(rank.rank())]);
      }
    }
    EXPECT_EQ(ranks.bytes() > 0, run.wire == Wire::kNccl);
  });
}

INSTANTIATE_TEST_SUITE_P(Runs, GpuCollectives,
                         testing::Values(Ranks{Wire::kHost, "tp", 2}, Ranks{Wire::kHost, "cp", 3},
                                         Ranks{Wire::kNccl, "tp", 2}, Ranks{Wire::kNccl, "dp", 2}),
                         [](const auto& info) {
                           return fmt::format("{}_{}{}", info.param.wire == Wire::kNccl ? "nccl" : "host",
                                              info.param.axis, info.param.ranks);
                         });

// One rank: what can be seen of NCCL on one GPU. Launched and captured.
TEST(NcclOfOneRank, CarriesToItself) {
  const Mesh mesh;
  if (const std::string why = no_ranks(Wire::kNccl, mesh); !why.empty()) GTEST_SKIP() << why;
  run_gpu_ranks(Wire::kNccl, mesh, [&](Communicator&, cuda::DeviceRanks& ranks) {
    cuda::RankGroup& group = ranks.group({Axis::kTensor});
    EXPECT_EQ(&group, &ranks.group({Axis::kTensor}));
    EXPECT_EQ(group.size(), 1);
    EXPECT_GE(ranks.bytes(), 0);
    cuda::DeviceContext context({.gemm_cache = ""});
    const cuda::DeviceGuard guard(context.device());
    constexpr int kCount = 1000;
    void* allocated = nullptr;
    cuda::check_cuda(cudaMalloc(&allocated, 5 * kCount * sizeof(float)), "allocating");
    auto* memory = static_cast<float*>(allocated);
    std::vector<float> x(kCount), y(4 * kCount);
    for (int i = 0; i < kCount; ++i) x[static_cast<size_t>(i)] = static_cast<float>(i);
    cuda::check_cuda(cudaMemcpy(memory, x.data(), x.size() * sizeof(float), cudaMemcpyHostToDevice), "uploading");
    const auto calls = [&] {
      group.coalesce([&] {
        group.all_reduce(memory, memory + kCount, kCount, DType::kF32, context.stream());
        group.reduce_scatter(memory, memory + 2 * kCount, kCount, DType::kF32, context.stream());
        group.all_gather(memory, memory + 3 * kCount, kCount * 4, context.stream());
        group.all_to_all(memory, memory + 4 * kCount, kCount * 4, context.stream());
      });
    };
    const auto expect_copies = [&] {
      cuda::check_cuda(cudaStreamSynchronize(context.stream()), "waiting");
      cuda::check_cuda(cudaMemcpy(y.data(), memory + kCount, y.size() * sizeof(float), cudaMemcpyDeviceToHost), "");
      for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], x[i % x.size()]) << i;
      cuda::check_cuda(cudaMemset(memory + kCount, 0, y.size() * sizeof(float)), "clearing");
      cuda::check_cuda(cudaDeviceSynchronize(), "clearing");
    };
    calls();
    expect_copies();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    cuda::check_cuda(cudaStreamBeginCapture(context.stream(), cudaStreamCaptureModeThreadLocal), "capturing");
    calls();
    cuda::check_cuda(cudaStreamEndCapture(context.stream(), &graph), "capturing");
    cuda::check_cuda(cudaGraphInstantiate(&replay, graph, 0), "instantiating");
    cuda::check_cuda(cudaGraphLaunch(replay, context.stream()), "launching");
    expect_copies();
    ranks.check();
    cudaGraphExecDestroy(replay);
    cudaGraphDestroy(graph);
    ranks.abort();
    EXPECT_TRUE(ranks.aborted());
    EXPECT_THROW(calls(), Error);
    EXPECT_THROW(ranks.check(), Error);
    cudaFree(memory);
  });
}

const Case kSum = {"sum", "tp=2", {"[256,1024]+tp"}, {"f32"}, R"(all_reduce|{reduction="sum", over="tp"})"};

TEST(GpuRanks, AProgramForAMeshNeedsThoseOfThatMesh) {
  const Mesh four{{1, 1, 1, 4}};
  if (const std::string why = no_ranks(Wire::kHost, four); !why.empty()) GTEST_SKIP() << why;
  const Plan plan = plan_memory(program_of(kSum, "f32"), cuda_target());
  EXPECT_NE(message_of([&] { make_cuda_executor(plan); }).find("needs the ranks of a mesh"), std::string::npos);
  const auto ranks = make_thread_ranks(four);
  HostRanks wrong(*ranks[0]);
  EXPECT_NE(message_of([&] { make_cuda_executor(plan, rank_options(Wire::kHost, wrong)); }).find("is for a mesh of 2"),
            std::string::npos);
}

// A rank that ends by an error in a run of its own: the other one, which waits for it on the device, ends with the
// error of the control plane. Then the devices serve others.
TEST(GpuRanks, ALostRankEndsTheOthersWaits) {
  const Mesh mesh{{1, 1, 1, 2}};
  if (const std::string why = no_ranks(Wire::kNccl, mesh); !why.empty()) GTEST_SKIP() << why;
  const Plan plan = plan_memory(program_of(kSum, "f32"), cuda_target());
  for (const bool eager : {true, false}) {
    SCOPED_TRACE(eager ? "eager" : "replayed");
    std::string other;
    double waited = 0;
    const std::string first = message_of([&] {
      run_gpu_ranks(Wire::kNccl, mesh, [&](Communicator& rank, cuda::DeviceRanks& ranks) {
        const auto executor = make_cuda_executor(plan, rank_options(Wire::kNccl, ranks, eager));
        barrier(rank);
        rounds(*executor, kSum, DType::kF32, rank.rank());
        barrier(rank);
        if (rank.rank() == 1) {
          lost_rank = 1;
          fail(ErrorCode::kInternal, "the disk is full");
        }
        const auto begin = std::chrono::steady_clock::now();
        other = message_of([&] { rounds(*executor, kSum, DType::kF32, rank.rank()); });
        waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        EXPECT_TRUE(ranks.aborted());
        EXPECT_NE(message_of([&] { executor->run("g"); }).find("aborted"), std::string::npos);
      });
    });
    EXPECT_EQ(first, "the disk is full");
    // NCCL may see it before the control plane does.
    EXPECT_TRUE(other.find("rank 1 is lost") != std::string::npos || other.find("NCCL") != std::string::npos) << other;
    EXPECT_LT(waited, 10);
    run_gpu_ranks(Wire::kNccl, mesh, [&](Communicator& rank, cuda::DeviceRanks& ranks) {
      const auto executor = make_cuda_executor(plan, rank_options(Wire::kNccl, ranks, eager));
      barrier(rank);
      EXPECT_EQ(rounds(*executor, kSum, DType::kF32, rank.rank()).size(), 4U);
    });
  }
}

}  // namespace
}  // namespace octet
