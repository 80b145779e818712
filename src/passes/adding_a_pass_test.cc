// The walk-through docs/adding_a_pass.md, compiled: the code between the markers is the code in the document.
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/testing/test_data.h"
#include "ir/text.h"
#include "ir/verify.h"

// [begin]
#include "ir/rewrite.h"
#include "passes/pass.h"

namespace octet {

// scale(scale(x, a), b) = scale(x, a * b), in float32. Graph level: returns whether something changed.
bool merge_scales_in(Graph& graph) {
  Rewriter rewriter(graph);
  bool changed = false;
  for (int32_t i = 0; i < graph.size(); ++i) {
    NodeId id{i};
    const Node& outer = graph.node(id);
    const bool is_scale = outer.op == Op::kScale && outer.results[0].dtype == DType::kF32;
    if (!is_scale || graph.node(outer.inputs[0]).op != Op::kScale || graph.dtype(outer.inputs[0]) != DType::kF32) {
      rewriter.copy(id);
      continue;
    }
    const Node& inner = graph.node(outer.inputs[0]);
    Node merged = outer;  // keeps the name, layer and phase
    merged.inputs = {rewriter.map(inner.inputs[0])};
    merged.attrs.set("value", inner.attrs.get<double>("value") * outer.attrs.get<double>("value"));
    rewriter.set({id, 0}, {rewriter.graph().add(std::move(merged)), 0});
    changed = true;
  }
  if (changed) graph = rewriter.finish();  // drops the inner node when nobody else reads it
  return changed;
}

bool merge_scales(Program& program, const CompileOptions&) {
  bool changed = false;
  for (Graph& graph : program.graphs()) changed |= merge_scales_in(graph);
  return changed;
}

}  // namespace octet
// [end]

namespace octet {
namespace {

TEST(AddingAPass, TheExampleWorks) {
  Program program;
  program.add_graph(parse_graph(R"(graph @main stage model
  %x = input : f32[8] @x
  %a = scale %x {value=2.0} @a
  %b = scale %a {value=0.25} @b
  output @y %b
end
)"));
  EXPECT_TRUE(merge_scales(program, {}));
  verify(program);
  EXPECT_EQ(print(program.graph("main")), R"(graph @main stage model
  %0 = input : f32[8] @x
  %1 = scale %0 {value=0.5} : f32[8] @b
  output @y %1
end
)");
  EXPECT_FALSE(merge_scales(program, {}));
}

TEST(AddingAPass, TheDocumentShowsThisCode) {
  std::string source = read_file(source_dir() + "/src/passes/adding_a_pass_test.cc");
  std::string document = read_file(source_dir() + "/docs/adding_a_pass.md");
  const std::string begin = "// [begin]\n", end = "// [end]\n";
  size_t from = source.find(begin) + begin.size();
  std::string code = source.substr(from, source.find(end) - from);
  EXPECT_NE(document.find("```cpp\n" + code + "```\n"), std::string::npos)
      << "docs/adding_a_pass.md differs from the code between [begin] and [end]";
}

}  // namespace
}  // namespace octet
