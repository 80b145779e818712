// How the parts of one logical tensor lie on the ranks of a mesh. docs/ir.md, "Layouts".
//
// A layout is inferred and verified where a type is: LayoutRules::place gives the layouts of a node's results from
// those of its inputs, or refuses them. Types of a sharded graph are local: what one rank holds.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"
#include "ir/scale_layout.h"

namespace octet {

// Axes of a mesh, outermost first: ranks next to each other on tp are neighbours on NVLink.
enum class Axis : uint8_t { kPipeline, kData, kContext, kTensor };
inline constexpr int kAxes = 4;
inline constexpr Axis kAllAxes[] = {Axis::kPipeline, Axis::kData, Axis::kContext, Axis::kTensor};
const char* axis_name(Axis axis);  // "pp", "dp", "cp", "tp"

// Axes in the order in which they cut a dim, outermost first.
using AxisList = std::vector<Axis>;
std::string print(const AxisList& axes);     // "dp,tp"
AxisList parse_axes(std::string_view text);  // throws kInvalidArgument: unknown, repeated or none

// A set of axes, a bit each.
struct AxisSet {
  uint8_t bits = 0;

  AxisSet() = default;
  AxisSet(Axis axis) : bits(static_cast<uint8_t>(1U << static_cast<unsigned>(axis))) {}
  AxisSet(const AxisList& axes) {
    for (Axis axis : axes) bits |= AxisSet(axis).bits;
  }
  bool has(Axis axis) const { return (bits & AxisSet(axis).bits) != 0; }
  bool has_all(AxisSet others) const { return (bits & others.bits) == others.bits; }
  bool empty() const { return bits == 0; }
  AxisList list() const;
  friend AxisSet operator|(AxisSet a, AxisSet b) { return from_bits(a.bits | b.bits); }
  friend AxisSet operator&(AxisSet a, AxisSet b) { return from_bits(a.bits & b.bits); }
  friend AxisSet operator-(AxisSet a, AxisSet b) { return from_bits(a.bits & ~b.bits); }
  bool operator==(const AxisSet&) const = default;

 private:
  static AxisSet from_bits(int bits) {
    AxisSet set;
    set.bits = static_cast<uint8_t>(bits);
    return set;
  }
};

// The place of one rank.
struct Coordinate {
  std::array<int32_t, kAxes> at{};
  int32_t operator[](Axis axis) const { return at[static_cast<size_t>(axis)]; }
};

struct Mesh {
  std::array<int32_t, kAxes> size{1, 1, 1, 1};

  int32_t operator[](Axis axis) const { return size[static_cast<size_t>(axis)]; }
  int32_t& operator[](Axis axis) { return size[static_cast<size_t>(axis)]; }
  int32_t ranks() const { return size[0] * size[1] * size[2] * size[3]; }
  int32_t parts(const AxisList& axes) const;
  Coordinate coordinate(int32_t rank) const;  // rank = ((pp DP + dp) CP + cp) TP + tp
  int32_t rank(const Coordinate& coordinate) const;
  // The ranks that differ from `rank` in these axes only, in order of their parts (itself among them).
  std::vector<int32_t> group(int32_t rank, const AxisList& axes) const;
  bool operator==(const Mesh&) const = default;
};

// kLse: a log-sum-exp. kNever: what the parts have is no part of a whole (scales of groups that lie on several ranks),
// no op may read it.
enum class Pending : uint8_t { kSum, kMax, kLse, kNever };
inline constexpr int kPendings = 4;
const char* pending_name(Pending pending);  // "sum", "max", "lse": also the collectives' attribute

// An axis that is not named holds copies: the same bits on every rank.
struct Layout {
  // The dim is seen as [outer, axis, rest]. outer > 1: heads within rows, where both are one dim.
  struct Cut {
    Axis axis;
    int32_t dim;
    int64_t outer = 1;
    bool operator==(const Cut&) const = default;
  };
  std::vector<Cut> cuts;                        // by dim; of one dim the outermost axis first
  std::array<AxisSet, kPendings> pending = {};  // axes over which the parts are yet to be added, maximised, ...

  bool copies() const { return cuts.empty() && !is_pending(); }
  bool is_pending() const { return !pending_axes().empty(); }
  AxisSet pending_axes() const { return pending[0] | pending[1] | pending[2] | pending[3]; }
  AxisSet& pending_axes(Pending kind) { return pending[static_cast<size_t>(kind)]; }
  AxisSet pending_axes(Pending kind) const { return pending[static_cast<size_t>(kind)]; }

  AxisList cut_axes(int dim) const;  // that cut this dim
  AxisSet cut_axes() const;          // that cut any
  int64_t outer(int dim) const;      // of its cuts, which have one in common; 1 where there is none
  // The same with dim cut by `axes` inside what cuts it already; with another list for dim; with no cut of dim.
  Layout cut(int dim, const AxisList& axes) const;
  Layout with(int dim, const AxisList& axes, int64_t outer = 1) const;
  Layout whole(int dim) const { return with(dim, {}); }
  Layout with_cuts_of(const Layout& other, int other_dim, int dim) const {
    return with(dim, other.cut_axes(other_dim), other.outer(other_dim));
  }
  Layout only(int dim) const { return Layout().with_cuts_of(*this, dim, dim); }  // nothing else, nothing pending
  Layout with_pending(Pending kind, AxisSet axes) const;
  Layout without_pending() const;  // nothing pending
  // Dim d of this one becomes dim to[d]; -1: the dim is dropped, and its cuts with it.
  Layout moved(const std::vector<int>& to) const;
  bool operator==(const Layout&) const = default;
};

// "f32[4096*tp,8]+dp": local sizes times the axes that cut them (within each of 4: "8*tp@4"), then what is pending: + a
// sum, ^ a maximum, ~ a log-sum-exp, ! never a whole.
std::string print(const TensorType& type, const Layout& layout);

// The shape of the whole tensor from that of one rank's part.
Shape whole_shape(const Shape& local, const Layout& layout, const Mesh& mesh);
// The first element of this rank's part along dim, in the whole tensor; `extent`: of the part. Of each of the outer's.
int64_t first_element(const Layout& layout, int dim, int64_t extent, const Mesh& mesh, const Coordinate& at);

// The layout of the scales of codes.
Layout scales_layout(const Layout& codes, ScaleLayout scaling);

// Throws kInvalidArgument: a dim that is not there, an axis named twice, an outer that does not divide the dim.
void check_layout(const Layout& layout, const Shape& local);

}  // namespace octet
