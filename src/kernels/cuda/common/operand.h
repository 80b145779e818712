// A float tensor whose type is known when the kernel runs: loaded as float32, rounded once when stored.
#pragma once

#include "base/dtype.h"

namespace octet::cuda {

struct Operand {
  void* data = nullptr;
  DType dtype = DType::kF32;
};

}  // namespace octet::cuda
