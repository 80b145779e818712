// Norms at the sizes of models: 8192 tokens of hidden 4096, and the widths around it.
#include <algorithm>

#include "kernels/cuda/bench_cases.h"
#include "kernels/cuda/norm/fusion_cases.h"

namespace octet::cuda {

std::vector<cpu::Case> norm_bench_cases() {
  std::vector<cpu::Case> cases;
  struct Size {
    int64_t rows, cols;
  };
  for (const Size& s : {Size{8192, 4096}, Size{16384, 12288}, Size{65536, 768}, Size{16384, 2048}}) {
    const std::string name = fmt::format("{}x{}", s.rows, s.cols);
    const cpu::CaseInput x = cpu::x({s.rows, s.cols}), channels = cpu::normal(DType::kF32, {s.cols}),
                         statistic = cpu::normal(DType::kF32, {s.rows});
    const std::vector<DType> dtypes = {DType::kBF16};
    const Attrs eps = {{"eps", 1e-5}};
    cases.push_back({Op::kLayerNorm, name, {x, channels, channels}, eps, {}, dtypes});
    cases.push_back({Op::kRmsNorm, name, {x, channels}, eps, {}, dtypes});
    cases.push_back({Op::kLayerNormGrad, name, {x, channels, statistic, statistic, x}, {}, {}, dtypes});
    cases.push_back({Op::kRmsNormGrad, name, {x, channels, statistic, x}, {}, {}, dtypes});
  }
  for (const Size& s : {Size{8192, 4096}, Size{16384, 12288}}) {
    bool layer = false;
    const auto add = [&](const char* kind, const char* scaling, std::vector<std::string> results) {
      cases.push_back(norm_fusion_case(
          {.kind = kind, .layer = layer, .rows = s.rows, .cols = s.cols, .scaling = scaling, .results = results}));
      cases.back().dtypes = {DType::kBF16};
      if (std::find(results.begin(), results.end(), "quantize.2") != results.end()) cases.back().name += "_transposed";
    };
    add("add_norm", "tensor", {"add.0", "norm.0", "norm.1"});
    add("add_norm_amax", "tensor", {"add.0", "norm.0", "norm.1", "amax.0"});
    add("norm_amax", "tensor", {"norm.0", "norm.1", "amax.0"});
    add("norm_quantize", "tensor", {"norm.1", "quantize.0", "quantize.4"});
    add("norm_quantize", "tensor", {"norm.1", "quantize.0", "quantize.2", "quantize.4"});
    add("add_norm_quantize", "tensor", {"add.0", "norm.1", "quantize.0", "quantize.2", "quantize.4"});
    add("norm_quantize", "1x128", {"norm.1", "quantize.0", "quantize.1"});
    add("norm_quantize", "1x128", {"norm.1", "quantize.0", "quantize.1", "quantize.2", "quantize.3"});
    add("add_norm_quantize", "1x128", {"add.0", "norm.1", "quantize.0", "quantize.1", "quantize.2", "quantize.3"});
    add("norm_grad_add", "tensor", {"norm_grad.1", "add.0"});
    add("norm_grad_add_amax", "tensor", {"norm_grad.1", "add.0", "amax.0"});
    add("norm_grad_add_bias_amax", "tensor", {"norm_grad.1", "add.0", "bias_grad.0", "amax.0"});
    layer = true;
    add("add_norm_amax", "tensor", {"add.0", "norm.0", "norm.1", "norm.2", "amax.0"});
    add("norm_grad_add_bias_amax", "tensor", {"norm_grad.1", "norm_grad.2", "add.0", "bias_grad.0", "amax.0"});
  }
  // Serving: codes per row (token), by tokens of a step; layer_norm as in GPT-J, rms_norm as in Llama.
  for (int64_t rows : {1, 8, 64, 128, 768, 1024, 2048}) {
    for (bool layer : {false, true}) {
      for (const char* kind : {"norm_quantize", "add_norm_quantize"}) {
        std::vector<std::string> results = {"quantize.0", "quantize.1"};
        if (std::string(kind) == "add_norm_quantize") results.push_back("add.0");
        cases.push_back(norm_fusion_case(
            {.kind = kind, .layer = layer, .rows = rows, .cols = 4096, .scaling = "row", .results = results}));
        cases.back().dtypes = {DType::kBF16};
      }
    }
    const cpu::CaseInput channels = cpu::normal(DType::kF32, {4096});
    cases.push_back({Op::kRmsNorm,
                     fmt::format("{}x4096", rows),
                     {cpu::x({rows, 4096}), channels},
                     {{"eps", 1e-5}},
                     {},
                     {DType::kBF16}});
  }
  return cases;
}

}  // namespace octet::cuda
