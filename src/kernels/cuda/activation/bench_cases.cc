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
  add("bias_gelu", {"bias.0", "gelu.0"});
  add("bias_gelu_amax", {"bias.0", "gelu.0", "amax.0"});
  add("swiglu", {"silu.0", "mul.0"});
  add("swiglu_amax", {"silu.0", "mul.0", "amax.0"});
  add("bias_gelu_amax", {"bias.0", "amax.0"});  // as recipe fp8-current has them
  cases.back().name += "_y_not_kept";
  add("swiglu_amax", {"amax.0"});
  cases.back().name += "_y_not_kept";
  add("swiglu_grad", {"dgate.0", "dup.0"});
  add("swiglu_grad_amax", {"dgate.0", "dup.0", "amax_dgate.0", "amax_dup.0"});
  add("gelu_grad_bias", {"gelu_grad.0", "bias_grad.0"});
  add("gelu_grad_bias_amax", {"gelu_grad.0", "bias_grad.0", "amax.0"});
  for (int64_t cols : {4096, 12288}) {
    cases.push_back(activation_fusion_case({.kind = "bias_grad_amax",
                                            .rows = 8192,
                                            .cols = cols,
                                            .results = {"bias_grad.0", "amax.0"},
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
    add("swiglu_quantize", with_codes({"silu.0"}), scaling);
    if (delayed) {  // as forward and backward of a step have them
      add("gelu_quantize", {"quantize.0", "quantize.1"});
      cases.back().name += "_codes";
      add("gelu_quantize", {"quantize.2", "quantize.3"});
      cases.back().name += "_transposed";
    }
    add("gelu_grad_bias_quantize", with_codes({"bias_grad.0"}), scaling, gradient);
    add("bias_grad_quantize", with_codes({"bias_grad.0"}), scaling, gradient);
    add("swiglu_grad_quantize", with_codes(with_codes({}, "quantize_dgate"), "quantize_dup"), scaling, gradient);
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
  for (int64_t rows : {1, 8, 64, 128, 2048}) serve("swiglu_quantize", rows, 11008);
  for (int64_t rows : {1, 8, 768}) serve("swiglu_quantize", rows, 14336);
  return cases;
}

}  // namespace octet::cuda
