
#include <gtest/gtest.h>

#include "ir/testing/random_graph.h"
#include "ir/text.h"

namespace octet {
namespace {

constexpr const char* kText = R"(program @p
state @s : f32[2,4] role moment of @w initial 1.5
graph @main stage precise
  %0 = input : f32[2,4] @x
  %1 = scale %0 {value=2.0} : f32[2,4] @a layer 1 phase backward
  %2 = fusion %0, %1 : f32[2,4] @f body
    graph @k stage precise
      %0 = input : f32[2,4] @l
      %1 = input : f32[2,4] @m
      %2 = add %0, %1 : f32[2,4] @n
      output @o %2
    end
  %3 = reshape %0 {shape=[8]} @r
  %4 = matmul %0, %0 {trans_b=true}
  output @y %2
  update @s %1
end
)";

std::string replaced(const char* what, const char* by) {
  std::string text = kText;
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, std::string(what).size(), by);
}

TEST(Fingerprint, SeesAllThatIsPrintedButStages) {
  const uint64_t base = fingerprint(parse_program(kText, "t"));
  EXPECT_EQ(base, fingerprint(parse_program(kText, "t")));
  const std::pair<const char*, const char*> changes[] = {
      {"program @p", "program @q"},
      {"role moment", "role gradient"},
      {"of @w", "of @v"},
      {"initial 1.5", "initial 1.25"},
      {"@x", "@z"},
      {"value=2.0", "value=3.0"},
      {"value=2.0", "value=-0.0"},
      {"trans_b=true", "trans_a=true"},
      {"layer 1", "layer 2"},
      {"phase backward", "phase recompute"},
      {"scale %0 {value=2.0}", "silu %0"},
      {"shape=[8]", "shape=[8,1]"},
      {"trans_b=true", "trans_b=true, tf32=true"},
      {"fusion %0, %1", "fusion %1, %0"},
      {"add %0, %1", "sub %0, %1"},
      {"add %0, %1", "add %1, %0"},
      {"output @o", "output @p"},
      {"output @y %2", "output @y %0"},
      {"update @s %1", "update @s %0"},
      {"  output @y %2\n", ""},
  };
  for (const auto& [what, by] : changes)
    EXPECT_NE(base, fingerprint(parse_program(replaced(what, by), "t"))) << what << " -> " << by;
  EXPECT_EQ(base, fingerprint(parse_program(replaced("@main stage precise", "@main stage packed"), "t")));
}

TEST(Fingerprint, OfRandomGraphsIsThatOfTheirText) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Program program, other;
    program.add_graph(testing::random_graph(seed, 40));
    other.add_graph(testing::random_graph(seed + 1, 40));
    EXPECT_EQ(fingerprint(program), fingerprint(parse_program(print(program), "t"))) << seed;
    EXPECT_NE(fingerprint(program), fingerprint(other)) << seed;
  }
}

}  // namespace
}  // namespace octet
