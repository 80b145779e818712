#include "ir/placement.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"

namespace octet {
namespace {

int64_t row_major(const Shape& shape, const std::vector<int64_t>& at) {
  int64_t offset = 0;
  for (size_t d = 0; d < at.size(); ++d) offset = offset * shape.dims[d] + at[d];
  return offset;
}

// The definition: element by element. [box elements] of (logical, state) element offsets.
std::vector<std::pair<int64_t, int64_t>> by_index(const Placement& p) {
  std::vector<std::pair<int64_t, int64_t>> offsets;
  const Shape box = p.box();
  for (int64_t n = 0; n < box.elements(); ++n) {
    std::vector<int64_t> logical(p.dims.size());
    int64_t state = p.offset, rest = n;
    for (size_t d = p.dims.size(); d-- > 0; rest /= box.dims[d]) {
      const int64_t i = rest % box.dims[d];
      logical[d] = p.dims[d].origin + i;
      state += i / p.dims[d].run * p.dims[d].run_stride + i % p.dims[d].run * p.dims[d].stride;
    }
    offsets.emplace_back(row_major(p.shape, logical), state);
  }
  return offsets;
}

// The walk copies what the index loop copies, both ways, whole and in pieces, and leaves the rest of the state alone.
void expect_walk(const Placement& p, int64_t state_elements) {
  std::vector<int32_t> logical(static_cast<size_t>(p.shape.elements()));
  std::iota(logical.begin(), logical.end(), 1);
  std::vector<int32_t> expected(static_cast<size_t>(state_elements), -1), state = expected;
  std::vector<int32_t> back(logical.size(), 0), expected_back = back;
  for (auto [from, to] : by_index(p)) {
    ASSERT_LT(to, state_elements);
    expected[static_cast<size_t>(to)] = expected_back[static_cast<size_t>(from)] = logical[static_cast<size_t>(from)];
  }
  const auto bytes = [](std::vector<int32_t>& list) { return reinterpret_cast<std::byte*>(list.data()); };
  for_each_run(p, DType::kI32, [&](int64_t from, int64_t to, int64_t count) {
    std::memcpy(bytes(state) + to, bytes(logical) + from, static_cast<size_t>(count));
  });
  EXPECT_EQ(state, expected);
  const int64_t whole = p.shape.elements() * 4, piece = 28;
  int64_t copied = 0;
  for (int64_t first = 0; first < whole; first += piece) {
    for_each_run(p, DType::kI32, first, std::min(first + piece, whole), [&](int64_t to, int64_t from, int64_t count) {
      std::memcpy(bytes(back) + to, bytes(state) + from, static_cast<size_t>(count));
      copied += count;
    });
  }
  EXPECT_EQ(back, expected_back);
  EXPECT_EQ(copied, p.box().elements() * 4);
}

TEST(Placement, RowsAreOneRun) {
  const Placement p = place_rows("k", {3, 5}, 4);
  EXPECT_EQ(p.offset, 20);
  EXPECT_EQ(PlacementRuns(p, DType::kI32).count(), 1);
  EXPECT_EQ(PlacementRuns(p, DType::kI32).bytes(), 60);
  expect_walk(p, 50);
  expect_walk(place_rows("bias", {6}, 2), 9);
  expect_walk(place_rows("scalar", {}), 1);
}

// Two codes a byte: whole rows of them, columns of a wider state, a slice of columns; a box that splits bytes is
// refused.
TEST(Placement, PairsOfI4AreBytes) {
  const PlacementRuns rows(place_rows("k", {3, 6}, 4), DType::kI4);
  EXPECT_EQ(rows.count(), 1);
  EXPECT_EQ(rows.bytes(), 9);
  EXPECT_EQ(rows.at(0).state, 12);
  const Placement slice{.param = "down", .shape = {4, 8}, .offset = 2, .dims = {{0, 4, 4, 6, 24}, {2, 4, 4, 1, 4}}};
  const PlacementRuns runs(slice, DType::kI4);
  EXPECT_EQ(runs.count(), 4);
  EXPECT_EQ(runs.bytes(), 2);
  EXPECT_EQ(runs.at(2).logical, 9);
  EXPECT_EQ(runs.at(2).state, 7);
  Placement odd = slice;
  odd.dims[1].origin = 1;
  EXPECT_THROW(PlacementRuns(odd, DType::kI4), Error);
}

TEST(Placement, ColumnsOfAWiderState) {
  expect_walk({.param = "gate", .shape = {4, 6}, .offset = 6, .dims = {{0, 4, 4, 12, 48}, {0, 6, 6, 1, 6}}}, 48);
}

// W[:, 2:5], stored alone: row-parallel weights.
TEST(Placement, ASliceOfColumns) {
  const Placement p{.param = "down", .shape = {4, 8}, .offset = 0, .dims = {{0, 4, 4, 3, 12}, {2, 3, 3, 1, 3}}};
  EXPECT_EQ(PlacementRuns(p, DType::kI32).count(), 4);
  expect_walk(p, 12);
}

// Heads of q, k and v between each other: rows [heads, 3, dim], of which k is part 1.
TEST(Placement, HeadsBetweenHeads) {
  constexpr int64_t kHeads = 4, kDim = 2, kCols = 5;
  const Placement p{.param = "k",
                    .shape = {kHeads * kDim, kCols},
                    .offset = kDim * kCols,
                    .dims = {{0, kHeads * kDim, kDim, kCols, 3 * kDim * kCols}, {0, kCols, kCols, 1, kCols}}};
  EXPECT_EQ(PlacementRuns(p, DType::kI32).count(), kHeads);
  expect_walk(p, kHeads * 3 * kDim * kCols);
}

TEST(Placement, AnyBoxIsWhatTheIndexLoopSays) {
  Philox random(3, 1);
  const auto pick = [&](int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random.uniform() * static_cast<double>(most - least + 1));
  };
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    Placement p{.param = "w"};
    int64_t stride = pick(1, 2);  // of the state, from the last dim outward: parts and gaps of any size
    p.offset = pick(0, 5);
    for (int64_t d = pick(1, 3); d > 0; --d) {
      const int64_t run = pick(1, 4), runs = pick(1, 3), part = run * stride * pick(1, 2) + pick(0, 2);
      const int64_t origin = pick(0, 2), extent = run * runs;
      p.dims.insert(p.dims.begin(), {origin, extent, run, stride, part});
      p.shape.dims.insert(p.shape.dims.begin(), origin + extent + pick(0, 2));
      stride = part * runs;
    }
    const int64_t elements = stride + p.offset;
    check_placement(p, {elements});
    expect_walk(p, elements);
  }
}

TEST(Placement, ChecksThatTheBoxLiesInBoth) {
  const Placement good = place_rows("w", {4, 8}, 2);
  EXPECT_NO_THROW(check_placement(good, {6, 8}));
  EXPECT_THROW(check_placement(good, {5, 8}), Error);
  Placement bad = good;
  bad.dims[0].origin = 1;  // past the tensor's rows
  EXPECT_THROW(check_placement(bad, {6, 8}), Error);
  bad = good;
  bad.dims[0].run = 3;  // does not divide 4
  EXPECT_THROW(check_placement(bad, {6, 8}), Error);
  bad = good;
  bad.dims[0].stride = INT64_MAX / 2;
  EXPECT_THROW(check_placement(bad, {6, 8}), Error);
}

}  // namespace
}  // namespace octet
