// Products of adapters: few columns of a long row, and few elements to contract whose product is added to a base.
#include <gtest/gtest.h>

#include "kernels/cpu/testing/conformance.h"
#include "kernels/cuda/testing/on_device.h"

namespace octet::cuda {
namespace {

// Offsets of groups, of [rows, wide] x; columns [begin, begin + rank) of it are contracted with [groups n, rank].
struct Addend {
  std::vector<double> offsets;
  int64_t n, rank, wide = 0, begin = 0;
  bool base_first = true, base = true;

  int64_t rows() const { return static_cast<int64_t>(offsets.back()); }
  int64_t groups() const { return static_cast<int64_t>(offsets.size()) - 1; }
};

cpu::CaseInput groups_of(const std::vector<double>& offsets) {
  return cpu::given(DType::kI32, {static_cast<int64_t>(offsets.size())}, offsets);
}

cpu::Case addend_case(const Addend& s) {
  const int64_t width = s.wide > 0 ? s.wide : s.rank;
  cpu::Case c{.op = Op::kFusion,
              .name = fmt::format("addend_{}x{}_rank_{}_of_{}", s.rows(), s.n, s.rank, s.groups()),
              .inputs = {cpu::normal(DType::kBF16, {s.rows(), width}),
                         cpu::normal(DType::kBF16, {s.groups() * s.n, s.rank}, 0.1), groups_of(s.offsets),
                         cpu::normal(DType::kBF16, {s.rows(), s.n})},
              .dtypes = {DType::kBF16},
              .gradient = false};
  if (!s.base) c.inputs.pop_back();
  c.body = [s](const std::vector<TensorType>& types) {
    Graph body("addend");
    const auto leaf = [&](int i) {
      return Value{
          body.add({.op = Op::kInput, .results = {types[static_cast<size_t>(i)]}, .name = fmt::format("x{}", i)}), 0};
    };
    const auto member = [&](const char* name, Op op, std::vector<Value> inputs, Attrs attrs) {
      return Value{body.add({.op = op, .inputs = std::move(inputs), .attrs = std::move(attrs), .name = name}), 0};
    };
    Value h = leaf(0);
    const Value w = leaf(1), offsets = leaf(2), base = s.base ? leaf(3) : Value::none();
    if (s.wide > 0)
      h = member("columns", Op::kSlice, {h}, {{"axis", int64_t{1}}, {"begin", s.begin}, {"end", s.begin + s.rank}});
    const Value product = member("product", Op::kGroupedMatmul, {h, w, offsets}, {{"trans_b", true}});
    Value result = product;
    if (s.base)
      result = member("add", Op::kAdd, s.base_first ? std::vector{base, product} : std::vector{product, base}, {});
    body.outputs().push_back({"result.0", result});
    return body;
  };
  return c;
}

cpu::Case narrow_case(const std::vector<double>& offsets, int64_t columns, int64_t width) {
  const auto groups = static_cast<int64_t>(offsets.size()) - 1, rows = static_cast<int64_t>(offsets.back());
  return {.op = Op::kGroupedMatmul,
          .name = fmt::format("narrow_{}x{}_of_{}", rows, columns, width),
          .inputs = {cpu::normal(DType::kBF16, {rows, width}),
                     cpu::normal(DType::kBF16, {groups * columns, width}, 0.02), groups_of(offsets)},
          .attrs = {{"trans_b", true}},
          .dtypes = {DType::kBF16},
          .gradient = false};
}

void expect_reference(const cpu::Case& c, const char* name) {
  std::string why;
  DeviceContext* context = test_context(&why);
  if (context == nullptr) GTEST_SKIP() << why;
  SCOPED_TRACE(c.name);
  const cpu::BuiltCase built = cpu::build_case(c, DType::kBF16);
  const KernelEntry& row = select_kernel(built.graph, built.node());
  ASSERT_STREQ(row.name, name);
  const auto expected = cpu::evaluate_node(built.graph, built.node(), built.in(), true);
  const auto kernel = on_device(*context, row, built.graph, built.node());
  for (const std::string& failure : cpu::check_kernel(name, kernel, built.graph, built.node(), built.inputs, expected,
                                                      {.relative = 0x1p-7, .absolute = 0x1p-6}))
    ADD_FAILURE() << failure;
}

// As an adapters' table has them: groups of zeros on both sides, most without rows.
std::vector<double> one_row_each(int groups) {
  std::vector<double> offsets = {0, 0};
  for (int i = 1; i <= groups; ++i) offsets.push_back(i);
  offsets.push_back(groups + 3);
  return offsets;
}

TEST(GroupedThin, AddsToABaseAsTheReference) {
  for (const Addend& s :
       {Addend{{0, 1}, 64, 16}, Addend{{0, 0, 5, 5, 40}, 264, 8, 24, 16}, Addend{one_row_each(64), 1024, 16, 48, 16},
        Addend{{0, 100, 100, 117, 300}, 72, 32, 32, 0, false}, Addend{{0, 0, 17, 33, 50}, 4096, 64},
        Addend{{0, 3, 20, 20}, 512, 16, 48, 32, true, false}})
    expect_reference(addend_case(s), "grouped_addend");
}

TEST(GroupedThin, ContractsFewColumnsAsTheReference) {
  for (const int64_t rank : {8, 16, 32, 64})
    for (const auto& offsets : {std::vector<double>{0, 1}, {0, 0, 5, 5, 40, 57}, one_row_each(40)})
      expect_reference(narrow_case(offsets, 264, rank), "grouped_matmul_wide");
}

TEST(GroupedThin, HasFewColumnsAsTheReference) {
  for (const int64_t columns : {8, 16, 24, 48, 64, 136})
    for (const auto& offsets : {std::vector<double>{0, 1}, {0, 0, 5, 5, 40, 57}, one_row_each(40)})
      expect_reference(narrow_case(offsets, columns, 1032), "grouped_matmul_narrow");
  expect_reference(narrow_case({0, 700, 700, 1300, 2100}, 32, 512), "grouped_matmul_narrow");  // no clusters
  expect_reference(narrow_case({0, 16, 200}, 48, 14336), "grouped_matmul_narrow");
}

}  // namespace
}  // namespace octet::cuda
