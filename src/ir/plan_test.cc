#include "ir/plan.h"

#include <gtest/gtest.h>

#include "ir/text.h"

namespace octet {
namespace {

TEST(Plan, CollectivesEndAtTheirJoins) {
  const Graph graph = parse_graph(R"(graph @g mesh tp=2 stage sharded
  %x = input : f32[8,4]+tp @x
  %a = all_reduce %x {async=true, over="tp", reduction="sum"} @a
  %v = reshape %a {shape=[32]} @v
  %y = silu %v @y
  %b = all_reduce %x {async=true, over="tp", reduction="sum"} @b
  %c = all_reduce %x {async=true, over="tp", reduction="sum"} @c
  %d = all_reduce %x {async=true, over="tp", reduction="sum"} @d
  %e = all_reduce %x {over="tp", reduction="sum"} @e
  %f = all_reduce %x {async=true, over="tp", reduction="sum"} @f
  %z = silu %y @z
  output @z %z
  output @b %b
  output @c %c
  output @d %d
  output @e %e
  output @f %f
end)");
  //                       x   a  v   y   b  c  d  e   f   z
  const std::vector<int32_t> joins = {-1, 3, -1, -1, 6, 7, 7, -1, 10, -1};
  EXPECT_EQ(joins_of(graph), joins);
}

}  // namespace
}  // namespace octet
