// The interpreter's own promises: rounding at every value, fusion bodies like the unfused graph, functional updates,
// state in its declared bytes, and clear refusals.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "exec/executor.h"
#include "ir/builder.h"

namespace octet {
namespace {

const TensorType kVector{DType::kF32, {3}};

Value input(Graph& graph, const std::string& name, TensorType type) {
  return {graph.add({.op = Op::kInput, .results = {std::move(type)}, .name = name}), 0};
}
Value state(Graph& graph, const std::string& name, TensorType type) {
  return {graph.add({.op = Op::kState, .results = {std::move(type)}, .name = name}), 0};
}
Value emit(Graph& graph, Op op, std::vector<Value> inputs, Attrs attrs = {}) {
  return {graph.add({.op = op, .inputs = std::move(inputs), .attrs = std::move(attrs)}), 0};
}

std::unique_ptr<Executor> executor_of(Graph graph, InterpretMode mode = InterpretMode::kFloat32) {
  Program program;
  program.add_graph(std::move(graph));
  return make_interpreter(std::move(program), mode);
}

void feed(Executor& executor, const std::string& graph, const std::string& name, std::vector<float> values) {
  auto target = input_as<float>(executor, graph, name);
  ASSERT_EQ(target.size(), values.size());
  std::copy(values.begin(), values.end(), target.begin());
}

TEST(Interpreter, RoundsEveryValueToItsDeclaredType) {
  Graph graph("main");
  const Value x = input(graph, "x", kVector);
  const Value narrow = emit(graph, Op::kCast, {x}, {{"to", std::string("bf16")}});
  const Value doubled = emit(graph, Op::kAdd, {narrow, narrow});
  const Value product = emit(graph, Op::kMul, {doubled, narrow});  // bf16: rounded again
  const Value wide = emit(graph, Op::kCast, {product}, {{"to", std::string("f32")}});
  graph.outputs().push_back({"y", wide});
  auto executor = executor_of(graph);
  const std::vector<float> values = {1.2345678f, -3.1415927f, 1e-3f};
  feed(*executor, "main", "x", values);
  executor->run("main");
  const auto y = output_as<float>(*executor, "main", "y");
  for (size_t i = 0; i < values.size(); ++i) {
    const double n = round_to(DType::kBF16, values[i]);
    EXPECT_EQ(y[i], round_to(DType::kBF16, round_to(DType::kBF16, n + n) * n));
  }
}

TEST(Interpreter, Float64ModeDoesNotRoundF32) {
  for (InterpretMode mode : {InterpretMode::kFloat32, InterpretMode::kFloat64}) {
    Graph graph("main");
    const Value x = input(graph, "x", kVector), big = input(graph, "big", kVector);
    const Value sum = emit(graph, Op::kAdd, {big, x});
    graph.outputs().push_back({"back", emit(graph, Op::kSub, {sum, big})});
    auto executor = executor_of(graph, mode);
    feed(*executor, "main", "x", {1, 2, 3});
    feed(*executor, "main", "big", {0x1p30f, 0x1p30f, 0x1p30f});  // one unit in the last place is 128
    executor->run("main");
    const auto back = output_as<float>(*executor, "main", "back");
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(back[i], mode == InterpretMode::kFloat32 ? 0.0f : static_cast<float>(i + 1));
    }
  }
}

TEST(Interpreter, FusionBodyEqualsTheUnfusedGraph) {
  const TensorType x_type{DType::kBF16, {4, 5}}, bias_type{DType::kF32, {5}};
  const auto tail = [](Graph& graph, Value x, Value bias) {
    const Value sum = emit(graph, Op::kAdd, {x, bias});
    return emit(graph, Op::kGelu, {sum}, {{"approximate", true}});
  };
  Graph body("body");
  const Value body_x = input(body, "x", x_type);
  const Value body_bias = input(body, "bias", bias_type);
  body.outputs().push_back({"y", tail(body, body_x, body_bias)});

  Graph graph("main");
  const Value x = input(graph, "x", x_type);
  const Value bias = input(graph, "bias", bias_type);
  graph.outputs().push_back({"plain", tail(graph, x, bias)});
  const NodeId fused = graph.add({.op = Op::kFusion,
                                  .inputs = {x, bias},
                                  .results = {body.type(body.outputs()[0].value)},
                                  .name = "fused",
                                  .body = std::make_shared<const Graph>(body)});
  graph.outputs().push_back({"fused", {fused, 0}});
  auto executor = executor_of(graph);
  auto bytes = executor->input("main", "x");
  for (int64_t i = 0; i < 20; ++i) store_element(DType::kBF16, bytes.data(), i, std::sin(static_cast<double>(i)));
  feed(*executor, "main", "bias", {0.1f, 0.2f, -0.3f, 1.4f, 0.5f});
  executor->run("main");
  const auto plain = executor->output("main", "plain"), other = executor->output("main", "fused");
  ASSERT_EQ(plain.size(), other.size());
  EXPECT_EQ(std::memcmp(plain.data(), other.data(), plain.size()), 0);
}

TEST(Interpreter, UpdatesAreFunctionalAndVisibleAfterTheRun) {
  Program program;
  program.add_state({.name = "a", .type = kVector, .initial = 2});
  program.add_state({.name = "b", .type = kVector, .initial = 5});
  Graph swap("swap");
  const Value a = state(swap, "a", kVector), b = state(swap, "b", kVector);
  swap.outputs().push_back({"seen", emit(swap, Op::kAdd, {a, b})});
  swap.updates().push_back({"a", b});
  swap.updates().push_back({"b", a});
  program.add_graph(swap);
  auto executor = make_interpreter(std::move(program));
  std::vector<float> read(3);
  executor->run("swap");
  executor->read_state("a", std::as_writable_bytes(std::span(read)));
  EXPECT_EQ(read, std::vector<float>(3, 5));
  executor->run("swap");
  executor->read_state("a", std::as_writable_bytes(std::span(read)));
  EXPECT_EQ(read, std::vector<float>(3, 2));
  EXPECT_EQ(output_as<float>(*executor, "swap", "seen")[0], 7);
}

TEST(Interpreter, StateKeepsItsDeclaredBytes) {
  Program program;
  const TensorType type{DType::kE4M3, {256}};
  program.add_state({.name = "codes", .type = type});
  auto executor = make_interpreter(std::move(program));
  std::vector<uint8_t> bytes(256), read(256);
  for (size_t i = 0; i < 256; ++i) bytes[i] = static_cast<uint8_t>(i);
  executor->write_state("codes", std::as_bytes(std::span(bytes)));
  executor->read_state("codes", std::as_writable_bytes(std::span(read)));
  EXPECT_EQ(read, bytes);
  EXPECT_EQ(executor->allocated_bytes(), 256);
}

TEST(Interpreter, RefusesWhatDoesNotFit) {
  Graph graph("main");
  const Value ids = input(graph, "ids", {DType::kI32, {2}});
  const Value table = {graph.add({.op = Op::kParam, .results = {{DType::kF32, {4, 3}}}, .name = "table"}), 0};
  graph.outputs().push_back({"rows", emit(graph, Op::kEmbedding, {ids, table})});
  auto executor = executor_of(graph);
  EXPECT_THROW(executor->output("main", "rows"), Error);  // before the first run
  EXPECT_THROW(executor->input("main", "nothing"), Error);
  EXPECT_THROW(executor->run("other"), Error);
  std::vector<float> wrong(11);
  EXPECT_THROW(executor->write_state("table", std::as_bytes(std::span(wrong))), Error);
  input_as<int32_t>(*executor, "main", "ids")[1] = 4;
  try {
    executor->run("main");
    FAIL() << "id 4 of a table of 4 rows was accepted";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("id 4 is outside the table's 4 rows"), std::string::npos) << error.message();
  }
}

}  // namespace
}  // namespace octet
