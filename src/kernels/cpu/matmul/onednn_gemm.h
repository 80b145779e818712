// GEMMs by oneDNN, loaded at run time: float32, and bf16 with float32 sums if the CPU has the instructions.
//
// Null if the library is absent or refuses the case: the fallback is our own GEMM. An OnednnGemm belongs to one bound
// node; oneDNN shares compiled code between equal shapes.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "base/shape.h"

namespace octet::cpu {

struct OnednnGemmSpec {
  int64_t m = 0, n = 0, k = 0;
  DType operands = DType::kF32, out = DType::kF32;  // f32 | bf16
  bool trans_a = false, trans_b = false;
  bool accumulate = false;  // out += product
  bool bias = false;        // + bias [N]
  DType bias_dtype = DType::kF32;
};

using OnednnGemm =
    std::function<void(const void* a, const void* b, const void* bias, void* out, std::span<std::byte> scratch)>;
OnednnGemm make_onednn_gemm(const OnednnGemmSpec& spec);

// "2.6.3", or "" if the library is absent.
const char* onednn_version();

}  // namespace octet::cpu
