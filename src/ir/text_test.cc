// The text form: what is printed, parses and prints again identically; bad text is refused with a place and a reason.
#include "ir/text.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "ir/testing/random_graph.h"
#include "ir/verify.h"

namespace octet {
namespace {

constexpr const char* kHandWritten = R"(# a comment
graph @main stage fused
  %x = input : bf16[4,8] @x
  %w = param {init="zeros"} : f32[8] @"odd name"
  %s = state : f32[1] @kv.0
  %n = rms_norm %x, %w {eps=1e-05} @layers.0.norm layer 0
  %v = param {std=1e+20} : f32[8] @v
  %r = reshape %x {shape=[2, 2, 8]} @r
  %o = constant {value=-inf} : f32[1]
  %m = matmul %x, %x {trans_b=true, gemm="a \"b\"", role="fprop"} @m
  %q = fusion %x, %w : bf16[4,8], f32[4] @f layer 3 phase backward body
    graph @norm_quantize stage fused
      %a = input : bf16[4,8] @a
      %b = input : f32[8] @b
      %c = rms_norm %a, %b {eps=2.0}
      output @y %c
      output @rstd %c.1
    end
  output @y %n
  output @stat %q.1
  update @kv.0 %s
end
)";

template <typename Parse>
std::string error_of(Parse parse, const std::string& text) {
  try {
    parse(text, "t");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.message();
  }
  return "";
}

TEST(Text, HandWrittenGraphPrintsAndParsesBack) {
  Graph graph = parse_graph(kHandWritten);
  verify(graph);
  const Node& fusion = graph.node(graph.output("stat"));
  EXPECT_EQ(fusion.layer, 3);
  EXPECT_EQ(fusion.phase, Phase::kBackward);
  const auto named = [&](const char* name) -> const Node& {
    return *std::ranges::find_if(graph.nodes(), [&](const Node& node) { return node.name == name; });
  };
  EXPECT_EQ(named("r").attr<std::vector<int64_t>>("shape"), (std::vector<int64_t>{2, 2, 8}));
  EXPECT_EQ(named("m").attr<std::string>("gemm"), "a \"b\"");
  EXPECT_EQ(named("v").attr<double>("std"), 1e20);
  EXPECT_EQ(fusion.body->size(), 3);
  EXPECT_EQ(graph.type(graph.output("stat")), (TensorType{DType::kF32, {4}}));
  std::string printed = print(graph);
  EXPECT_EQ(print(parse_graph(printed)), printed);
}

TEST(Text, PrintedFormIsTheOneOfTheDocument) {
  Graph graph("main");
  Builder b(graph);
  Value x = b.input("x", {DType::kF32, {4, 8}});
  auto layer = b.layer(2);
  b.output("y", b.linear(x, "up", 16));
  EXPECT_EQ(print(graph), R"(graph @main stage model
  %0 = input : f32[4,8] @x
  %1 = param {init="normal", split="column", std=0.02} : f32[16,8] @layers.2.up.weight
  %2 = matmul %0, %1 {gemm="layers.2.up", role="fprop", trans_a=false, trans_b=true} : f32[4,16] @layers.2.up layer 2
  output @y %2
end
)");
}

TEST(Text, RandomGraphsRoundTrip) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Graph graph = testing::random_graph(seed, 40);
    verify(graph);
    std::string printed = print(graph);
    Graph parsed = parse_graph(printed);
    verify(parsed);
    ASSERT_EQ(print(parsed), printed);
  }
}

TEST(Text, ProgramsRoundTrip) {
  Program program;
  program.name = "two words";
  program.add_graph(testing::transformer_graph({.dropout = 0.1}));
  program.add_graph(testing::random_graph(1, 10));
  program.add_state({.name = "scale", .type = {DType::kF32, {1}}, .role = StateRole::kScale, .initial = 1});
  collect_state(program);
  verify(program);
  std::string printed = print(program);
  Program parsed = parse_program(printed);
  verify(parsed);
  EXPECT_EQ(print(parsed), printed);
  EXPECT_EQ(parsed.find_state("scale")->initial, 1);
  EXPECT_EQ(parsed.find_state("layers.1.down.weight")->param, "layers.1.down.weight");
}

TEST(Text, RolesIndicesAndPlacementsRoundTrip) {
  const std::string text = R"(program @p
state @w : f32[12,8] role master of @w holds @q [4,8] holds @k [4,8] at 32 as [0,4,2,8,32], [0,8,8,1,8]
state @adam_v.w : f32[12,8] role moment index 1 of @w initial 1.5
graph @train stage model
end
graph @decode.4 role forward stage model
end
graph @eval role none stage model
end
)";
  const Program program = parse_program(text);
  EXPECT_EQ(print(program), text);
  EXPECT_EQ(program.graph("train").role(), GraphRole::kTrain);
  EXPECT_EQ(program.find_graph(GraphRole::kForward)->name(), "decode.4");
  EXPECT_EQ(program.find_graph(GraphRole::kEval), nullptr);
  EXPECT_EQ(program.find_state("w", StateRole::kMoment, 1)->initial, 1.5);
  const auto error = [](auto&&... a) { parse_program(a...); };
  EXPECT_EQ(error_of(error, "program @p state @a : f32[2] holds @b [3]"),
            "t:1:18: b [3] does not lie as its placement says in a state of [2]");
  EXPECT_EQ(error_of(error, "program @p state @a : f32[2] role master index -1"),
            "t:1:48: found -1, expected an index of 0 to 2147483647");
  EXPECT_EQ(error_of(error, "program @p state @a : f32[2] role moments"),
            "t:1:35: found 'moments', expected a state's role");
}

TEST(Text, ErrorsNameThePlaceWhatWasFoundAndWhatWasExpected) {
  struct Case {
    const char* text;
    const char* message;
  };
  for (const Case& c : std::initializer_list<Case>{
           {"", "t:1:1: found the end of the text, expected 'graph'"},
           {"graph @g\n  %0 = ad", "t:2:8: no op is named ad (nearest: add)"},
           {"graph @g %0 = input : f32[2] @x %1 = add %0, %7 end", "t:1:46: %7 is not defined above"},
           {"graph @g %0 = input : f32[2] @x %1 = relu %0.1 end", "t:1:43: %0 has 1 results"},
           {"graph @g %0 = input : f33[2] @x", "t:1:23: "},
           {"graph @g %0 = input : f32[0] @x end",
            "t:1:11: input: result type f32[0] in node x: dims must be positive "
            "and elements at most 2^56"},
           {"graph @g %0 = input : f32[2] @x\n%1 = relu %0 : f32[3] end",
            "t:2:2: result 0 is declared f32[3], the op gives f32[2]"},
           {"graph @g %0 = input : f32[2] @\"x", "t:1:31: the string that begins here has no end"},
           {"graph @g output @y", "t:1:19: found the end of the text, expected a value (%name, %name.result or _)"},
           {"graph @g stage soon", "t:1:16: found 'soon', expected a stage"},
           {"graph @g \x01", "t:1:10: found byte 0x01, expected '%', 'output', 'update' or 'end'"},
           {"graph @g %0 = param {init=\"ones\", init=2}", "t:1:35: attribute init is given twice"},
           {"graph @g %0 = fusion %0", "t:1:22: %0 is not defined above"},
           {"graph @g %0 = input : f32[99999999999999999999] @x",
            "t:1:27: found '99999999999999999999', expected an "
            "integer"},
           {"graph @g end graph @h end", "t:1:14: found 'graph', expected the end of the text"},
       }) {
    std::string message = error_of([](auto&&... a) { parse_graph(a...); }, c.text);
    EXPECT_EQ(message.substr(0, std::string(c.message).size()), c.message) << c.text;
    EXPECT_NE(message, "") << c.text;
  }
  auto program = [](auto&&... a) { parse_program(a...); };
  EXPECT_EQ(error_of(program, "program @p state @a : f32[2] state @a : f32[2]"), "t:1:36: state a was given before");
  EXPECT_EQ(error_of(program, "program @p graph @g end graph @g end"), "t:1:25: a graph named g was given before");
}

TEST(Text, DeepBodiesAreRefusedBeforeTheStackEnds) {
  std::string text;
  for (int i = 0; i < 100000; ++i) text += "graph @g %0 = input : f32[1] @x %1 = fusion %0 body ";
  EXPECT_NE(error_of([](auto&&... a) { parse_graph(a...); }, text).find("nested deeper than 8"), std::string::npos);
}

// Every prefix and every text with one byte changed parses or throws Error.
TEST(Text, DamagedTextNeverCrashes) {
  std::string good = kHandWritten;
  for (size_t size = 0; size < good.size(); ++size) {
    try {
      parse_graph(std::string_view(good).substr(0, size));
    } catch (const Error&) {
    }
  }
  Philox random(7);
  for (int i = 0; i < 20000; ++i) {
    std::string text = good;
    for (int k = 0; k < 2; ++k) text[random.below(text.size())] = static_cast<char>(random.below(256));
    try {
      Graph graph = parse_graph(text);
      ASSERT_EQ(print(parse_graph(print(graph))), print(graph));
    } catch (const Error&) {
    }
  }
}

}  // namespace
}  // namespace octet
