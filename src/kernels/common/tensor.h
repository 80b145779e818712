// A kernel's view of an operand or a result, on either device.
#pragma once

#include "ir/graph.h"

namespace octet {

// Contiguous, in the device's memory; data is null for unused results and for absent inputs.
struct Tensor {
  void* data = nullptr;
  const TensorType* type = nullptr;
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  const Shape& shape() const { return type->shape; }
  DType dtype() const { return type->dtype; }
  int64_t elements() const { return type->shape.elements(); }
};

}  // namespace octet
