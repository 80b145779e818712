#include "weights/weights.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "base/threads.h"

namespace octet {
namespace {

constexpr int64_t kBlockElements = 1 << 15;  // values that stay in a core's cache from their check to their conversion
constexpr int64_t kTile = 64;                // of rows and columns exchanged at once

// Bits from which on a value is not finite as a float32.
template <typename Bits>
bool all_below(const std::byte* values, int64_t count, Bits limit) {
  constexpr Bits kMagnitude = static_cast<Bits>(~Bits{0}) >> 1;
  const auto* bits = reinterpret_cast<const Bits*>(values);
  Bits most = 0;
  for (int64_t i = 0; i < count; ++i) most = std::max<Bits>(most, bits[i] & kMagnitude);
  return most < limit;
}

bool all_finite(DType dtype, const std::byte* values, int64_t count) {
  switch (dtype) {
    case DType::kF64: return all_below<uint64_t>(values, count, 0x47efffff'f0000000u);  // rounds to infinity
    case DType::kF32: return all_below<uint32_t>(values, count, 0x7f800000u);
    case DType::kBF16: return all_below<uint16_t>(values, count, 0x7f80u);
    case DType::kF16: return all_below<uint16_t>(values, count, 0x7c00u);
    case DType::kE4M3: return all_below<uint8_t>(values, count, 0x7fu);
    default: return true;
  }
}

void check_finite(const ParamView& view, const std::byte* values, int64_t first, int64_t count) {
  if (all_finite(view.dtype, values, count)) return;
  for (int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(load_element(view.dtype, values, i));
    check(std::isfinite(value), ErrorCode::kCorrupt, "{}: element {} is {}: weights must be finite", view.name,
          first + i, value);
  }
}

// fn(first element, row of the view, rows) for the runs that rows [first, first + count) lie in.
template <typename Fn>
void for_runs(const ParamView& view, int64_t first, int64_t count, const Fn& fn) {
  for (int64_t row = first; row < first + count;) {
    const int64_t run = row / view.run_rows, within = row - run * view.run_rows;
    const int64_t length = std::min(view.run_rows - within, first + count - row);
    const std::byte* begin = view.runs.empty() ? view.data + run * view.run_stride * dtype_bytes(view.dtype)
                                               : view.runs[static_cast<size_t>(run)];
    fn(begin + within * view.row_stride * dtype_bytes(view.dtype), row, length);
    row += length;
  }
}

// Rows stored as columns, `stride` elements apart, one after the other: tile by tile, so that a line of the source is
// read once however far apart lines are.
template <typename T>
void gather_columns(const std::byte* from, int64_t rows, int64_t cols, int64_t stride, std::byte* to) {
  const auto* source = reinterpret_cast<const T*>(from);
  auto* target = reinterpret_cast<T*>(to);
  T tile[kTile * kTile];
  for (int64_t row = 0; row < rows; row += kTile) {
    const int64_t height = std::min(kTile, rows - row);
    for (int64_t col = 0; col < cols; col += kTile) {
      const int64_t width = std::min(kTile, cols - col);
      for (int64_t c = 0; c < width; ++c) std::copy_n(source + (col + c) * stride + row, height, tile + c * kTile);
      for (int64_t r = 0; r < height; ++r)
        for (int64_t c = 0; c < width; ++c) target[(row + r) * cols + col + c] = tile[c * kTile + r];
    }
  }
}

void gather(const ParamView& view, const std::byte* from, int64_t rows, std::byte* to) {
  const int64_t width = dtype_bytes(view.dtype), row_bytes = view.cols * width;
  if (view.col_stride == 1) {
    for (int64_t row = 0; row < rows; ++row)
      std::memcpy(to + row * row_bytes, from + row * view.row_stride * width, static_cast<size_t>(row_bytes));
    return;
  }
  const auto as = [&]<typename T>(T) { gather_columns<T>(from, rows, view.cols, view.col_stride, to); };
  if (width == 1) as(uint8_t{});
  if (width == 2) as(uint16_t{});
  if (width == 4) as(uint32_t{});
  if (width == 8) as(uint64_t{});
}

// fn(words of the tensor, its row, row of the view, rows) for the runs that rows [first, first + count) lie in.
template <typename Fn>
void for_packed_runs(const ParamView& view, int64_t first, int64_t count, const Fn& fn) {
  for (int64_t row = first; row < first + count;) {
    const int64_t run = row / view.run_rows, within = row - run * view.run_rows;
    const int64_t length = std::min(view.run_rows - within, first + count - row);
    const std::byte* words = view.runs.empty() ? view.data : view.runs[static_cast<size_t>(run)];
    const int64_t before = view.runs.empty() ? run * view.run_stride : 0;
    fn(reinterpret_cast<const uint32_t*>(words), view.first_row + before + within, row, length);
    row += length;
  }
}

// Rows [first, first + rows) of a packed view as codes row after row, two's complement, columns in the view's order.
void unpack(const ParamView& view, int64_t first, int64_t rows, std::byte* to) {
  constexpr int kPlaces[] = {0, 4, 1, 5, 2, 6, 3, 7};  // of outputs in a word of AWQ
  const int bits = view.dtype == DType::kI4 ? 4 : 8, per_word = 32 / bits;
  const int64_t row_words = (view.cols + per_word - 1) / per_word, row_bytes = storage_bytes(view.dtype, view.cols);
  const auto code = [&](const uint32_t* words, int64_t n, int64_t k) -> uint32_t {
    switch (view.packing) {
      case Packing::kAlongInputs: return words[k / per_word * view.packed_rows + n] >> k % per_word * bits;
      case Packing::kAlongOutputs: return words[k * (view.packed_rows / 8) + n / 8] >> kPlaces[n % 8] * 4;
      default: return words[n * row_words + k / per_word] >> k % per_word * bits;
    }
  };
  const uint32_t sign = uint32_t{1} << (bits - 1);
  std::memset(to, 0, static_cast<size_t>(rows * row_bytes));
  for_packed_runs(view, first, rows, [&](const uint32_t* words, int64_t n, int64_t begin, int64_t count) {
    const int32_t* columns = view.columns_of(begin);
    std::byte* at = to + (begin - first) * row_bytes;
    for (int64_t p = 0; p < view.cols; ++p) {
      const int64_t k = columns == nullptr ? p : columns[p];
      for (int64_t r = 0; r < count; ++r) {
        const uint32_t value = code(words, n + r, k) ^ sign;
        if (bits == 8)
          at[r * row_bytes + p] = static_cast<std::byte>(value);
        else
          at[r * row_bytes + p / 2] |= static_cast<std::byte>((value & 15) << p % 2 * 4);
      }
    }
  });
}

bool is_contiguous(const ParamView& view) { return view.col_stride == 1 && view.row_stride == view.cols; }

// fn(values, row, rows): all rows asked for, in their type, one after the other, in blocks that a cache holds.
template <typename Fn>
void for_blocks(const ParamView& view, int64_t first, int64_t count, const Fn& fn) {
  const bool packed = view.packing != Packing::kNone;
  const int64_t block = row_grain(view), row_bytes = storage_bytes(view.dtype, view.cols);
  const bool direct = is_contiguous(view) && !packed && !view.computed;
  const auto buffer =
      std::make_unique_for_overwrite<std::byte[]>(direct ? 0 : static_cast<size_t>(std::min(block, count) * row_bytes));
  for (int64_t at = first; at < first + count; at += block) {
    const int64_t length = std::min(block, first + count - at);
    if (view.computed) {
      (*view.computed)(at, length, reinterpret_cast<float*>(buffer.get()));
      fn(buffer.get(), at, length);
      continue;
    }
    if (packed) {
      unpack(view, at, length, buffer.get());
      fn(buffer.get(), at, length);
      continue;
    }
    for_runs(view, at, length, [&](const std::byte* values, int64_t row, int64_t rows) {
      if (direct) return fn(values, row, rows);
      gather(view, values, rows, buffer.get());
      fn(buffer.get(), row, rows);
    });
  }
}

// Values of a block of rows as float32, by their scales where they have some.
void to_floats(const ParamView& view, const std::byte* block, int64_t row, int64_t rows, std::vector<float>& values) {
  values.resize(static_cast<size_t>(rows * view.cols));
  convert(view.dtype, block, DType::kF32, values.data(), rows * view.cols);
  if (!view.scale_inv.empty())
    apply_scales(values, view.scale_inv, row, rows, view.rows, view.cols, view.layout, view.zero);
  if (view.columns.empty()) return;
  std::vector<float> sorted(static_cast<size_t>(view.cols));
  for (int64_t r = 0; r < rows; ++r) {  // back to the parameter's order
    float* of_row = values.data() + r * view.cols;
    const int32_t* columns = view.columns_of(row + r);
    std::copy_n(of_row, view.cols, sorted.begin());
    for (size_t p = 0; p < sorted.size(); ++p) of_row[columns[p]] = sorted[p];
  }
}

}  // namespace

ParamView view_of(const CheckpointTensor& tensor, size_t i, const TensorView& stored, const std::string& name) {
  const Shape& shape = stored.type.shape;
  const bool matrix = shape.rank() == 2;
  const int64_t outputs = matrix && tensor.transposed ? shape[1] : shape.rank() > 0 ? shape[0] : 1;
  ParamView view{.name = name, .dtype = stored.type.dtype, .data = stored.bytes.data()};
  view.cols = shape.elements() / std::max<int64_t>(outputs, 1);
  view.row_stride = tensor.transposed ? 1 : view.cols;
  view.col_stride = tensor.transposed ? outputs : 1;
  int64_t group_rows = outputs, before = 0;
  view.run_rows = outputs;
  if (tensor.params.size() > 1) {
    group_rows = 0;
    for (size_t p = 0; p < tensor.rows.size(); ++p) {
      if (p == i) before = group_rows;
      group_rows += tensor.rows[p];
    }
    view.run_rows = tensor.rows[i];
  }
  const int64_t groups = tensor.params.size() > 1 ? tensor.groups : 1;
  check(group_rows * groups == outputs, ErrorCode::kCorrupt, "{}: {} rows do not hold {} groups of {}", name, outputs,
        groups, group_rows);
  view.rows = view.run_rows * groups;
  view.run_stride = group_rows * view.row_stride;
  view.data += before * view.row_stride * dtype_bytes(view.dtype);
  return view;
}

namespace {

// Scales and zero points of the parts [groups, rows] beside one another, and their columns.
void stack_scales(const std::vector<ParamView>& parts, ParamView& all) {
  const auto any = [&](const auto& has) { return std::ranges::any_of(parts, has); };
  const bool zeros = any([](const ParamView& part) { return !part.zero.empty(); });
  const auto groups = static_cast<int64_t>(all.scale_inv.size()) / parts[0].rows;
  all.scale_inv.clear(), all.zero.clear();
  for (int64_t g = 0; g < groups; ++g)
    for (const ParamView& part : parts) {
      const int64_t at = g * part.rows;
      all.scale_inv.insert(all.scale_inv.end(), part.scale_inv.begin() + at, part.scale_inv.begin() + at + part.rows);
      if (zeros && part.zero.empty()) all.zero.resize(all.zero.size() + static_cast<size_t>(part.rows), 0);
      if (!part.zero.empty())
        all.zero.insert(all.zero.end(), part.zero.begin() + at, part.zero.begin() + at + part.rows);
    }
  if (!any([&](const ParamView& part) { return part.columns != parts[0].columns; })) return;
  all.columns.clear();
  for (const ParamView& part : parts)
    for (int32_t k = 0; k < part.cols; ++k)
      all.columns.push_back(part.columns.empty() ? k : part.columns[static_cast<size_t>(k)]);
}

}  // namespace

ParamView stacked(const std::vector<ParamView>& parts) {
  ParamView all = parts.front();
  if (parts.size() == 1) return all;
  all.rows = 0;
  for (const ParamView& part : parts) {
    check(part.dtype == all.dtype, ErrorCode::kUnsupported, "{}: its parts are {} and {}: they must be of one type",
          all.name, dtype_name(all.dtype), dtype_name(part.dtype));
    check(part.rows == part.run_rows && part.rows == parts[0].rows && part.cols == all.cols &&
              part.row_stride == all.row_stride && part.col_stride == all.col_stride && part.packing == all.packing &&
              part.first_row == 0 && part.scale_inv.size() == parts[0].scale_inv.size(),
          ErrorCode::kInternal, "{}: its parts are not matrices of equal shape", all.name);
    all.rows += part.rows;
    all.runs.push_back(part.data);
  }
  stack_scales(parts, all);
  return all;
}

ParamView view_of(DType dtype, const void* data, int64_t rows, int64_t cols, const std::string& name) {
  return {.name = name,
          .dtype = dtype,
          .data = static_cast<const std::byte*>(data),
          .rows = rows,
          .cols = cols,
          .row_stride = cols,
          .run_rows = rows,
          .run_stride = rows * cols};
}

ParamView transposed(const ParamView& view) {
  check(view.run_rows == view.rows && view.scale_inv.empty() && !view.computed, ErrorCode::kInternal,
        "{} is not one matrix", view.name);
  ParamView result = view;
  std::swap(result.rows, result.cols);
  std::swap(result.row_stride, result.col_stride);
  result.run_rows = result.rows;
  return result;
}

int64_t row_grain(const ParamView& view) {
  const int64_t rows = std::max<int64_t>(kBlockElements / std::max<int64_t>(view.cols, 1), 1);
  return view.col_stride == 1 ? rows : std::max(rows, kTile);
}

void read_rows(const ParamView& view, int64_t first, int64_t count, DType to_dtype, void* to) {
  const int64_t row_bytes = storage_bytes(to_dtype, view.cols);
  auto* out = static_cast<std::byte*>(to);
  const bool scaled = !view.scale_inv.empty() && to_dtype != view.dtype;
  std::vector<float> values;
  for_blocks(view, first, count, [&](const std::byte* block, int64_t row, int64_t rows) {
    const int64_t elements = rows * view.cols;
    std::byte* at = out + (row - first) * row_bytes;
    check_finite(view, block, row * view.cols, elements);
    if (!scaled) return convert(view.dtype, block, to_dtype, at, elements);
    to_floats(view, block, row, rows, values);
    convert(DType::kF32, values.data(), to_dtype, at, elements);
  });
}

void read_all(const ParamView& view, DType to_dtype, void* to) {
  const int64_t row_bytes = storage_bytes(to_dtype, view.cols);
  parallel_for(view.rows, row_grain(view), [&](int64_t begin, int64_t end) {
    read_rows(view, begin, end - begin, to_dtype, static_cast<std::byte*>(to) + begin * row_bytes);
  });
}

std::vector<float> read_floats(const ParamView& view) {
  std::vector<float> values(static_cast<size_t>(view.elements()));
  read_all(view, DType::kF32, values.data());
  return values;
}

std::vector<float> read_part(const ParamView& view, int64_t part, int64_t parts) {
  const int64_t rows = view.rows / parts;
  std::vector<float> values(static_cast<size_t>(rows * view.cols));
  parallel_for(rows, row_grain(view), [&](int64_t begin, int64_t end) {
    read_rows(view, part * rows + begin, end - begin, DType::kF32, values.data() + begin * view.cols);
  });
  return values;
}

float largest_magnitude(const ParamView& view) {
  // What is stored by columns is read by columns.
  const bool by_columns = view.col_stride != 1 && view.run_rows == view.rows && view.scale_inv.empty();
  const ParamView stored = by_columns ? transposed(view) : view;
  std::atomic<uint32_t> most = 0;
  parallel_for(stored.rows, row_grain(stored), [&](int64_t begin, int64_t end) {
    std::vector<float> values;
    uint32_t largest = 0;
    for_blocks(stored, begin, end - begin, [&](const std::byte* block, int64_t row, int64_t rows) {
      to_floats(stored, block, row, rows, values);
      for (const float value : values) largest = std::max(largest, std::bit_cast<uint32_t>(value) & 0x7fffffffu);
    });
    uint32_t seen = most.load();
    while (seen < largest && !most.compare_exchange_weak(seen, largest)) {
    }
  });
  const auto amax = std::bit_cast<float>(most.load());
  if (!std::isfinite(amax)) read_floats(view);  // throws, naming the first
  return amax;
}

}  // namespace octet
