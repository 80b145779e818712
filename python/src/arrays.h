// Arrays of numpy, of DLPack and of Python's buffers: values in, and memory of Octet's out.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/shape.h"

namespace octet::python {

namespace nb = nanobind;

// An array of the caller's, whose memory is held while this is.
class ArrayIn {
 public:
  // `what` names it in errors: "input x". Throws for what is no array, for types that Octet lacks and for memory of
  // another device. Types of ml_dtypes are known by their names.
  ArrayIn(nb::handle array, const std::string& what);

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }  // [1] of an array without dims
  const void* data() const { return array_.data(); }
  int64_t elements() const { return shape_.elements(); }
  // The elements in row-major order, whatever the strides. Needs no GIL.
  void read(std::span<std::byte> to) const;

 private:
  nb::object kept_;  // what the array is a view of
  nb::ndarray<nb::ro> array_;
  DType dtype_ = DType::kF32;
  Shape shape_;
};

// An array over memory that `owner` keeps: of numpy, else, where that is not installed, one with DLPack and buffers.
// bf16 and FP8 are types of ml_dtypes; throws kUnsupported where that is not installed.
nb::object array_over(const std::byte* data, const TensorType& type, nb::handle owner, bool writable);
// An array that keeps these bytes; where ml_dtypes is not installed bf16 and FP8 become float32, which holds them.
nb::object array_of(std::vector<std::byte> bytes, const TensorType& type);

}  // namespace octet::python
