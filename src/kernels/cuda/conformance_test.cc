// Every CUDA kernel entry against the reference, over the whole case list; fusions against their members, bit for bit.
#include "kernels/cpu/testing/conformance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>

#include "base/error.h"
#include "ir/fusion.h"
#include "kernels/cuda/testing/on_device.h"

namespace octet::cuda {
namespace {

// The case list's tolerances are made for float32 arithmetic. Attention on tensor cores multiplies probabilities P and
// score gradients dS that were rounded to bf16, each off by up to 2^-9 of itself; all sums are float32. The error of a
// result is then up to 2^-9 of the sum of its terms' magnitudes; how large it is as a whole, kTensorCoreError checks.
const cpu::Tolerance kTensorCoreAttention{
    .relative = 0x1p-9, .absolute = 0x1p-8, .reason = "P in bf16: 2^-9 of sums P |v| up to 2"};
const cpu::Tolerance kTensorCoreAttentionGrad{
    .relative = 0x1p-8,
    .absolute = 0x1p-6,
    .reason = "P and dS in bf16: 2^-9 of sums |dS k|, |dS q|, |P dout| over queries and grouped heads, up to 8"};
// Root of the squared error over the squared values of a result: P or dS, and the result, rounded to bf16 have errors
// evenly spread up to 2^-9, a root mean square of 2^-9 / sqrt(3) each; dS next to delta twice that.
constexpr double kTensorCoreError = 0x1p-8;

// Sums of FP8 products stay in the tensor cores' short accumulators (docs/numerics.md, fast accumulation).
const cpu::Tolerance kFastAccumulation{
    .relative = 0, .absolute = 0.06, .reason = "2^-10 of the largest result, about 60, at K up to 144"};

// So do those of a group of codes by integers, and of a block of 128, at most 128 products.
const cpu::Tolerance kShortSums{.relative = 0x1p-8,
                                .absolute = 0x1p-7,
                                .reason = "2^-13 of the largest result, about 60, and the result's rounding"};

bool on_tensor_cores(const KernelEntry& entry) {
  const std::string_view name = entry.name;
  return name.find("attention") != name.npos &&
         (name.ends_with("_mma") || name.ends_with("_wgmma") || name.ends_with("_cudnn"));
}

// Libraries' kernels, where OCTET_TEST_OWN_KERNELS is set: tools that do not know them (scripts/sanitize_gpu.sh).
bool is_left_out(const KernelEntry& entry) {
  static const bool own_only = std::getenv("OCTET_TEST_OWN_KERNELS") != nullptr;
  const std::string_view name = entry.name;
  return own_only && (name.find("cublaslt") != name.npos || name.find("cudnn") != name.npos ||
                      name.find("split") != name.npos);  // matmul_split's products are the library's
}

cpu::Tolerance tolerance_of(const KernelEntry& entry, const cpu::Case& c) {
  if (entry.name == std::string_view("scaled_grouped_matmul_wgmma"))
    return c.attrs.get_or<std::string>("scaling_a", "") == "1x128" ? kShortSums : kFastAccumulation;
  const bool int4 = entry.name == std::string_view("scaled_matmul_int4") ||
                    entry.name == std::string_view("scaled_grouped_matmul_int4");
  if (int4 && c.inputs[0].dtype == DType::kE4M3) return kShortSums;
  if (!on_tensor_cores(entry)) return c.tolerance;
  return entry.op == Op::kAttentionGrad ? kTensorCoreAttentionGrad : kTensorCoreAttention;
}

// Some cases of an op: ops with many are several tests, so that tests take alike and split well over processes.
struct Part {
  Op op;
  std::vector<const cpu::Case*> cases;
  size_t number = 0, of = 1;
};

void PrintTo(const Part& part, std::ostream* out) {
  *out << part.cases.size() << " cases";
  if (!part.cases.empty()) *out << ", " << part.cases.front()->name << " .. " << part.cases.back()->name;
}

std::vector<Part> parts() {
  constexpr size_t kCases = 16;
  std::vector<Part> all;
  for (const OpInfo& info : all_ops()) {
    std::vector<Part> of_op = {{.op = info.op}};
    for (const cpu::Case& c : cpu::all_cases()) {
      if (c.op != info.op || c.large) continue;
      if (of_op.back().cases.size() == kCases) of_op.push_back({.op = info.op, .number = of_op.size()});
      of_op.back().cases.push_back(&c);
    }
    for (Part& part : of_op) {
      part.of = of_op.size();
      all.push_back(std::move(part));
    }
  }
  return all;
}

class CudaConformance : public testing::TestWithParam<Part> {
 protected:
  void SetUp() override {
    std::string why;
    context_ = test_context(&why);
    if (context_ == nullptr) GTEST_SKIP() << why;
  }
  DeviceContext* context_ = nullptr;
};

TEST_P(CudaConformance, EveryRowAgreesWithTheReference) {
  for (const cpu::Case* entry : GetParam().cases) {
    const cpu::Case& c = *entry;
    for (DType dtype : c.dtypes) {
      SCOPED_TRACE(cpu::case_name(c, dtype));
      const cpu::BuiltCase built = cpu::build_case(c, dtype);
      const auto expected = cpu::evaluate_node(built.graph, built.node(), built.in(), true);
      for (const KernelEntry& entry : kernel_entries(c.op)) {
        if (is_left_out(entry) || !entry.takes(built.graph, built.node())) continue;
        const auto kernel = on_device(*context_, entry, built.graph, built.node());
        for (const std::string& failure : cpu::check_kernel(entry.name, kernel, built.graph, built.node(), built.inputs,
                                                            expected, tolerance_of(entry, c)))
          ADD_FAILURE() << failure;
      }
    }
  }
}

// What the type rule admits beside one type for all operands, an entry computes right or refuses: every case with one
// of its operands in float32 among bf16 ones, or the other way round.
TEST(CudaConformanceRows, OperandsOfOtherTypesAreComputedRightOrRefused) {
  std::string why;
  DeviceContext* context = test_context(&why);
  if (context == nullptr) GTEST_SKIP() << why;
  // Beside a float32 operand a result has more digits than bf16 before it is rounded: from float32, not from the exact
  // value, it may go to the other neighbour.
  constexpr cpu::Neighbours kTies{.share = 0.01};
  int compared = 0;
  for (const cpu::Case& c : cpu::all_cases()) {
    for (DType dtype : c.dtypes) {
      if (c.large || (dtype != DType::kF32 && dtype != DType::kBF16)) continue;
      for (size_t i = 0; i < c.inputs.size(); ++i) {
        cpu::Case mixed = c;
        if (mixed.inputs[i].absent || mixed.inputs[i].dtype) continue;  // of the case's own type, as most are
        mixed.inputs[i].dtype = dtype == DType::kF32 ? DType::kBF16 : DType::kF32;
        std::optional<cpu::BuiltCase> built;
        try {
          built = cpu::build_case(mixed, dtype);
        } catch (const Error&) {
          continue;  // the type rule refuses it
        }
        const auto& body = built->node().body;  // a product before its bias is not rounded (docs/numerics.md)
        if (body != nullptr && fusion_producer(*body) == Producer::kProduct) continue;
        SCOPED_TRACE(
            fmt::format("{}, operand {} is {}", cpu::case_name(c, dtype), i, dtype_name(*mixed.inputs[i].dtype)));
        std::vector<cpu::RefTensor> expected;
        for (const KernelEntry& entry : kernel_entries(c.op)) {
          if (is_left_out(entry) || !entry.takes(built->graph, built->node())) continue;
          if (expected.empty()) expected = cpu::evaluate_node(built->graph, built->node(), built->in(), true);
          const auto kernel = on_device(*context, entry, built->graph, built->node());
          for (const std::string& failure : cpu::check_kernel(entry.name, kernel, built->graph, built->node(),
                                                              built->inputs, expected, tolerance_of(entry, c), kTies))
            ADD_FAILURE() << failure;
          ++compared;
        }
      }
    }
  }
  EXPECT_GT(compared, 100);
}

// Cases in which a library is known to have no kernel, so that an entry runs its fallback: its own kernel is not
// checked there.
struct KnownFallback {
  const char *entry, *name;  // of the case with its type, as case_name gives it
  const char* reason;
};
constexpr std::array<KnownFallback, 0> kKnownFallbacks = {};

bool is_known_fallback(const std::string& entry, const std::string& name) {
  return std::any_of(kKnownFallbacks.begin(), kKnownFallbacks.end(),
                     [&](const KnownFallback& known) { return entry == known.entry && name == known.name; });
}

TEST(CudaConformanceRows, EveryRowRunsItsOwnKernelWhereNoFallbackIsListed) {
  std::string why;
  DeviceContext* context = test_context(&why);
  if (context == nullptr) GTEST_SKIP() << why;
  for (const cpu::Case& c : cpu::all_cases()) {
    if (c.large) continue;
    for (DType dtype : c.dtypes) {
      const cpu::BuiltCase built = cpu::build_case(c, dtype, false);
      const std::string name = cpu::case_name(c, dtype);
      for (const KernelEntry& entry : kernel_entries(c.op)) {
        if (!entry.takes(built.graph, built.node())) continue;
        const BoundKernel kernel = entry.bind(*context, built.graph, built.node());
        const bool falls_back = kernel.fallback_kernel != nullptr;
        EXPECT_EQ(falls_back, is_known_fallback(entry.name, name))
            << "{\"" << entry.name << "\", \"" << name << "\"} "
            << (falls_back
                    ? std::string("runs ") + kernel.fallback_kernel + ": mend what it takes, or list it with its reason"
                    : "has a kernel: take it off the list");
      }
    }
  }
}

TEST(CudaAttention, TensorCoresAreAsExactAsTheirTypes) {
  std::string why;
  DeviceContext* context = test_context(&why);
  if (context == nullptr) GTEST_SKIP() << why;
  for (const cpu::Case& c : cpu::all_cases()) {
    if ((c.op != Op::kAttention && c.op != Op::kAttentionGrad && c.op != Op::kPagedAttention) || c.large) continue;
    const cpu::BuiltCase built = cpu::build_case(c, DType::kBF16);
    const auto expected = cpu::evaluate_node(built.graph, built.node(), built.in(), false);
    for (const KernelEntry& entry : kernel_entries(c.op)) {
      if (!on_tensor_cores(entry) || is_left_out(entry) || !entry.takes(built.graph, built.node())) continue;
      const auto actual = run_row(*context, entry, built.graph, built.node(), built.inputs);
      for (size_t r = 0; r < expected.size(); ++r) {
        double error = 0, size = 0;
        for (size_t i = 0; i < expected[r].values.size(); ++i) {
          const double want = expected[r].values[i];
          const double is = load_element(expected[r].type.dtype, actual[r].data(), static_cast<int64_t>(i));
          error += (is - want) * (is - want), size += want * want;
        }
        EXPECT_LE(std::sqrt(error), kTensorCoreError * std::sqrt(size))
            << entry.name << " of " << cpu::case_name(c, DType::kBF16) << ", result " << r << ": relative error "
            << std::sqrt(error / size);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, CudaConformance, testing::ValuesIn(parts()), [](const auto& info) {
  const Part& part = info.param;
  return part.of == 1 ? std::string(op_name(part.op)) : fmt::format("{}_{}", op_name(part.op), part.number + 1);
});

}  // namespace
}  // namespace octet::cuda
