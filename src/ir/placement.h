// How a box of a logical tensor lies in a state entry: its rows below those of another one, heads between heads, a
// slice of columns, rows before padding. Loaders, checkpoints and shards copy through the walk over contiguous runs.
//
// Counted in elements, both tensors in row-major order. Types and bytes are the walk's, of devices it knows nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/shape.h"

namespace octet {

// One dim of the box. The state sees it as [outer, part, rest]: element i of the box is element i % run of the part
// that run i / run has.
struct PlacedDim {
  int64_t origin = 0, extent = 0;  // elements [origin, origin + extent) of the logical tensor's dim
  int64_t run = 0;                 // "rest": neighbours that are `stride` apart; divides extent
  int64_t stride = 0;              // in the state
  int64_t run_stride = 0;          // in the state, from the first element of a run to that of the next
  bool operator==(const PlacedDim&) const = default;
};

struct Placement {
  std::string param;            // whose tensor this is: role and index are those of the entry
  Shape shape;                  // of the whole logical tensor
  int64_t offset = 0;           // of the box's first element in the state
  std::vector<PlacedDim> dims;  // the box, a dim for each of `shape`

  Shape box() const;
  bool operator==(const Placement&) const = default;
};

// A whole tensor as rows [row, row + shape[0]) of a state with the same other dims.
Placement place_rows(std::string param, const Shape& shape, int64_t row = 0);

// Throws kInvalidArgument, naming the tensor, unless the box lies in the tensor and within a state of this shape.
void check_placement(const Placement& placement, const Shape& state);

// The box as runs of equal length, in row-major order of the box.
class PlacementRuns {
 public:
  PlacementRuns(const Placement& placement, DType dtype);  // throws kInternal where a run of i4 splits a byte
  int64_t count() const { return count_; }
  int64_t bytes() const { return bytes_; }  // of a run

  struct Offsets {
    int64_t logical = 0, state = 0;  // in bytes
  };
  Offsets at(int64_t run) const;

 private:
  struct Level {
    int64_t count, logical, state;  // strides in bytes
  };
  std::vector<Level> levels_;  // outermost first
  Offsets first_;
  int64_t count_ = 1, bytes_ = 0;
};

// fn(logical offset, state offset, bytes) for every run, or for what the box has of bytes [first, last) of the tensor.
template <typename Fn>
void for_each_run(const Placement& placement, DType dtype, int64_t first, int64_t last, const Fn& fn) {
  if (placement.box().elements() == 0) return;
  const PlacementRuns runs(placement, dtype);
  int64_t begin = 0, end = runs.count();  // the first run that ends behind `first`
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    runs.at(middle).logical + runs.bytes() > first ? end = middle : begin = middle + 1;
  }
  for (; begin < runs.count(); ++begin) {
    const PlacementRuns::Offsets offsets = runs.at(begin);
    if (offsets.logical >= last) return;
    const int64_t skipped = std::max<int64_t>(first - offsets.logical, 0);
    const int64_t bytes = std::min(last - offsets.logical, runs.bytes()) - skipped;
    fn(offsets.logical + skipped, offsets.state + skipped, bytes);
  }
}
template <typename Fn>
void for_each_run(const Placement& placement, DType dtype, const Fn& fn) {
  for_each_run(placement, dtype, 0, storage_bytes(dtype, placement.shape.elements()), fn);
}

}  // namespace octet
