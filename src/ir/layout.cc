#include "ir/layout.h"

#include <algorithm>
#include <optional>

#include "base/error.h"

namespace octet {
namespace {

constexpr const char* kAxisNames[] = {"pp", "dp", "cp", "tp"};

Axis parse_axis(std::string_view name) {
  const auto found = std::find(std::begin(kAxisNames), std::end(kAxisNames), name);
  check(found != std::end(kAxisNames), ErrorCode::kInvalidArgument, "'{}' is no axis of a mesh (pp, dp, cp or tp)",
        name);
  return static_cast<Axis>(found - std::begin(kAxisNames));
}

}  // namespace

const char* axis_name(Axis axis) { return kAxisNames[static_cast<size_t>(axis)]; }

const char* pending_name(Pending pending) {
  constexpr const char* kNames[] = {"sum", "max", "lse", "never"};
  return kNames[static_cast<size_t>(pending)];
}

std::string print(const AxisList& axes) {
  std::string text;
  for (Axis axis : axes) text += (text.empty() ? "" : ",") + std::string(axis_name(axis));
  return text;
}

AxisList parse_axes(std::string_view text) {
  AxisList axes;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const Axis axis = parse_axis(text.substr(begin, end - begin));
    check(!AxisSet(axes).has(axis), ErrorCode::kInvalidArgument, "'{}' names {} twice", text, axis_name(axis));
    axes.push_back(axis);
    begin = end + 1;
  }
  return axes;
}

AxisList AxisSet::list() const {
  AxisList axes;
  for (Axis axis : kAllAxes)
    if (has(axis)) axes.push_back(axis);
  return axes;
}

int32_t Mesh::parts(const AxisList& axes) const {
  int32_t parts = 1;
  for (Axis axis : axes) parts *= (*this)[axis];
  return parts;
}

Coordinate Mesh::coordinate(int32_t rank) const {
  Coordinate result;
  for (int i = kAxes - 1; i >= 0; --i) {
    const auto axis = static_cast<size_t>(i);
    result.at[axis] = rank % size[axis];
    rank /= size[axis];
  }
  return result;
}

int32_t Mesh::rank(const Coordinate& coordinate) const {
  int32_t rank = 0;
  for (Axis axis : kAllAxes) rank = rank * (*this)[axis] + coordinate[axis];
  return rank;
}

std::vector<int32_t> Mesh::group(int32_t rank, const AxisList& axes) const {
  std::vector<int32_t> ranks;
  Coordinate member = coordinate(rank);
  for (int32_t part = 0; part < parts(axes); ++part) {
    int32_t rest = part;
    for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
      member.at[static_cast<size_t>(*axis)] = rest % (*this)[*axis];
      rest /= (*this)[*axis];
    }
    ranks.push_back(this->rank(member));
  }
  return ranks;
}

AxisList Layout::cut_axes(int dim) const {
  AxisList axes;
  for (const Cut& cut : cuts)
    if (cut.dim == dim) axes.push_back(cut.axis);
  return axes;
}

int64_t Layout::outer(int dim) const {
  const auto found = std::find_if(cuts.begin(), cuts.end(), [&](const Cut& cut) { return cut.dim == dim; });
  return found == cuts.end() ? 1 : found->outer;
}

AxisSet Layout::cut_axes() const {
  AxisSet axes;
  for (const Cut& cut : cuts) axes = axes | cut.axis;
  return axes;
}

Layout Layout::with(int dim, const AxisList& axes, int64_t outer) const {
  Layout result = *this;
  std::erase_if(result.cuts, [&](const Cut& cut) { return cut.dim == dim; });
  auto at = std::find_if(result.cuts.begin(), result.cuts.end(), [&](const Cut& cut) { return cut.dim > dim; });
  for (Axis axis : axes) at = std::next(result.cuts.insert(at, {axis, dim, outer}));
  return result;
}

Layout Layout::cut(int dim, const AxisList& axes) const {
  AxisList all = cut_axes(dim);
  all.insert(all.end(), axes.begin(), axes.end());
  return with(dim, all, outer(dim));
}

Layout Layout::with_pending(Pending kind, AxisSet axes) const {
  Layout result = *this;
  result.pending_axes(kind) = axes;
  return result;
}

Layout Layout::without_pending() const {
  Layout result = *this;
  result.pending = {};
  return result;
}

Layout Layout::moved(const std::vector<int>& to) const {
  Layout result;
  result.pending = pending;
  for (size_t d = 0; d < to.size(); ++d)
    if (to[d] >= 0) result = result.with_cuts_of(*this, static_cast<int>(d), to[d]);
  return result;
}

std::string print(const TensorType& type, const Layout& layout) {
  std::string text = dtype_name(type.dtype);
  for (int d = 0; d < type.shape.rank(); ++d) {
    text += (d == 0 ? "[" : ",") + std::to_string(type.shape[d]);
    for (Axis axis : layout.cut_axes(d)) text += std::string("*") + axis_name(axis);
    if (layout.outer(d) > 1) text += "@" + std::to_string(layout.outer(d));
  }
  text += "]";
  for (int kind = 0; kind < kPendings; ++kind)
    for (Axis axis : layout.pending[static_cast<size_t>(kind)].list())
      text += std::string(1, "+^~!"[kind]) + axis_name(axis);
  return text;
}

Shape whole_shape(const Shape& local, const Layout& layout, const Mesh& mesh) {
  Shape whole = local;
  for (const Layout::Cut& cut : layout.cuts) whole.dims[static_cast<size_t>(cut.dim)] *= mesh[cut.axis];
  return whole;
}

int64_t first_element(const Layout& layout, int dim, int64_t extent, const Mesh& mesh, const Coordinate& at) {
  int64_t part = 0;
  for (Axis axis : layout.cut_axes(dim)) part = part * mesh[axis] + at[axis];
  return part * (extent / layout.outer(dim));
}

Layout scales_layout(const Layout& codes, ScaleLayout scaling) {
  switch (scaling) {
    case ScaleLayout::kTensor: return {};
    case ScaleLayout::kRow: return codes.moved({0, -1});
    case ScaleLayout::kTile128: return codes;
    default: return codes.moved({1, 0});
  }
}

void check_layout(const Layout& layout, const Shape& local) {
  const int rank = local.rank();
  AxisSet seen;
  const auto once = [&](Axis axis) {
    check(!seen.has(axis), ErrorCode::kInvalidArgument, "a layout names {} twice", axis_name(axis));
    seen = seen | axis;
  };
  for (const Layout::Cut& cut : layout.cuts) {
    check(cut.dim >= 0 && cut.dim < rank, ErrorCode::kInvalidArgument, "{} cuts dim {} of a tensor of rank {}",
          axis_name(cut.axis), cut.dim, rank);
    check(cut.outer > 0 && local[cut.dim] % cut.outer == 0 && cut.outer == layout.outer(cut.dim),
          ErrorCode::kInvalidArgument, "{} cuts dim {} of {} elements within each of {}", axis_name(cut.axis), cut.dim,
          local[cut.dim], cut.outer);
    once(cut.axis);
  }
  for (const AxisSet& axes : layout.pending)
    for (Axis axis : axes.list()) once(axis);
}

}  // namespace octet
