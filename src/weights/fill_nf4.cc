#include "weights/fill_nf4.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <span>

#include "base/error.h"
#include "base/integers.h"
#include "base/threads.h"
#include "ir/nf4.h"
#include "weights/nf4_folder.h"
#include "weights/quantize_nf4.h"

namespace octet {
namespace {

// In the forms of op dequantize_nf4.
struct Beside {
  std::vector<int8_t> magnitudes;
  std::vector<float> scales, offsets;
};

// Bytes of bitsandbytes, whose first code is in the upper half, as i4: the first in the lower half, less 8.
uint8_t as_i4(uint8_t two) { return static_cast<uint8_t>((two >> 4 | two << 4) ^ 0x88); }

// put(index of the first byte, bytes): codes of all values, piece by piece.
using PutCodes = std::function<void(int64_t at, std::span<const std::byte> codes)>;

class Nf4Filler {
 public:
  // `group`: magnitudes of a scale. `nested`: of floats they become codes, else stay float32, of groups of 1.
  Nf4Filler(const ParamView& view, const Shape& codes, int64_t group, bool nested)
      : view_(view), shape_(codes), group_(group), nested_(nested), blocks_(ceil_div(codes.elements(), kNf4Block)) {
    const Nf4Shapes shapes = nf4_shapes(codes, group);
    beside_.magnitudes.resize(static_cast<size_t>(blocks_));
    beside_.scales.resize(static_cast<size_t>(shapes.scales.elements()));
    beside_.offsets.resize(static_cast<size_t>(shapes.offsets.elements()));
    row_blocks_ = shapes.magnitudes[1];
  }

  const Beside& run(const PutCodes& put) {
    view_.four_bit != nullptr ? copy(put) : quantize(put);
    return beside_;
  }

 private:
  static constexpr int64_t kPieceValues = int64_t{1} << 20;

  // fn(first row, rows): pieces of whole rows that are whole blocks, but for the last.
  template <typename Fn>
  void for_pieces(const Fn& fn) const {
    const int64_t rows = shape_[0], align = kNf4Block / std::gcd(kNf4Block, shape_[1]);
    const int64_t step = std::max(round_up(kPieceValues / shape_[1], align), align);
    for (int64_t row = 0; row < rows; row += step) fn(row, std::min(step, rows - row));
  }

  void quantize(const PutCodes& put) {
    std::vector<float> values, magnitudes;
    for_pieces([&](int64_t first, int64_t rows) {
      values.resize(static_cast<size_t>(rows * shape_[1]));
      parallel_for(rows, row_grain(view_), [&](int64_t begin, int64_t end) {
        read_rows(view_, first + begin, end - begin, DType::kF32, values.data() + begin * shape_[1]);
      });
      Nf4Matrix piece = quantize_nf4(values);
      magnitudes.insert(magnitudes.end(), piece.magnitudes.begin(), piece.magnitudes.end());
      std::ranges::transform(piece.codes, piece.codes.begin(), as_i4);
      put(first * shape_[1] / 2, std::as_bytes(std::span(piece.codes)));
    });
    if (!nested_) {
      for (int64_t b = 0; b < blocks_; ++b) set_single(b, magnitudes[static_cast<size_t>(b)]);
      return;
    }
    const NestedMagnitudes nested = quantize_magnitudes(magnitudes);
    for (int64_t b = 0; b < blocks_; ++b) {
      beside_.magnitudes[static_cast<size_t>(b)] = as_code(nested.codes[static_cast<size_t>(b)]);
      beside_.scales[static_cast<size_t>(b / group_)] = nested.scales[static_cast<size_t>(b / kNf4Nested)];
    }
    std::ranges::fill(beside_.offsets, nested.offset);
  }

  void copy(const PutCodes& put) {
    std::vector<uint8_t> codes;
    for_pieces([&](int64_t first, int64_t rows) {
      codes.resize(static_cast<size_t>(rows * shape_[1] / 2));
      for (int64_t r = 0; r < rows; ++r) {
        const auto [from, at] = (*view_.four_bit)(first + r);
        const int64_t to = r * shape_[1];
        require(from->is_nf4(), "its tables are not those of nf4");
        require(at % 2 == 0 && to % 2 == 0 && (first * shape_[1] + to - at) % kNf4Block == 0 &&
                    from->block % kNf4Block == 0,
                "its blocks begin elsewhere");
        std::transform(from->codes + at / 2, from->codes + (at + shape_[1] + 1) / 2, codes.begin() + to / 2, as_i4);
      }
      put(first * shape_[1] / 2, std::as_bytes(std::span(codes)));
    });
    FourBitRow row;
    for (int64_t b = 0, last = -1; b < blocks_; ++b) {
      const int64_t of_row = b * kNf4Block / shape_[1];
      if (of_row != last) row = (*view_.four_bit)(last = of_row);
      copy_magnitude(b, *row.codes, (row.first + b * kNf4Block - of_row * shape_[1]) / row.codes->block);
    }
  }

  void copy_magnitude(int64_t b, const FourBitCodes& from, int64_t block) {
    if (group_ == 1 && from.absmax != nullptr) return set_single(b, from.factor(block));
    require(from.absmax == nullptr, "its magnitudes are in float32, those of other tensors in codes");
    const float scale = from.nested_absmax[block / from.nested_block];
    beside_.magnitudes[static_cast<size_t>(b)] = as_code(from.nested_codes[block]);
    set(beside_.scales[static_cast<size_t>(b / group_)], scale, b % group_ == 0);
    set(beside_.offsets[static_cast<size_t>(b / row_blocks_)], from.nested_offset, b % row_blocks_ == 0);
  }

  void set(float& to, float value, bool first) const {
    require(first || to == value, "what its magnitudes share lies elsewhere");
    to = value;
  }

  void set_single(int64_t b, float magnitude) {
    beside_.magnitudes[static_cast<size_t>(b)] = 127;  // 1
    beside_.scales[static_cast<size_t>(b)] = magnitude;
  }

  static int8_t as_code(uint8_t index) { return static_cast<int8_t>(index - 128); }

  void require(bool condition, const char* otherwise) const {
    check(condition, ErrorCode::kUnsupported,
          "{} is stored in 4 bits, and {}, so that adapter.base=nf4 cannot hold it as it is: leave adapter.base out",
          view_.name, otherwise);
  }

  const ParamView& view_;
  Shape shape_;
  int64_t group_;
  bool nested_;
  int64_t blocks_, row_blocks_ = 0;
  Beside beside_;
};

}  // namespace

void fill_nf4(Executor& executor, const Nf4Param& param, const ParamView& view) {
  const int64_t blocks = param.magnitudes.type.shape.elements(), scales = param.scales.type.shape.elements();
  const bool rows = has_whole_nf4_blocks(param.codes.type.shape);
  // The scales' shape tells the group of whole rows, where ranks may have made it smaller, the attribute that of
  // others.
  const auto wanted = param.leaf->attrs.get<int64_t>("nf4");
  Nf4Filler filler(view, param.codes.type.shape, rows ? blocks / scales : wanted, wanted > 1);
  const Beside& beside = filler.run(
      [&](int64_t at, std::span<const std::byte> codes) { write_logical(executor, param.codes, codes, at); });
  write_logical(executor, param.magnitudes, std::as_bytes(std::span(beside.magnitudes)));
  write_logical(executor, param.scales, std::as_bytes(std::span(beside.scales)));
  write_logical(executor, param.offsets, std::as_bytes(std::span(beside.offsets)));
}

std::vector<float> round_to_nf4(const ParamView& view, int64_t nf4) {
  const Shape shape{view.rows, view.cols};
  const int64_t group = nf4_group(shape, nf4);
  std::vector<uint8_t> codes(static_cast<size_t>(shape.elements() / 2));
  Nf4Filler filler(view, shape, group, nf4 > 1);
  const Beside& beside = filler.run([&](int64_t at, std::span<const std::byte> piece) {
    std::ranges::copy(piece, std::as_writable_bytes(std::span(codes)).begin() + at);
  });
  const int64_t row_blocks = nf4_shapes(shape, group).magnitudes[1];
  std::vector<float> values(static_cast<size_t>(shape.elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t b = i / kNf4Block;
    const float scaled = nf4_magnitude_values()[static_cast<size_t>(beside.magnitudes[b] + 128)] *
                         beside.scales[b / static_cast<size_t>(group)];
    const float magnitude = scaled + beside.offsets[b / static_cast<size_t>(row_blocks)];
    values[i] = kNf4Values[(codes[i / 2] >> (i % 2 * 4) & 15) ^ 8] * magnitude;
  }
  return values;
}

}  // namespace octet
