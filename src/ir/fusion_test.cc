// What bodies are read as: a member that a chain does not name makes it none, so that no kernel drops it.
#include "ir/fusion.h"

#include <gtest/gtest.h>

#include "ir/text.h"

namespace octet {
namespace {

std::optional<Chain> chain_of(const std::string& members) {
  return read_chain(
      parse_graph("graph @body stage fused %x = input : bf16[4,8] @x %y = input : bf16[4,8] @y "
                  "%z = input : bf16[4,8] @z %w = input : bf16[4,8] @w %c = input : f32[8] @c "
                  "%one = input : f32[1] @one " +
                  members + " end"));
}

TEST(Fusion, AMemberThatTheChainDoesNotNameMakesItNone) {
  const std::string norm = "%n = rms_norm %x, %c {eps=1e-05} ",
                    amax = "%m = reduce %n {axis=\"all\", reduction=\"amax\"} ";
  EXPECT_EQ(chain_of(norm + amax + "output @m %m")->producer, Producer::kNorm);
  EXPECT_FALSE(chain_of(norm + amax + "%s = scale %n {value=2.0} output @m %m output @s %s"));
  EXPECT_FALSE(chain_of(norm + amax + "%o = reduce %n {axis=\"all\", reduction=\"amax\"} output @m %m output @o %o"));
  EXPECT_FALSE(chain_of(norm + "%m = reduce %x {axis=\"all\", reduction=\"amax\"} output @n %n output @m %m"));
}

TEST(Fusion, ABiasIsAddedToEveryRow) {
  const std::string gelu = "%g = gelu %b {approximate=true} output @g %g";
  EXPECT_NE(chain_of("%b = add %x, %c " + gelu)->bias, nullptr);
  EXPECT_FALSE(chain_of("%b = add %x, %one " + gelu)) << "a scalar";
  EXPECT_FALSE(chain_of("%b = add %x, %y " + gelu)) << "a matrix";
}

TEST(Fusion, AGatesGradientsShareTheirFactor) {
  const std::string grads = "%dx = silu_grad %x, %a %up = mul ", outputs = " output @dx %dx output @up %up";
  EXPECT_EQ(chain_of("%a = mul %y, %z " + grads + "%y, %w" + outputs)->producer, Producer::kGatedGrad);
  EXPECT_FALSE(chain_of("%a = mul %y, %z " + grads + "%x, %w" + outputs));
}

TEST(Fusion, LabelsCountMembers) {
  const Graph graph = parse_graph(
      "graph @g stage fused %x = input : bf16[4,8] @x %f = fusion %x body graph @body stage fused "
      "%x = input : bf16[4,8] @x %a = silu %x %b = silu %a %m = reduce %b {axis=\"all\", reduction=\"amax\"} "
      "output @m %m end output @y %f end");
  EXPECT_EQ(node_label(graph.nodes().back()), "silu x2+amax");
  EXPECT_EQ(node_label(graph.nodes().front()), "input");
}

}  // namespace
}  // namespace octet
