// The router of few tokens as one kernel, against the reference: logits, choices, places and offsets.
#include <gtest/gtest.h>

#include "ir/builder.h"
#include "kernels/cpu/testing/conformance.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/testing/on_device.h"

namespace octet::cuda {
namespace {

struct RouterShape {
  int64_t tokens, experts, k, width;
  const char* scoring = "softmax";
  bool renormalize = true;
};

cpu::Case router_case(const RouterShape& s, const std::vector<std::string>& results) {
  cpu::Case c{
      .op = Op::kFusion,
      .name = fmt::format("router_{}x{}_of_{}x{}", s.tokens, s.k, s.experts, s.width),
      .inputs = {cpu::normal(DType::kBF16, {s.tokens, s.width}), cpu::normal(DType::kF32, {s.experts, s.width}, 0.05)},
      .dtypes = {DType::kBF16},
      .gradient = false};
  c.body = [s, results](const std::vector<TensorType>& types) {
    Graph body("router");
    const auto leaf = [&](int i) {
      return Value{
          body.add({.op = Op::kInput, .results = {types[static_cast<size_t>(i)]}, .name = fmt::format("x{}", i)}), 0};
    };
    const auto member = [&](const char* name, Op op, std::vector<Value> inputs, Attrs attrs) {
      return body.add({.op = op, .inputs = std::move(inputs), .attrs = std::move(attrs), .name = name});
    };
    const Value x = leaf(0), w = leaf(1);
    const Value wide{member("x", Op::kCast, {x}, {{"to", "f32"}}), 0};
    const Value logits{member("logits", Op::kMatmul, {wide, w}, {{"trans_b", true}, {"to", "f32"}}), 0};
    const NodeId top_k = member("top_k", Op::kTopK, {logits},
                                {{"k", s.k}, {"scoring", std::string(s.scoring)}, {"renormalize", s.renormalize}});
    const NodeId groups = member("group_rows", Op::kGroupRows, {{top_k, 1}}, {{"groups", s.experts}});
    for (const std::string& name : results) {
      const NodeId maker = name.starts_with("top_k") ? top_k : groups;
      body.outputs().push_back({name, {maker, name.back() - '0'}});
    }
    return body;
  };
  return c;
}

const KernelEntry& router_row() {
  for (const KernelEntry& row : kernel_entries(Op::kFusion))
    if (std::string(row.name) == "router") return row;
  throw std::logic_error("no row of routers");
}

TEST(Router, ChoosesAndGroupsAsTheReference) {
  std::string why;
  DeviceContext* context = test_context(&why);
  if (context == nullptr) GTEST_SKIP() << why;
  const std::vector<std::string> all = {"top_k.0",      "top_k.1",      "top_k.2",     "top_k.3",
                                        "group_rows.0", "group_rows.1", "group_rows.2"};
  for (const RouterShape& shape :
       {RouterShape{1, 128, 8, 2048}, RouterShape{16, 128, 8, 2048}, RouterShape{3, 8, 2, 4096},
        RouterShape{5, 60, 4, 1408, "softmax", false}, RouterShape{7, 1, 1, 1024, "sigmoid", false},
        RouterShape{2, 200, 40, 8}, RouterShape{9, 4, 4, 9000}, RouterShape{2, 1024, 8, 512}}) {
    for (const auto& results : {all, std::vector<std::string>{"top_k.0", "group_rows.0", "group_rows.1"}}) {
      const cpu::Case c = router_case(shape, results);
      SCOPED_TRACE(c.name);
      const cpu::BuiltCase built = cpu::build_case(c, DType::kBF16);
      ASSERT_STREQ(select_kernel(built.graph, built.node()).name, "router");
      const auto expected = cpu::evaluate_node(built.graph, built.node(), built.in(), true);
      const auto kernel = on_device(*context, router_row(), built.graph, built.node());
      for (int run = 0; run < 2; ++run)  // the second finds the counters as the first did
        for (const std::string& failure : cpu::check_kernel("router", kernel, built.graph, built.node(), built.inputs,
                                                            expected, {.relative = 1e-4, .absolute = 1e-4}))
          ADD_FAILURE() << failure;
    }
  }
}

// Rows are chosen by types and shapes: no GPU is needed.
TEST(Router, MoreTokensGoMemberByMember) {
  const auto row = [](const RouterShape& shape) {
    const cpu::BuiltCase built = cpu::build_case(router_case(shape, {"top_k.0", "group_rows.0"}), DType::kBF16, false);
    return std::string(select_kernel(built.graph, built.node()).name);
  };
  EXPECT_EQ(row({kRouterTokens, 128, 8, 2048}), "router");
  EXPECT_EQ(row({kRouterTokens + 1, 128, 8, 2048}), "fusion_members");
  EXPECT_EQ(row({16, 64, 33, 2048}), "fusion_members");  // more choices than a block's shared memory has
  EXPECT_EQ(row({1, 128, 8, 2044}), "fusion_members");
}

}  // namespace
}  // namespace octet::cuda
