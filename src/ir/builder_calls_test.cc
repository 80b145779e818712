// The table of the builder's methods: complete, its document made of it, bad arguments.
#include "ir/builder_calls.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <regex>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/testing/test_data.h"
#include "ir/text.h"

namespace octet {
namespace {

// Names of the public functions of class Builder that are no types, constructors or parts of it.
std::set<std::string> methods_of_header() {
  const std::string text = read_file(source_dir() + "/src/ir/builder.h");
  const size_t begin = text.find("class Builder {");
  const std::string body = text.substr(begin, text.find(" private:\n  int64_t new_dropout_key") - begin);
  const std::regex declaration(R"(\n  (?:Value|Norm|AttentionResult|Loss|Routing|Groups|NodeId|void) (\w+)\()");
  std::set<std::string> names;
  for (std::sregex_iterator at(body.begin(), body.end(), declaration), end; at != end; ++at) names.insert((*at)[1]);
  names.erase("set_phase"), names.erase("set_layer");  // of passes
  return names;
}

TEST(BuilderCalls, TheTableHasTheMethodsOfTheClass) {
  std::set<std::string> names;
  for (const BuilderMethod& method : builder_methods()) EXPECT_TRUE(names.insert(method.name).second) << method.name;
  EXPECT_EQ(names, methods_of_header());
  EXPECT_GT(names.size(), 35u);
}

std::string document() {
  std::string text =
      "# The builder\n\nGenerated from the table of `src/ir/builder_calls.cc`; do not edit (`make docs`). Methods of "
      "`octet::Builder`\n(`src/ir/builder.h`) and of Python's `octet.Builder` "
      "([python.md](python.md)). `x` is a value, `c?` one that may be absent, `parts...` a list.\n\n"
      "| method | parameters | results | |\n|---|---|---|---|\n";
  for (const BuilderMethod& method : builder_methods()) {
    std::string signature = method.signature;
    for (size_t at = 0; (at = signature.find('|', at)) != std::string::npos; at += 2) signature.insert(at, "\\");
    text += fmt::format("| `{}` | {} | {} | {} |\n", method.name, signature, method.results, method.meaning);
  }
  return text;
}

TEST(Documents, TableOfBuilderMethodsIsTheGeneratedOne) {
  const std::string path = source_dir() + "/docs/builder.md";
  if (std::getenv("OCTET_UPDATE_GOLDENS") != nullptr) write_file(path, document());
  EXPECT_EQ(read_file(path), document()) << "if intended, run with OCTET_UPDATE_GOLDENS=1";
}

TEST(BuilderCalls, CallsMakeTheNodesThatMethodsMake) {
  Graph direct, called;
  Builder one(direct), other(called);
  const auto run = [&](const char* name, std::vector<Argument> arguments) {
    return call(other, builder_method(name), arguments);
  };
  Value x = one.input("x", {DType::kF32, {8, 16}}), segments = one.segments(2);
  Value q = one.linear(x, "q", 32, {.bias = true, .std = 0.1, .split = Split::kRow});
  one.output("out", one.attention(q, q, q, segments, {.heads = 4, .kv_heads = 4, .head_dim = 8, .max_length = 4}).out);

  const Value x2 = run("input", {"x", TensorType{DType::kF32, {8, 16}}})[0];
  const Value segments2 = run("segments", {int64_t{2}})[0];
  const Value q2 = run("linear", {x2, "q", int64_t{32}, true, 0.1, "row"})[0];
  const auto out = run("attention", {q2, q2, q2, segments2, int64_t{4}, {}, {}, {}, {}, {}, int64_t{4}});
  ASSERT_EQ(out.size(), 2u);
  run("output", {"out", out[0]});
  EXPECT_EQ(print(called), print(direct));
}

TEST(BuilderCalls, EmitTakesAnyOpOfAModel) {
  Graph graph;
  Builder builder(graph);
  const Value x = builder.input("x", {DType::kF32, {2, 4}});
  const auto y = call(builder, builder_method("emit"),
                      std::vector<Argument>{"scale", std::vector<Value>{x}, Attrs{{"value", int64_t{2}}}});
  EXPECT_EQ(graph.node(y[0]).attr<double>("value"), 2);
}

std::string error_of(const char* name, std::vector<Argument> arguments) {
  Graph graph;
  Builder builder(graph);
  builder.input("x", {DType::kF32, {8, 16}});
  try {
    call(builder, builder_method(name), arguments);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    return error.what();
  }
  return "none";
}

TEST(BuilderCalls, BadArgumentsAreNamed) {
  const Value x{NodeId{0}, 0};
  EXPECT_EQ(error_of("linear", {x}),
            "linear: argument name is missing (x, name: str, out: int, bias: bool = false, "
            "std: float = 0.02, split: none | column | row | vocab = column)");
  EXPECT_EQ(error_of("linear", {x, "q", int64_t{4}, {}, {}, "rows"}),
            "linear: split 'rows' (want none, column, row, vocab)");
  EXPECT_EQ(error_of("silu", {"x"}), "silu: argument x is of the wrong type (want a value)");
  EXPECT_EQ(error_of("silu", {Value::none()}), "silu: argument x is of the wrong type (want a value)");
  EXPECT_EQ(error_of("silu", {x, x}), "silu: 2 arguments (it takes 1: x)");
  EXPECT_EQ(error_of("concat", {std::vector<Value>{x}, int64_t{1 << 20}}), "concat: axis 1048576 (want -8 to 7)");
  EXPECT_EQ(error_of("input", {"y", TensorType{DType::kF32, {0}}}),
            "input: shape [0]: dims must be positive and elements at most 2^56");
  EXPECT_NE(error_of("emit", {"siluu", std::vector<Value>{x}}).find("(nearest: silu)"), std::string::npos);
  EXPECT_NE(error_of("emit", {"param", std::vector<Value>{}}).find("method of its own"), std::string::npos);
  EXPECT_NE(error_of("linear", {x, "q", int64_t{0}}).find("dims must be positive"), std::string::npos);
  EXPECT_NE(error_of("attention", {x, x, x, x, int64_t{0}}).find("attention: 0 heads"), std::string::npos);
  EXPECT_NE(error_of("slice", {x, int64_t{0}, int64_t{5}, int64_t{3}}), "none");
  EXPECT_THROW(builder_method("lineal"), Error);
}

TEST(BuilderCalls, AParameterIsKnownByItsCall) {
  Graph graph;
  Builder builder(graph);
  auto scope = builder.scope("mlp");
  const Value x{NodeId{0}, 0};
  EXPECT_EQ(named_param(builder, builder_method("linear"), std::vector<Argument>{x, "up"}), "mlp.up.weight");
  EXPECT_EQ(named_param(builder, builder_method("param"), std::vector<Argument>{"w"}), "mlp.w");
  EXPECT_EQ(named_param(builder, builder_method("silu"), std::vector<Argument>{x}), "");
}

}  // namespace
}  // namespace octet
