#include "kernels/cuda/bench_cases.h"
#include "kernels/cuda/activation/fusion_cases.h"

namespace octet::cuda {

std::vector<cpu::Case> activation_bench_cases() {
  using Results = std::vector<std::string>;
  std::vector<cpu::Case> cases;
  const auto add = [&](const char* kind, Results results, const char* scaling = "tensor", DType format = DType::kE4M3) {
    cases.push_back(activation_fusion_case({.kind = kind,
                                            .rows = 8192,
                                            .cols = 16384,
                                            .results = std::move(results),
                                            .scaling = scaling,
                                            .format = format,
                                            .dtypes = {DType::kBF16}}));
  };
  add("bias_gelu", {"bias.0", "act.0"});
  add("bias_gelu_amax", {"bias.0", "act.0", "amax.0"});
  add("silu_gated", {"act.0", "y.0"});
  add("silu_gated_amax", {"act.0", "y.0", "amax.0"});
  add("bias_gelu_amax", {"bias.0", "amax.0"});  // as recipe fp8-current has them
  cases.back().name += "_y_not_kept";
  add("silu_gated_amax", {"amax.0"});
  cases.back().name += "_y_not_kept";
  add("silu_gated_grad", {"dx.0", "dup.0"});
  add("silu_gated_grad_amax", {"dx.0", "dup.0", "amax_dx.0", "amax_dup.0"});
  add("gelu_gated_amax", {"amax.0"});
  add("gelu_gated_grad_amax", {"dx.0", "dup.0", "amax_dx.0", "amax_dup.0"});
  add("bias_relu_amax", {"bias.0", "amax.0"});
  add("gelu_amax", {"amax.0"});
  add("gelu_grad_sum", {"dx.0", "sum.0"});
  add("gelu_grad_sum_amax", {"dx.0", "sum.0", "amax.0"});
  for (int64_t cols : {4096, 12288}) {
    cases.push_back(activation_fusion_case({.kind = "plain_sum_amax",
                                            .rows = 8192,
                                            .cols = cols,
                                            .results = {"sum.0", "amax.0"},
                                            .dtypes = {DType::kBF16}}));
  }
  for (const char* scaling : {"tensor", "1x128"}) {
    const bool delayed = std::string(scaling) == "tensor";
    const DType gradient = delayed ? DType::kE5M2 : DType::kE4M3;
    const auto with_codes = [&](Results list, const std::string& name = "quantize") {
      for (const char* result : {".0", ".1", ".2", ".3"}) list.push_back(name + result);
      if (delayed) list.push_back(name + ".4");
      return list;
    };
    add("bias_gelu_quantize", with_codes({"bias.0"}), scaling);
    add("silu_gated_quantize", with_codes({"act.0"}), scaling);
    if (delayed) {  // as forward and backward of a step have them
      add("gelu_quantize", {"quantize.0", "quantize.1"});
      cases.back().name += "_codes";
      add("gelu_quantize", {"quantize.2", "quantize.3"});
      cases.back().name += "_transposed";
    }
    add("gelu_grad_sum_quantize", with_codes({"sum.0"}), scaling, gradient);
    add("plain_sum_quantize", with_codes({"sum.0"}), scaling, gradient);
    add("silu_gated_grad_quantize", with_codes(with_codes({}, "quantize_dx"), "quantize_dup"), scaling, gradient);
  }
  // Serving: codes per row (token). The inner sizes of GPT-J, Llama-2 and Llama-3, by tokens of a step.
  const auto serve = [&](const char* kind, int64_t rows, int64_t cols) {
    cases.push_back(activation_fusion_case({.kind = kind,
                                            .rows = rows,
                                            .cols = cols,
                                            .results = {"quantize.0", "quantize.1"},
                                            .scaling = "row",
                                            .dtypes = {DType::kBF16}}));
  };
  for (int64_t rows : {1, 8, 1024}) {
    serve("gelu_quantize", rows, 16384);
    serve("bias_gelu_quantize", rows, 16384);
  }
  for (int64_t rows : {1, 8, 64, 128, 2048}) serve("silu_gated_quantize", rows, 11008);
  for (int64_t rows : {1, 8, 768}) serve("silu_gated_quantize", rows, 14336);
  return cases;
}

}  // namespace octet::cuda
