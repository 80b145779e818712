// What the graphs of a batch with adapters have beside the model's.
#include "passes/serving_adapters.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ir/builder.h"
#include "ir/verify.h"

namespace octet {
namespace {

// q and v read one x, o what they make; a head.
Graph small_graph() {
  Graph graph("logits");
  Builder b(graph);
  const Value ids = b.token_ids(6), table = b.param("embed.weight", {10, 16}), x = b.embedding(ids, table);
  auto layer = b.layer(0);
  auto scope = b.scope("attn");
  const Value q = b.linear(x, "q", 16, {.bias = true}), v = b.linear(x, "v", 16);
  b.output("logits", b.head(b.linear(b.add(q, v), "o", 16), table, "head"));
  return graph;
}

int64_t count(const Graph& graph, Op op) { return std::ranges::count(graph.nodes(), op, &Node::op); }

AdapterTables tables_of(const Graph& graph, const std::vector<std::string>& targets = {}) {
  return {.slots = 3, .ranks = {8, 16}, .hidden = 16, .linears = adapted_linears(graph, targets)};
}

TEST(ServingAdapters, LinearsThatReadOneXAreAGroup) {
  const Graph graph = small_graph();
  const auto linears = adapted_linears(graph);
  ASSERT_EQ(linears.size(), 2u);
  EXPECT_EQ(linears[0].name, "layers.0.attn.q");
  EXPECT_EQ(linears[0].params, (std::vector<std::string>{"layers.0.attn.q.weight", "layers.0.attn.v.weight"}));
  EXPECT_EQ(linears[1].params, (std::vector<std::string>{"layers.0.attn.o.weight"}));
  EXPECT_EQ(adapted_linears(graph, {"attn.v", "o"}).size(), 2u);
  EXPECT_TRUE(adapted_linears(graph, {"attn"}).size() == 2u && adapted_linears(graph, {"at", "q.weigh"}).empty());
  EXPECT_EQ(adapter_target("layers.0.attn.q.weight"), "attn.q");
}

TEST(ServingAdapters, AIsMultipliedOnceForLinearsOfOneX) {
  Program program;
  const Graph graph = small_graph();
  const Graph adapted = add_adapters(program, graph, tables_of(graph), {.classes = {1}});
  verify(adapted);
  EXPECT_EQ(count(adapted, Op::kGroupedMatmul), 2 + 3);
  EXPECT_EQ(count(adapted, Op::kMatmul), count(graph, Op::kMatmul));
  EXPECT_EQ(program.find_state("adapters.layers.0.attn.q.lora_a.16")->type.shape, (Shape{5 * 2 * 16, 16}));
  EXPECT_EQ(program.find_state("adapters.layers.0.attn.v.weight.lora_b.16")->type.shape, (Shape{5 * 16, 16}));
  EXPECT_EQ(program.find_state("adapters.layers.0.attn.q.lora_a.8"), nullptr);
  EXPECT_FALSE(adapted.find_leaf(Op::kInput, "lora_offsets.8").exists());
  const Value offsets = adapted.find_leaf(Op::kInput, "lora_offsets.16");
  EXPECT_EQ(adapted.shape(offsets), (Shape{6}));
}

TEST(ServingAdapters, VariantsHaveWhatTheyNeed) {
  const Graph graph = small_graph();
  AdapterTables tables = tables_of(graph, {"attn.o"});
  tables.dora = true, tables.virtual_tokens = 4;
  Program program;
  const Graph all = add_adapters(program, graph, tables, {.classes = {0, 1}, .dora = true, .virtual_tokens = true});
  verify(all);
  EXPECT_EQ(count(all, Op::kGroupedMatmul), 4);
  EXPECT_EQ(count(all, Op::kSelectRows), 2);
  EXPECT_EQ(count(all, Op::kScatterRows), 1);
  EXPECT_EQ(program.find_state(kVirtualTokensState)->type.shape, (Shape{3 * 4, 16}));
  EXPECT_EQ(program.find_state("adapters.layers.0.attn.o.weight.gain")->type.shape, (Shape{3 * 3 + 1, 16}));
  Program other;
  const Graph prompts = add_adapters(other, graph, tables, {.virtual_tokens = true});
  EXPECT_EQ(count(prompts, Op::kGroupedMatmul), 0);
  EXPECT_EQ(count(prompts, Op::kScatterRows), 1);
}

// Rows of experts are grouped by expert and slot, once a layer and class; two products that read one x share one of A.
TEST(ServingAdapters, ExpertsAreAdaptedWhereTheyAreNamed) {
  Graph graph("logits");
  Builder b(graph);
  const Value x = b.embedding(b.token_ids(6), b.param("embed.weight", {10, 16}));
  const Builder::Routing routing =
      b.top_k(b.matmul(x, b.param("router.weight", {4, 16}), false, true), 2, "softmax", true);
  const Builder::Groups groups = b.group_rows(routing.experts, 4);
  const Value rows = b.dispatch_rows(x, groups.places);
  const Value gate = b.grouped_linear(rows, groups.offsets, "experts.gate", 8, 0.02),
              up = b.grouped_linear(rows, groups.offsets, "experts.up", 8, 0.02);
  b.output("logits", b.combine_rows(b.mul(gate, up), groups.places, routing.weights));
  EXPECT_TRUE(adapted_linears(graph).empty());
  const AdapterTables tables = tables_of(graph, {"experts.gate", "experts.up"});
  ASSERT_EQ(tables.linears.size(), 1u);
  EXPECT_EQ(tables.linears[0].experts, 4);
  EXPECT_EQ(tables.slot_bytes(), (8 + 16) * 4 * 2 * (16 + 8) * 4);
  Program program;
  const Graph adapted = add_adapters(program, graph, tables, {.classes = {0, 1}});
  verify(adapted);
  EXPECT_EQ(count(adapted, Op::kGroupRows), 1 + 2);
  EXPECT_EQ(count(adapted, Op::kGroupedMatmul), 2 + 2 * (1 + 2));
  EXPECT_EQ(program.find_state("adapters.experts.gate.lora_a.8")->type.shape, (Shape{4 * 5 * 2 * 8, 16}));
  EXPECT_EQ(program.find_state("adapters.experts.up.weight.lora_b.16")->type.shape, (Shape{4 * 5 * 8, 16}));
  EXPECT_TRUE(adapted.find_leaf(Op::kInput, "lora_groups.16").exists());
  EXPECT_FALSE(adapted.find_leaf(Op::kInput, "lora_offsets.16").exists());
}

// Only where they are named; what is added stays inside the product, whose results are float32.
TEST(ServingAdapters, RoutersAreAdaptedWhereTheyAreNamed) {
  Graph graph("logits");
  Builder b(graph);
  const Value x = b.embedding(b.token_ids(6), b.param("embed.weight", {10, 16}));
  const Value router = b.param("layers.0.mlp.router.weight", {4, 16});
  b.output("logits", b.add(b.matmul(x, router, false, true, {}, {{"float32", true}}), b.linear(x, "q", 4)));
  EXPECT_EQ(adapted_linears(graph).size(), 1u);
  EXPECT_EQ(adapted_linears(graph)[0].params, std::vector<std::string>{"q.weight"});
  AdapterTables tables = tables_of(graph, {"mlp.router", "q"});
  tables.dora = true;
  ASSERT_EQ(tables.linears.size(), 1u);  // of one x
  EXPECT_EQ(tables.linears[0].params.size(), 2u);
  Program program;
  const Graph adapted = add_adapters(program, graph, tables, {.classes = {0, 1}, .dora = true});
  verify(adapted);
  const auto product = std::ranges::find_if(
      adapted.nodes(), [&](const Node& node) { return node.op == Op::kMatmul && node.operand("c").exists(); });
  ASSERT_NE(product, adapted.nodes().end());
  EXPECT_TRUE(product->attr<bool>("float32"));
  EXPECT_EQ(adapted.node(product->inputs[1]).name, "layers.0.mlp.router.weight");
}

}  // namespace
}  // namespace octet
