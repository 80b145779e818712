#include "ir/placement.h"

#include "base/error.h"

namespace octet {

Shape Placement::box() const {
  Shape box;
  for (const PlacedDim& dim : dims) box.dims.push_back(dim.extent);
  return box;
}

Placement place_rows(std::string param, const Shape& shape, int64_t row) {
  Placement placement{.param = std::move(param), .shape = shape, .offset = row, .dims = {}};
  int64_t stride = 1;
  for (auto dim = shape.dims.rbegin(); dim != shape.dims.rend(); ++dim) {
    placement.dims.insert(placement.dims.begin(), {0, *dim, *dim, stride, stride * *dim});
    stride *= *dim;
  }
  if (!placement.dims.empty()) placement.offset *= placement.dims.front().stride;
  return placement;
}

void check_placement(const Placement& placement, const Shape& state) {
  bool good = placement.dims.size() == placement.shape.dims.size() && placement.offset >= 0;
  int64_t last = placement.offset;  // the box's last element
  for (size_t d = 0; good && d < placement.dims.size(); ++d) {
    const PlacedDim& dim = placement.dims[d];
    int64_t end = 0, within = 0, between = 0;
    good = dim.origin >= 0 && dim.extent > 0 && dim.run > 0 && dim.extent % dim.run == 0 && dim.stride > 0 &&
           dim.run_stride > 0 && !__builtin_add_overflow(dim.origin, dim.extent, &end) &&
           end <= placement.shape.dims[d] && !__builtin_mul_overflow(dim.run - 1, dim.stride, &within) &&
           !__builtin_mul_overflow(dim.extent / dim.run - 1, dim.run_stride, &between) &&
           !__builtin_add_overflow(last, within, &last) && !__builtin_add_overflow(last, between, &last);
  }
  check(good && last < state.elements(), ErrorCode::kInvalidArgument,
        "{} {} does not lie as its placement says in a state of {}", placement.param, to_string(placement.shape),
        to_string(state));
}

namespace {

// The same box of bytes: pairs of i4, which are neighbours in both tensors.
Placement in_pairs(Placement placement) {
  const auto halve = [&](int64_t& value) {
    check(value % 2 == 0, ErrorCode::kInternal, "{} {} of i4 is placed within a byte", placement.param,
          to_string(placement.shape));
    value /= 2;
  };
  check(!placement.dims.empty() && placement.dims.back().stride == 1, ErrorCode::kInternal,
        "{} {} of i4 has columns that are no neighbours", placement.param, to_string(placement.shape));
  PlacedDim& last = placement.dims.back();
  for (int64_t* value : {&placement.shape.dims.back(), &placement.offset, &last.origin, &last.extent, &last.run})
    halve(*value);
  halve(last.run_stride);
  for (size_t d = 0; d + 1 < placement.dims.size(); ++d) {
    halve(placement.dims[d].stride);
    halve(placement.dims[d].run_stride);
  }
  return placement;
}

}  // namespace

PlacementRuns::PlacementRuns(const Placement& elements, DType dtype) {
  const Placement placement = dtype == DType::kI4 ? in_pairs(elements) : elements;
  const int64_t element_bytes = dtype == DType::kI4 ? 1 : dtype_bytes(dtype);
  first_.state = placement.offset * element_bytes;
  bytes_ = element_bytes;
  int64_t logical = element_bytes;  // stride of the dim
  for (size_t d = placement.dims.size(); d-- > 0; logical *= placement.shape.dims[d]) {
    const PlacedDim& dim = placement.dims[d];
    first_.logical += dim.origin * logical;
    for (const Level& level : {Level{dim.run, logical, dim.stride * element_bytes},
                               Level{dim.extent / dim.run, logical * dim.run, dim.run_stride * element_bytes}}) {
      if (level.count == 1) continue;
      if (levels_.empty() && level.logical == bytes_ && level.state == bytes_) {  // joins the run
        bytes_ *= level.count;
        continue;
      }
      count_ *= level.count;
      levels_.insert(levels_.begin(), level);
    }
  }
}

PlacementRuns::Offsets PlacementRuns::at(int64_t run) const {
  Offsets offsets = first_;
  for (auto level = levels_.rbegin(); level != levels_.rend(); ++level) {
    offsets.logical += run % level->count * level->logical;
    offsets.state += run % level->count * level->state;
    run /= level->count;
  }
  return offsets;
}

}  // namespace octet
