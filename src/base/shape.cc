#include "base/shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace octet {

int64_t Shape::elements() const {
  int64_t product = 1;
  for (int64_t dim : dims) {
    if (dim < 0 || __builtin_mul_overflow(product, dim, &product))
      fail(ErrorCode::kInvalidArgument, "shape {}: negative dim or more than 2^63 elements", to_string(*this));
  }
  return product;
}

int64_t Shape::rows() const {
  int64_t product = 1;
  for (int axis = 0; axis + 1 < rank(); ++axis) product *= dims[axis];
  return product;
}

int64_t Shape::cols() const { return dims.empty() ? 1 : dims.back(); }

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape.dims, ",")); }

std::string to_string(const TensorType& type) { return dtype_name(type.dtype) + to_string(type.shape); }

}  // namespace octet
