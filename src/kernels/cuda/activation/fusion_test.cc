// Activation fusions on the device: equal to their members run one by one on the device, bit for bit, and in the place
// of operands wherever the plan may put them.
#include <gtest/gtest.h>

#include "kernels/cpu/testing/parity.h"
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
      expect("bias_gelu", {"bias.0", "gelu.0"});
      expect("bias_gelu", {"gelu.0"});
      expect("bias_gelu_amax", {"bias.0", "gelu.0", "amax.0"});
      expect("gelu_grad_bias", {"gelu_grad.0", "bias_grad.0"});
      expect("gelu_grad_amax", {"gelu_grad.0", "amax.0"});
      expect("gelu_grad_bias_amax", {"gelu_grad.0", "bias_grad.0", "amax.0"});
    }
  }
}

TEST_F(ActivationFusions, Swiglu) {
  for (const Size& s : kSizes) {
    expect_equal_to_members({"swiglu", s.rows, s.cols, {"silu.0", "mul.0"}});
    expect_equal_to_members({"swiglu", s.rows, s.cols, {"mul.0"}});
    expect_equal_to_members({"swiglu_amax", s.rows, s.cols, {"silu.0", "mul.0", "amax.0"}});
    for (bool keeps_silu : {true, false}) {
      const auto expect = [&](const char* kind, Results results) {
        if (!keeps_silu) results.push_back("silu.0");
        expect_equal_to_members(
            {.kind = kind, .rows = s.rows, .cols = s.cols, .results = results, .keeps_silu = keeps_silu});
      };
      expect("swiglu_grad", {"dgate.0", "dup.0"});
      expect("swiglu_grad", {"dsilu.0", "dgate.0", "dup.0"});
      expect("swiglu_grad_amax", {"dgate.0", "dup.0", "amax_dgate.0", "amax_dup.0"});
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
        expect("bias_gelu_quantize", with({"bias.0", "gelu.0"}, all));
        expect("bias_gelu_quantize", with({"bias.0"}, all), false);
        expect("bias_gelu_quantize", codes);
        expect("gelu_quantize", all);
        expect("gelu_quantize", all, false);
        expect("swiglu_quantize", with({"silu.0", "mul.0"}, all));
        expect("swiglu_quantize", codes);
        expect("gelu_grad_quantize", with({"gelu_grad.0"}, all));
        expect("gelu_grad_bias_quantize", with({"bias_grad.0"}, all));
        expect("gelu_grad_bias_quantize", with({"gelu_grad.0", "bias_grad.0"}, codes), false);
        expect("bias_grad_quantize", with({"bias_grad.0"}, all));
        expect("swiglu_grad_quantize",
               {"quantize_dgate.0", "quantize_dgate.1", "quantize_dgate.2", "quantize_dgate.3", "quantize_dgate.4",
                "quantize_dup.0", "quantize_dup.1", "quantize_dup.2", "quantize_dup.3", "quantize_dup.4"});
        expect("swiglu_grad_quantize", {"dgate.0", "dup.0", "quantize_dgate.0", "quantize_dup.0"});
      }
    }
  }
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
        expect("geglu_quantize", codes, tanh_form);
      }
      expect("swiglu_quantize", codes);
      expect("swiglu_quantize", {"quantize.1"});
      expect("relu_quantize", all);
      expect("relu_quantize", {"quantize.0"});
    }
  }
  for (const Size& s : {Size{7, 136}, Size{6, 9000}, Size{6, 33000}, Size{300, 264}}) {
    for (const char* kind :
         {"swiglu_quantize", "geglu_quantize", "bias_gelu_quantize", "gelu_quantize", "relu_quantize"}) {
      ActivationFusion fusion{kind, s.rows, s.cols, {"quantize.0", "quantize.1"}, "row"};
      fusion.dtypes = {DType::kBF16}, fusion.special = true, fusion.sliced = true;
      const cpu::BuiltCase built = cpu::build_case(activation_fusion_case(fusion), DType::kBF16, false);
      EXPECT_STREQ(select_kernel(built.graph, built.node()).name, "activation_rows");
      expect_equal_to_members(fusion);
    }
  }
  for (const Size& s : {Size{33, 75}, Size{5, 264}}) {
    const auto expect = [&](const char* kind, const Results& results, DType format) {
      expect_equal_to_members({kind, s.rows, s.cols, results, "row", format});
    };
    expect("bias_gelu_quantize", {"bias.0", "gelu.0", "quantize.0", "quantize.1"}, DType::kE4M3);
    expect("geglu_quantize", {"gelu.0", "mul.0", "quantize.0", "quantize.2", "quantize.3"}, DType::kE4M3);
    expect("relu_quantize", {"relu.0", "quantize.0", "quantize.1"}, DType::kE5M2);
    expect("swiglu_quantize", {"quantize.0", "quantize.1"}, DType::kE5M2);
  }
}

}  // namespace
}  // namespace octet::cuda
