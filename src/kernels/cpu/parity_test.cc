// Every kernel row against the reference, over the whole case list: guard bands around every buffer, poisoned results,
// inputs that must stay as they are, absent results, results in place where the op's facts allow it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "ir/facts.h"
#include "kernels/cpu/cases.h"

namespace octet::cpu {
namespace {

constexpr size_t kGuard = 256;  // bytes on either side; buffers keep the plan's 64-byte alignment
constexpr auto kCanary = std::byte{0xC5};
constexpr auto kPoison = std::byte{0xFF};  // NaN in every float type, -1 in integers

class GuardedBuffer {
 public:
  explicit GuardedBuffer(const TensorType& type) : size_(static_cast<size_t>(type.bytes())) {
    storage_.assign(size_ + 2 * kGuard + 64, kCanary);
    offset_ = kGuard;
    while ((reinterpret_cast<uintptr_t>(storage_.data()) + offset_) % 64 != 0) ++offset_;
    std::fill_n(storage_.begin() + static_cast<int64_t>(offset_), size_, kPoison);
  }
  std::byte* data() { return storage_.data() + offset_; }
  std::vector<std::byte> contents() const {
    return {storage_.begin() + static_cast<int64_t>(offset_), storage_.begin() + static_cast<int64_t>(offset_ + size_)};
  }
  bool intact() const {
    const auto is_canary = [](std::byte b) { return b == kCanary; };
    const auto begin = storage_.begin() + static_cast<int64_t>(offset_);
    return std::all_of(storage_.begin(), begin, is_canary) &&
           std::all_of(begin + static_cast<int64_t>(size_), storage_.end(), is_canary);
  }

 private:
  size_t size_, offset_ = 0;
  std::vector<std::byte> storage_;
};

// One unit in the last place of a 16-bit float near `value`.
double ulp(DType dtype, double value) {
  if (dtype != DType::kBF16 && dtype != DType::kF16) return 0;
  const int digits = dtype == DType::kBF16 ? 8 : 11, smallest = dtype == DType::kBF16 ? -126 : -14;
  int exponent = 0;
  std::frexp(value, &exponent);
  return std::ldexp(1.0, std::max(exponent - 1, smallest) - (digits - 1));
}

// "" when `actual` is within the case's tolerance of `expected`, else the worst element.
std::string difference(const RefTensor& actual, const RefTensor& expected, const Tolerance& tolerance) {
  const DType dtype = expected.type.dtype;
  const bool equal_only = !is_float(dtype) || is_fp8(dtype);
  double worst = 0;
  std::string message;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    const double a = actual.values[i], e = expected.values[i];
    if (a == e || (std::isnan(a) && std::isnan(e))) continue;
    const double loosened = tolerance.absolute + tolerance.relative * std::fabs(e);
    const double allowed = equal_only ? 0 : loosened + (loosened > 0 ? ulp(dtype, e) : 0);
    const double error = std::fabs(a - e);
    if (error <= allowed) continue;
    if (message.empty() || error > worst) {
      worst = error;
      message = fmt::format("element {}: {} instead of {} (difference {:.3g}, allowed {:.3g}: {})", i, a, e, error,
                            allowed, tolerance.reason);
    }
  }
  return message;
}

struct Variant {
  std::vector<bool> wanted;  // per result
  int in_place = -1;         // input whose buffer result 0 takes over
  std::string name;
};

void run_row(const KernelRow& row, const Case& c, const BuiltCase& built, const std::vector<RefTensor>& expected,
             const Variant& run) {
  SCOPED_TRACE(fmt::format("row {}, {}", row.name, run.name));
  const Node& node = built.node();
  std::vector<GuardedBuffer> in_buffers, out_buffers;
  std::vector<Tensor> in, out;
  std::vector<std::vector<std::byte>> before;
  for (size_t i = 0; i < built.inputs.size(); ++i) {
    const bool exists = node.inputs[i].exists();
    in_buffers.emplace_back(exists ? built.inputs[i].type : TensorType{DType::kU8, {0}});
    if (exists) store_tensor(built.inputs[i], in_buffers[i].data());
    before.push_back(in_buffers[i].contents());
  }
  for (size_t i = 0; i < built.inputs.size(); ++i) {
    const bool exists = node.inputs[i].exists();
    in.push_back({exists ? in_buffers[i].data() : nullptr, exists ? &built.inputs[i].type : nullptr});
  }
  for (const TensorType& type : node.results) out_buffers.emplace_back(type);
  for (size_t r = 0; r < node.results.size(); ++r) {
    void* data = r == 0 && run.in_place >= 0 ? in[static_cast<size_t>(run.in_place)].data : out_buffers[r].data();
    out.push_back({run.wanted[r] ? data : nullptr, &node.results[r]});
  }
  static GuardedBuffer workspace({DType::kU8, {workspace_bytes()}});  // large: one for all runs, poisoned once
  const BoundKernel kernel = row.bind(built.graph, node);
  kernel({in, out, {workspace.data(), static_cast<size_t>(workspace_bytes())}});

  for (size_t i = 0; i < in_buffers.size(); ++i) {
    EXPECT_TRUE(in_buffers[i].intact()) << "wrote around input " << i;
    EXPECT_TRUE(static_cast<int>(i) == run.in_place || in_buffers[i].contents() == before[i]) << "changed input " << i;
  }
  EXPECT_TRUE(workspace.intact()) << "wrote around the workspace";
  for (size_t r = 0; r < out.size(); ++r) {
    EXPECT_TRUE(out_buffers[r].intact()) << "wrote around result " << r;
    if (out[r].data == nullptr) continue;
    const std::string message = difference(load_tensor(node.results[r], out[r].data), expected[r], c.tolerance);
    EXPECT_EQ(message, "") << "result " << r << " " << to_string(node.results[r]);
  }
}

std::vector<Variant> runs_of(const BuiltCase& built) {
  const Node& node = built.node();
  const OpFacts& facts = op_facts(node.op);
  const size_t results = node.results.size();
  const std::vector<bool> all(results, true);
  std::vector<Variant> runs;
  if (facts.must_alias < 0) runs.push_back({all, -1, "all results"});
  for (size_t r = 0; results > 1 && r < results; ++r) {
    std::vector<bool> only(results, false);
    only[r] = true;
    runs.push_back({only, facts.must_alias, fmt::format("result {} only", r)});
  }
  std::vector<int> shared = facts.in_place;
  if (facts.must_alias >= 0) shared.push_back(facts.must_alias);
  for (int i : shared) {
    const auto at = static_cast<size_t>(i);
    if (at >= built.inputs.size() || !node.inputs[at].exists() || built.inputs[at].type != node.results[0]) continue;
    runs.push_back({all, i, fmt::format("in place of input {}", i)});
  }
  return runs;
}

class Parity : public testing::TestWithParam<int> {};

TEST_P(Parity, EveryRowAgreesWithTheReference) {
  const auto op = static_cast<Op>(GetParam());
  for (const Case& c : all_cases()) {
    if (c.op != op || c.large) continue;
    for (DType dtype : c.dtypes) {
      SCOPED_TRACE(case_name(c, dtype));
      const BuiltCase built = build_case(c, dtype);
      const std::vector<RefTensor> expected = evaluate_node(built.graph, built.node(), built.in(), true);
      for (const KernelRow& row : kernel_rows(op)) {
        if (!row.accepts(built.graph, built.node())) continue;
        for (const Variant& run : runs_of(built)) run_row(row, c, built, expected, run);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, Parity, testing::Range(0, static_cast<int>(all_ops().size())),
                         [](const auto& info) { return std::string(op_name(static_cast<Op>(info.param))); });

}  // namespace
}  // namespace octet::cpu
