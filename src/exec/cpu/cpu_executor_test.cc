// The cpu executor against the interpreter: training of both families under every recipe, state updates, errors,
// profiles, and that a run allocates nothing.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <numeric>

#include "base/codec.h"
#include "base/error.h"
#include "exec/executor.h"
#include "exec/testing/tiny_program.h"
#include "passes/passes.h"
#include "passes/plan_memory.h"

namespace {
std::atomic<int64_t> allocations{0};
}

[[gnu::noinline]] void* operator new(size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size > 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {  // std::stable_sort's buffer
  ++allocations;
  return std::malloc(size > 0 ? size : 1);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace octet {
namespace {

std::unique_ptr<Executor> make_cpu(Program program) {
  return make_cpu_executor(plan_memory(std::move(program), cpu_target()));
}

template <typename Call>
std::string error_of(const Call& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.message();
    return error.message();
  }
  ADD_FAILURE() << "no error";
  return "";
}

// y = x w + c, quantized and back: kernels that allocate nothing themselves.
Program small_program() {
  Graph graph("main");
  Builder b(graph);
  Value x = b.input("x", {DType::kF16, {20, 48}}), w = b.param("w", {48, 32});
  Value y = b.matmul(x, w, false, false, {}, {{"to", std::string("f32")}}),
        limit = b.input("limit", {DType::kF32, {1}});
  Value scale{b.emit(Op::kComputeScale, {limit}, {{"format", std::string("e4m3")}}), 0};
  NodeId codes =
      b.emit(Op::kQuantize, {y, scale}, {{"format", std::string("e4m3")}, {"scaling", std::string("tensor")}});
  b.output("y", {b.emit(Op::kDequantize, {{codes, 0}, {codes, 1}}, {{"scaling", std::string("tensor")}}), 0});
  b.output("amax", {codes, 4});
  Program program;
  program.add_graph(std::move(graph));
  return program;
}

// kernel name -> calls
std::map<std::string, int64_t> kernels_of(const Executor& executor) {
  std::map<std::string, int64_t> kernels;
  for (const NodeTime& time : executor.profile()) kernels[time.kernel] += time.calls;
  return kernels;
}

struct Setting {
  std::string architecture, recipe;
  // Of the losses, relative. Float32 sums differ in order only; bf16 and FP8 codes near a rounding boundary may fall to
  // either side, which a few steps of training amplify.
  double tolerance;
};
std::ostream& operator<<(std::ostream& out, const Setting& s) { return out << s.architecture << "/" << s.recipe; }

class CpuTraining : public testing::TestWithParam<Setting> {};

TEST_P(CpuTraining, FollowsTheInterpreter) {
  const Setting& setting = GetParam();
  Program program = tiny::training_program(setting.architecture);
  CompileOptions options{.target = cpu_target(), .recipe = parse_recipe(setting.recipe)};
  precision(program, options);
  auto expected = make_interpreter(program);
  auto actual = make_cpu(program);
  tiny::initialize(*expected);
  tiny::initialize(*actual);
  const auto losses = tiny::train(*expected, 4), cpu_losses = tiny::train(*actual, 4);
  ASSERT_EQ(losses.size(), cpu_losses.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(cpu_losses[i], losses[i], setting.tolerance * losses[i]) << "step " << i;
  }
  EXPECT_LT(losses.back(), losses.front()) << "nothing was learned: the comparison would say little";
}

INSTANTIATE_TEST_SUITE_P(Recipes, CpuTraining,
                         testing::Values(Setting{"gpt2", "fp32", 2e-5}, Setting{"llama", "fp32", 2e-5},
                                         Setting{"gpt2", "bf16", 1e-2}, Setting{"llama", "fp8-current", 2e-2},
                                         Setting{"gpt2", "fp8-delayed", 2e-2}, Setting{"gpt2", "fp8-block", 2e-2}),
                         [](const auto& info) {
                           std::string name = info.param.architecture + "_" + info.param.recipe;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(CpuExecutor, RunsWithoutAllocating) {
  Program program = small_program();
  auto executor = make_cpu(program);
  auto expected = make_interpreter(program);
  auto x = input_as<uint16_t>(*executor, "main", "x");
  Philox random(11, 0);
  for (auto& value : x) value = codec::encode_f16(static_cast<float>(random.normal()));
  std::vector<float> w(48 * 32);
  for (float& value : w) value = static_cast<float>(random.normal() * 0.3);
  for (Executor* e : {executor.get(), expected.get()}) {
    std::memcpy(e->input("main", "x").data(), x.data(), x.size_bytes());
    input_as<float>(*e, "main", "limit")[0] = 3;
    tiny::write_state(*e, "w", w);
    e->run("main");
  }
  const auto y = output_as<float>(*executor, "main", "y"), want = output_as<float>(*expected, "main", "y");
  int64_t different = 0;
  for (size_t i = 0; i < y.size(); ++i) different += y[i] != want[i];
  EXPECT_LE(different, 2) << "codes differ beyond sums next to a rounding boundary";
  EXPECT_NEAR(output_as<float>(*executor, "main", "amax")[0], output_as<float>(*expected, "main", "amax")[0], 1e-5);

  executor->set_profiling(true);
  executor->run("main");
  EXPECT_FALSE(kernels_of(*executor).contains("reference")) << "reference rows allocate";
  executor->set_profiling(false);
  const std::string name = "main";
  const int64_t before = allocations;
  executor->run(name);
  EXPECT_EQ(allocations - before, 0);
}

TEST(CpuExecutor, ProfileCoversEveryStep) {
  auto executor = make_cpu(small_program());
  executor->run("main");
  EXPECT_TRUE(executor->profile().empty()) << "nothing was asked for";
  executor->set_profiling(true);
  for (int i = 0; i < 3; ++i) executor->run("main");
  double seconds = 0;
  bool overhead = false, product = false;
  for (const NodeTime& time : executor->profile()) {
    EXPECT_EQ(time.calls, 3) << time.name;
    EXPECT_EQ(time.graph, "main");
    seconds += time.seconds;
    overhead |= time.name == "(overhead)";
    if (time.op == "matmul") {
      product = true;
      EXPECT_EQ(time.kernel, "matmul_blocked");
      EXPECT_EQ(time.flops, 3 * 2.0 * 20 * 48 * 32);
    }
  }
  EXPECT_TRUE(overhead && product);
  EXPECT_GT(seconds, 0);
  executor->set_profiling(true);
  EXPECT_TRUE(executor->profile().empty()) << "counters start again";
}

Graph two_states(const std::string& name, bool circle) {
  Graph graph(name);
  Builder b(graph);
  Value a = b.state("a", {DType::kF32, {4}}), c = b.state("c", {DType::kF32, {4}});
  b.output("sum", b.add(a, c));
  b.update("a", c);
  if (circle)
    b.update("c", a);
  else
    b.update("c", b.scale(a, 2));
  return graph;
}

TEST(CpuExecutor, StatesUpdatedFromEachOther) {
  Program program;
  program.add_graph(two_states("main", false));
  auto executor = make_cpu(program);
  auto expected = make_interpreter(program);
  for (Executor* e : {executor.get(), expected.get()}) {
    tiny::write_state<float>(*e, "a", {1, 2, 3, 4});
    tiny::write_state<float>(*e, "c", {10, 20, 30, 40});
  }
  for (int run = 0; run < 3; ++run) {
    executor->run("main");
    expected->run("main");
    for (const char* state : {"a", "c"}) EXPECT_EQ(tiny::state(*executor, state), tiny::state(*expected, state)) << run;
  }
}

TEST(CpuExecutor, InitialValuesAndSizes) {
  Program program = small_program();
  program.add_state({.name = "scale", .type = {DType::kBF16, {3}}, .role = StateRole::kScale, .initial = 1.5});
  Plan plan = plan_memory(std::move(program), cpu_target());
  const int64_t total = plan.total_bytes();
  auto executor = make_cpu_executor(std::move(plan));
  EXPECT_EQ(executor->allocated_bytes(), total);
  std::vector<uint16_t> values(3);
  executor->read_state("scale", std::as_writable_bytes(std::span(values)));
  for (uint16_t value : values) EXPECT_EQ(codec::decode_bf16(value), 1.5f);
}

TEST(CpuExecutor, ErrorsSayWhereAndWhat) {
  Graph graph("main");
  Builder b(graph);
  {
    auto scope = b.scope("model");
    b.output("y", b.embedding(b.token_ids(3), b.param("table", {5, 4})));
  }
  Program program;
  program.add_graph(std::move(graph));
  auto executor = make_cpu(program);
  input_as<int32_t>(*executor, "main", "ids")[1] = 5;
  const std::string message = error_of([&] { executor->run("main"); }, ErrorCode::kInvalidArgument);
  EXPECT_NE(message.find("embedding"), std::string::npos) << message;
  EXPECT_NE(message.find("graph 'main'"), std::string::npos) << message;

  EXPECT_NE(error_of([&] { executor->run("mian"); }, ErrorCode::kNotFound).find("main"), std::string::npos);
  EXPECT_NE(error_of([&] { executor->input("main", "id"); }, ErrorCode::kNotFound).find("ids"), std::string::npos);
  error_of([&] { executor->output("main", "z"); }, ErrorCode::kNotFound);
  std::vector<std::byte> bytes(8);
  error_of([&] { executor->read_state("table", bytes); }, ErrorCode::kNotFound);
  error_of([&] { executor->read_state("model.table", bytes); }, ErrorCode::kInvalidArgument);
}

TEST(CpuExecutor, RefusesWhatCannotFit) {
  Plan plan = plan_memory(small_program(), cpu_target());
  plan.arena_bytes = int64_t{1} << 52;
  const std::string message = error_of([&] { make_cpu_executor(std::move(plan)); }, ErrorCode::kOutOfMemory);
  EXPECT_NE(message.find("missing"), std::string::npos) << message;
  Plan without_workspace = plan_memory(small_program(), interpreter_target());
  error_of([&] { make_cpu_executor(std::move(without_workspace)); }, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace octet
