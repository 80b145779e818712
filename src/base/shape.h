// Static shapes. A scalar value on the device is Shape{1}. Sizes are int64_t everywhere.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace octet {

struct Shape {
  std::vector<int64_t> dims;

  Shape() = default;
  Shape(std::initializer_list<int64_t> list) : dims(list) {}
  explicit Shape(std::vector<int64_t> list) : dims(std::move(list)) {}
  int rank() const { return static_cast<int>(dims.size()); }
  int64_t operator[](int axis) const { return dims[axis < 0 ? axis + rank() : axis]; }  // negative axes from the end
  int64_t& operator[](int axis) { return dims[axis < 0 ? axis + rank() : axis]; }
  int64_t elements() const;  // product of dims; throws kInvalidArgument on int64 overflow or a negative dim
  int64_t rows() const;      // product of all but the last dim (1 for rank 1)
  int64_t cols() const;      // the last dim
  bool operator==(const Shape&) const = default;
};

std::string to_string(const Shape& shape);  // "[4,128]"

struct TensorType {
  DType dtype = DType::kF32;
  Shape shape;
  int64_t bytes() const { return storage_bytes(dtype, shape.elements()); }
  bool operator==(const TensorType&) const = default;
};

std::string to_string(const TensorType& type);  // "bf16[4,128]"

}  // namespace octet
