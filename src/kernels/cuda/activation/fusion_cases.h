// Cases of the activation fusions: for the test that compares them with their members, and for speed.
#pragma once

#include "kernels/cpu/testing/cases.h"

namespace octet::cuda {

struct ActivationFusion {
  std::string kind;  // "bias_gelu_quantize"; the members follow from it
  int64_t rows = 0, cols = 0;
  std::vector<std::string> results = {};  // body outputs, "gelu.0", "quantize.2"
  std::string scaling = "tensor";         // of quantize
  DType format = DType::kE4M3;            // of quantize
  bool tanh_form = true;                  // of gelu
  bool keeps_silu = true;                 // swiglu_grad: reads silu instead of making it again
  std::vector<DType> dtypes = {DType::kF32, DType::kBF16};
  bool special = false;  // rows of zeros, infinities, NaNs, very large and very small values first
  bool sliced = false;   // x (and up) are columns of one matrix, eight columns apart; no gradients
};
// Activations are x(...) of the case's type, biases f32.
cpu::Case activation_fusion_case(const ActivationFusion& fusion);

}  // namespace octet::cuda
