// Rope and scatter_rows of a layer as one: equal to the members run one by one on the device, bit for bit; caches in
// place and copied, each result alone.
#include <gtest/gtest.h>

#include "kernels/cpu/testing/conformance.h"
#include "kernels/cuda/inference/fusion_cases.h"
#include "kernels/cuda/testing/on_device.h"

namespace octet::cuda {
namespace {

class RopeAppends : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    context_ = test_context(&why);
    if (context_ == nullptr) GTEST_SKIP() << why;
  }
  void expect_equal_to_members(const RopeAppend& fusion, DType compute = DType::kBF16) {
    const cpu::Case c = rope_append_case(fusion);
    SCOPED_TRACE(cpu::case_name(c, compute));
    const cpu::BuiltCase built = cpu::build_case(c, compute);
    const Node& node = built.node();
    const auto run = [&](const Graph& graph, const Node& member, const std::vector<cpu::RefTensor>& inputs) {
      return run_node(*context_, graph, member, inputs);
    };
    for (const std::string& failure : cpu::check_fusion(built.graph, node, built.inputs, run)) ADD_FAILURE() << failure;
    std::vector<cpu::RefTensor> expected;
    const auto results = run(built.graph, node, built.inputs);
    for (size_t r = 0; r < results.size(); ++r)
      expected.push_back(cpu::load_tensor(node.results[r], results[r].data()));
    for (const KernelEntry& row : kernel_entries(Op::kFusion)) {  // the kernel, and the members in the caches' place
      if (!row.takes(built.graph, node)) continue;
      const auto kernel = on_device(*context_, row, built.graph, node);
      for (const std::string& failure :
           cpu::check_kernel(row.name, kernel, built.graph, node, built.inputs, expected, cpu::exact()))
        ADD_FAILURE() << failure;
    }
  }
  DeviceContext* context_ = nullptr;
};

constexpr DType kCaches[] = {DType::kBF16, DType::kE4M3, DType::kE5M2, DType::kI8};

// One token and a few (several blocks a token), more than blocks in flight; heads as of the models that have them.
TEST_F(RopeAppends, EqualTheirMembers) {
  for (DType cache : kCaches) {
    for (bool scaled : {false, true}) {
      if (scaled && cache == DType::kI8) continue;
      const auto expect = [&](RopeAppend fusion) {
        fusion.cache = cache, fusion.scaled = scaled;
        expect_equal_to_members(fusion);
      };
      expect({.tokens = 1, .heads = 32, .kv_heads = 32, .dim = 128});
      expect({.tokens = 67, .heads = 32, .kv_heads = 8, .dim = 128});
      expect({.tokens = 601, .heads = 4, .kv_heads = 1, .dim = 64});
      expect({.tokens = 33, .heads = 16, .kv_heads = 16, .dim = 256, .rotary_dim = 64, .interleaved = true});
      expect({.tokens = 5, .heads = 8, .kv_heads = 2, .dim = 128, .rotary_dim = 64, .interleaved = true});
      expect({.tokens = 9, .heads = 6, .kv_heads = 6, .dim = 80, .rotary_dim = 32});
      expect({.tokens = 9, .heads = 6, .kv_heads = 6, .dim = 96, .rotary_dim = 24});
      expect({.tokens = 3, .heads = 2, .kv_heads = 2, .dim = 20, .rotary_dim = 8, .interleaved = true});
      expect({.tokens = 1, .heads = 32, .kv_heads = 8, .dim = 128, .sliced = true});
      expect({.tokens = 67,
              .heads = 16,
              .kv_heads = 16,
              .dim = 256,
              .rotary_dim = 64,
              .interleaved = true,
              .sliced = true});
      expect({.tokens = 9, .heads = 6, .kv_heads = 2, .dim = 20, .rotary_dim = 8, .sliced = true});
      expect({.tokens = 1, .heads = 32, .kv_heads = 4, .dim = 128, .normed = true});
      expect({.tokens = 700, .heads = 8, .kv_heads = 8, .dim = 64, .normed = true});
      expect({.tokens = 67, .heads = 16, .kv_heads = 2, .dim = 128, .sliced = true, .normed = true});
      expect({.tokens = 40, .kv_heads = 12, .dim = 64, .turns = false});
      expect({.tokens = 3, .kv_heads = 1, .dim = 20, .turns = false});
    }
  }
}

// Rows are chosen by types and shapes: no GPU is needed.
TEST(RopeAppendRows, TakeTheirFusionsWhole) {
  const auto row = [](const RopeAppend& fusion, DType compute) {
    const cpu::BuiltCase built = cpu::build_case(rope_append_case(fusion), compute, false);
    return std::string(select_kernel(built.graph, built.node()).name);
  };
  const RopeAppend llama{.tokens = 7, .heads = 8, .kv_heads = 2, .dim = 128, .cache = DType::kE4M3};
  const RopeAppend pair{.tokens = 7, .kv_heads = 2, .dim = 64, .turns = false};
  EXPECT_EQ(row(llama, DType::kBF16), "rope_scatter_rows");
  EXPECT_EQ(row({.tokens = 7, .heads = 8, .kv_heads = 2, .dim = 128, .sliced = true}, DType::kBF16),
            "rope_scatter_rows");
  EXPECT_EQ(row(pair, DType::kBF16), "rope_scatter_rows");
  EXPECT_EQ(row(llama, DType::kF32), "fusion_members");
  // int8: whole heads turn, or none of any
  const auto int8 = [](RopeAppend fusion) { return fusion.cache = DType::kI8, fusion; };
  EXPECT_EQ(row(int8(llama), DType::kBF16), "rope_scatter_rows");
  EXPECT_EQ(row(int8(pair), DType::kBF16), "rope_scatter_rows");
  // norms of heads: of two halves, all of which turn
  const auto normed = [](RopeAppend fusion) { return fusion.normed = true, fusion; };
  EXPECT_EQ(row(normed(llama), DType::kBF16), "rope_scatter_rows");
  RopeAppend pairs = normed(llama);
  pairs.interleaved = true;
  EXPECT_EQ(row(pairs, DType::kBF16), "fusion_members");
  RopeAppend partly = int8(llama);
  partly.rotary_dim = 64;
  EXPECT_EQ(row(partly, DType::kBF16), "fusion_members");
}

// Other types and heads of other sizes go member by member.
TEST_F(RopeAppends, MembersStandInForOthers) {
  const RopeAppend odd{.tokens = 7, .heads = 4, .kv_heads = 2, .dim = 10, .rotary_dim = 6};
  expect_equal_to_members(odd);
  expect_equal_to_members({.tokens = 7, .heads = 4, .kv_heads = 2, .dim = 16, .cache = DType::kF32}, DType::kF32);
}

}  // namespace
}  // namespace octet::cuda
