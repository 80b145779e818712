// Cases of the norm fusions: for the test that compares them with their members, and for speed.
#pragma once

#include "kernels/cpu/testing/cases.h"

namespace octet::cuda {

struct NormFusion {
  std::string kind;  // "add_norm_quantize"; the members follow from it
  bool layer = true;
  int64_t rows = 0, cols = 0;
  std::string scaling = "tensor";         // of quantize
  DType format = DType::kE4M3;            // of quantize
  std::vector<std::string> results = {};  // body outputs, "norm.0", "quantize.2"
};
// Activations are x(...) of the case's type, weights f32.
cpu::Case norm_fusion_case(const NormFusion& fusion);

}  // namespace octet::cuda
