// Sets of types that rows of kernels are made for.
#pragma once

#include "base/dtype.h"

namespace octet {

inline bool is_wide_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16; }
inline bool is_f32_or_bf16(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

}  // namespace octet
