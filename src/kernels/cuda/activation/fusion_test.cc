// Activation fusions on the device: equal to their members run one by one on the device, bit for bit, and in the place
// of operands wherever the plan may put them.
#include <gtest/gtest.h>

#include "kernels/cpu/testing/conformance.h"
#include "kernels/cuda/activation/fusion_cases.h"
#include "kernels/cuda/testing/on_device.h"

namespace octet::cuda {
namespace {

using Results = std::vector<std::string>;

class ActivationFusions : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    context_ = test_context(&why);
    if (context_ == nullptr) GTEST_SKIP() << why;
  }
  void expect_equal_to_members(const ActivationFusion& fusion) {
    const cpu::Case c = activation_fusion_case(fusion);
    for (DType dtype : c.dtypes) {
      SCOPED_TRACE(cpu::case_name(c, dtype));
      for (const std::string& failure : fusion_failures(*context_, cpu::build_case(c, dtype))) ADD_FAILURE() << failure;
    }
  }
  DeviceContext* context_ = nullptr;
};

struct Size {
  int64_t rows, cols;
};
// One tile and less, edge tiles in both directions, columns that no 16-byte access fits.
constexpr Size kSizes[] = {{1, 16}, {128, 128}, {144, 272}, {301, 512}, {300, 136}, {33, 75}};

TEST_F(ActivationFusions, Gelu) {
  for (const Size& s : kSizes) {
    for (bool tanh_form : {true, false}) {
      const auto expect = [&](const char* kind, Results results) {
        expect_equal_to_members(
            {.kind = kind, .rows = s.rows, .cols = s.cols, .results = results, .tanh_form = tanh_form});
      };
      expect("bias_gelu", {"bias.0", "act.0"});
      expect("bias_gelu", {"act.0"});
      expect("bias_gelu_amax", {"bias.0", "act.0", "amax.0"});
      expect("gelu_grad_sum", {"dx.0", "sum.0"});
      expect("gelu_grad_amax", {"dx.0", "amax.0"});
      expect("gelu_grad_sum_amax", {"dx.0", "sum.0", "amax.0"});
    }
  }
}

TEST_F(ActivationFusions, Swiglu) {
  for (const Size& s : kSizes) {
    expect_equal_to_members({"silu_gated", s.rows, s.cols, {"act.0", "y.0"}});
    expect_equal_to_members({"silu_gated", s.rows, s.cols, {"y.0"}});
    expect_equal_to_members({"silu_gated_amax", s.rows, s.cols, {"act.0", "y.0", "amax.0"}});
    for (bool keeps_activation : {true, false}) {
      const auto expect = [&](const char* kind, Results results) {
        if (!keeps_activation) results.push_back("act.0");
        expect_equal_to_members(
            {.kind = kind, .rows = s.rows, .cols = s.cols, .results = results, .keeps_activation = keeps_activation});
      };
      expect("silu_gated_grad", {"dx.0", "dup.0"});
      expect("silu_gated_grad", {"da.0", "dx.0", "dup.0"});
      expect("silu_gated_grad_amax", {"dx.0", "dup.0", "amax_dx.0", "amax_dup.0"});
    }
  }
}

TEST_F(ActivationFusions, Codes) {
  const Results codes = {"quantize.0", "quantize.1"};
  const Results all = {"quantize.0", "quantize.1", "quantize.2", "quantize.3", "quantize.4"};
  const auto with = [](Results list, const Results& more) {
    list.insert(list.end(), more.begin(), more.end());
    return list;
  };
  for (const Size& s : kSizes) {
    for (const char* scaling : {"tensor", "1x128", "128x128"}) {
      for (DType format : {DType::kE4M3, DType::kE5M2}) {
        const auto expect = [&](const char* kind, const Results& results, bool tanh_form = true) {
          expect_equal_to_members({kind, s.rows, s.cols, results, scaling, format, tanh_form, true, {DType::kBF16}});
        };
        expect("bias_gelu_quantize", with({"bias.0", "act.0"}, all));
        expect("bias_gelu_quantize", with({"bias.0"}, all), false);
        expect("bias_gelu_quantize", codes);
        expect("gelu_quantize", all);
        expect("gelu_quantize", all, false);
        expect("silu_gated_quantize", with({"act.0", "y.0"}, all));
        expect("silu_gated_quantize", codes);
        expect("gelu_grad_quantize", with({"dx.0"}, all));
        expect("gelu_grad_sum_quantize", with({"sum.0"}, all));
        expect("gelu_grad_sum_quantize", with({"dx.0", "sum.0"}, codes), false);
        expect("plain_sum_quantize", with({"sum.0"}, all));
        expect("silu_gated_grad_quantize",
               {"quantize_dx.0", "quantize_dx.1", "quantize_dx.2", "quantize_dx.3", "quantize_dx.4", "quantize_dup.0",
                "quantize_dup.1", "quantize_dup.2", "quantize_dup.3", "quantize_dup.4"});
        expect("silu_gated_grad_quantize", {"dx.0", "dup.0", "quantize_dx.0", "quantize_dup.0"});
      }
    }
  }
}

// Every activation in every form that has kernels, in every schedule: by a kernel of its own, not member by member.
TEST_F(ActivationFusions, EveryActivationInEverySchedule) {
  const auto expect = [&](const std::string& kind, const char* kernel, const Results& results, bool tanh_form,
                          const char* scaling = "tensor", DType format = DType::kE4M3, bool keeps_activation = true) {
    ActivationFusion fusion{kind, 144, 272, results, scaling, format, tanh_form, keeps_activation, {DType::kBF16}};
    fusion.special = kind.find("amax") == std::string::npos;  // of NaNs any kernel gives one of any sign
    const cpu::BuiltCase built = cpu::build_case(activation_fusion_case(fusion), DType::kBF16, false);
    SCOPED_TRACE(kind);
    EXPECT_STREQ(select_kernel(built.graph, built.node()).name, kernel);
    expect_equal_to_members(fusion);
  };
  const Results codes = {"quantize.0", "quantize.1", "quantize.2", "quantize.3"}, row = {"quantize.0", "quantize.1"};
  const auto forward = [&](const std::string& fn, bool tanh_form, bool product) {
    Results made = {"act.0"};
    if (product) made.push_back("y.0");
    Results with_amax = made;
    with_amax.push_back("amax.0");
    expect(fn + "_amax", "activation_pointwise", with_amax, tanh_form);
    expect(fn + "_amax", "activation_pointwise", {"amax.0"}, tanh_form);
    expect(fn + "_quantize", "activation_tiles", codes, tanh_form);
    expect(fn + "_quantize", "activation_tiles", codes, tanh_form, "1x128");
    expect(fn + "_quantize", "activation_rows", row, tanh_form, "row");
  };
  const auto gradient = [&](const std::string& fn, bool tanh_form, bool keeps_activation) {
    expect(fn + "_grad_amax", "activation_grad_pointwise", {"dx.0", "amax.0"}, tanh_form, "", DType::kE4M3,
           keeps_activation);
    expect(fn + "_grad_sum", "activation_grad_tiles", {"dx.0", "sum.0"}, tanh_form, "", DType::kE4M3, keeps_activation);
    expect(fn + "_grad_sum_amax", "activation_grad_tiles", {"dx.0", "sum.0", "amax.0"}, tanh_form, "", DType::kE4M3,
           keeps_activation);
    expect(fn + "_grad_sum_quantize", "activation_grad_tiles",
           {"sum.0", "quantize.0", "quantize.1", "quantize.2", "quantize.3"}, tanh_form, "tensor", DType::kE5M2,
           keeps_activation);
    expect(fn + "_grad_quantize", "activation_grad_tiles", codes, tanh_form, "1x128", DType::kE4M3, keeps_activation);
  };
  for (const auto& [fn, tanh_form] : {std::pair{"gelu", true}, {"gelu", false}, {"relu", true}}) {
    forward(fn, tanh_form, false);
    gradient(fn, tanh_form, true);
    const std::string biased = std::string("bias_") + fn;
    expect(biased, "activation_pointwise", {"bias.0", "act.0"}, tanh_form);
    expect(biased + "_amax", "activation_pointwise", {"bias.0", "amax.0"}, tanh_form);
    expect(biased + "_quantize", "activation_tiles", {"bias.0", "quantize.0", "quantize.1"}, tanh_form);
  }
  for (const std::string gated : {"silu_gated", "gelu_gated"}) {
    const bool tanh_form = true;
    forward(gated, tanh_form, true);
    for (bool keeps : {true, false}) {
      expect(gated + "_grad", "activation_grad_pointwise", {"dx.0", "dup.0"}, tanh_form, "", DType::kE4M3, keeps);
      expect(gated + "_grad_amax", "activation_grad_pointwise", {"dx.0", "dup.0", "amax_dx.0", "amax_dup.0"}, tanh_form,
             "", DType::kE4M3, keeps);
      for (const char* scaling : {"tensor", "1x128"})
        expect(gated + "_grad_quantize", "activation_grad_tiles",
               {"quantize_dx.0", "quantize_dx.1", "quantize_dx.2", "quantize_dup.0", "quantize_dup.2"}, tanh_form,
               scaling, scaling[0] == 't' ? DType::kE5M2 : DType::kE4M3, keeps);
    }
  }
  forward("relu_squared", true, true);
  for (bool keeps : {true, false}) gradient("relu_squared", true, keeps);
  expect("bias_relu_squared_amax", "activation_pointwise", {"bias.0", "amax.0"}, true);
  expect("bias_relu_squared_quantize", "activation_rows", row, true, "row");
}

// A scale a row: rows that are held in one, two and four groups a thread and wider ones, among few rows
// and among many. Columns that are no multiple of eight, and results that only training reads, go member by member.
TEST_F(ActivationFusions, CodesPerRow) {
  constexpr Size kRowSizes[] = {{1, 8},     {7, 136},   {6, 1032},  {8, 4096}, {6, 9000},
                                {6, 16392}, {6, 33000}, {300, 264}, {600, 40}, {265, 2056}};
  for (const Size& s : kRowSizes) {
    for (bool special : {false, true}) {
      const auto expect = [&](const char* kind, const Results& results, bool tanh_form = true) {
        const ActivationFusion fusion{kind,         s.rows,    s.cols, results,        "row",
                                      DType::kE4M3, tanh_form, true,   {DType::kBF16}, special};
        const cpu::BuiltCase built = cpu::build_case(activation_fusion_case(fusion), DType::kBF16, false);
        EXPECT_STREQ(select_kernel(built.graph, built.node()).name, "activation_rows");
        expect_equal_to_members(fusion);
      };
      const Results codes = {"quantize.0", "quantize.1"}, all = {"quantize.0", "quantize.1", "quantize.4"};
      for (bool tanh_form : {true, false}) {
        expect("gelu_quantize", codes, tanh_form);
        expect("bias_gelu_quantize", all, tanh_form);
        expect("gelu_gated_quantize", codes, tanh_form);
      }
      expect("silu_gated_quantize", codes);
      expect("silu_gated_quantize", {"quantize.1"});
      expect("relu_quantize", all);
      expect("relu_quantize", {"quantize.0"});
    }
  }
  for (const Size& s : {Size{7, 136}, Size{6, 9000}, Size{6, 33000}, Size{300, 264}}) {
    for (const char* kind :
         {"silu_gated_quantize", "gelu_gated_quantize", "bias_gelu_quantize", "gelu_quantize", "relu_quantize"}) {
      ActivationFusion fusion{kind, s.rows, s.cols, {"quantize.0", "quantize.1"}, "row"};
      fusion.dtypes = {DType::kBF16}, fusion.special = true, fusion.sliced = true;
      const cpu::BuiltCase built = cpu::build_case(activation_fusion_case(fusion), DType::kBF16, false);
      EXPECT_STREQ(select_kernel(built.graph, built.node()).name, "activation_rows");
      expect_equal_to_members(fusion);
      fusion.format = DType::kI8;
      expect_equal_to_members(fusion);
    }
  }
  for (const Size& s : {Size{33, 75}, Size{5, 264}}) {
    const auto expect = [&](const char* kind, const Results& results, DType format) {
      expect_equal_to_members({kind, s.rows, s.cols, results, "row", format});
    };
    expect("bias_gelu_quantize", {"bias.0", "act.0", "quantize.0", "quantize.1"}, DType::kE4M3);
    expect("gelu_gated_quantize", {"act.0", "y.0", "quantize.0", "quantize.2", "quantize.3"}, DType::kE4M3);
    expect("relu_quantize", {"act.0", "quantize.0", "quantize.1"}, DType::kE5M2);
    expect("silu_gated_quantize", {"quantize.0", "quantize.1"}, DType::kE5M2);
  }
}

}  // namespace
}  // namespace octet::cuda
