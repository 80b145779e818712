// reshape, slice, concat, transpose, select_rows, embedding: copies of bytes of any type; segment_mean.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/threads.h"
#include "kernels/common/parts.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/simd.h"

namespace octet::cpu {
namespace {

constexpr int64_t kGrainBytes = 128 * 1024;

int64_t grain_of(int64_t row_bytes) { return std::max<int64_t>(1, kGrainBytes / std::max<int64_t>(row_bytes, 1)); }

const std::byte* bytes(const Tensor& tensor) { return static_cast<const std::byte*>(tensor.data); }
std::byte* mutable_bytes(const Tensor& tensor) { return static_cast<std::byte*>(tensor.data); }

// rows of `width` bytes between two matrices with these row pitches
void copy_block(const std::byte* from, int64_t from_pitch, std::byte* to, int64_t to_pitch, int64_t rows,
                int64_t width) {
  if (width <= 0) return;
  parallel_for(rows, grain_of(width), [&](int64_t begin, int64_t end) {
    if (width == from_pitch && width == to_pitch) {
      std::memcpy(to + begin * width, from + begin * width, static_cast<size_t>((end - begin) * width));
      return;
    }
    for (int64_t row = begin; row < end; ++row) {
      std::memcpy(to + row * to_pitch, from + row * from_pitch, static_cast<size_t>(width));
    }
  });
}

// Bytes per index of `axis` and before it: a tensor seen as [outer, axis * inner bytes].
struct Outer {
  int64_t outer = 1, inner_bytes = 1, axis = 1;
  Outer(const TensorType& type, int64_t at) {
    if (at < 0) at += type.shape.rank();
    inner_bytes = dtype_bytes(type.dtype);
    for (int i = 0; i < type.shape.rank(); ++i) (i < at ? outer : i == at ? axis : inner_bytes) *= type.shape[i];
  }
};

BoundKernel bind_reshape(const Graph&, const Node&) {  // a view shares its input's bytes: nothing to do
  return [](const KernelArgs& args) { copy_tensor(args.in[0], args.out[0]); };
}

BoundKernel bind_slice(const Graph& graph, const Node& node) {
  const Outer from(graph.type(node.inputs[0]), node.attr<int64_t>("axis"));
  const int64_t begin = node.attr<int64_t>("begin"), end = node.attr<int64_t>("end");
  return [=](const KernelArgs& args) {
    const int64_t width = (end - begin) * from.inner_bytes;
    copy_block(bytes(args.in[0]) + begin * from.inner_bytes, from.axis * from.inner_bytes, mutable_bytes(args.out[0]),
               width, from.outer, width);
  };
}

BoundKernel bind_concat(const Graph& graph, const Node& node) {
  const int64_t axis = node.attr<int64_t>("axis");
  std::vector<int64_t> widths;
  for (Value part : node.inputs) {
    const Outer from(graph.type(part), axis);
    widths.push_back(from.axis * from.inner_bytes);
  }
  const Outer to(node.results[0], axis);
  return [widths, to](const KernelArgs& args) {
    int64_t offset = 0;
    for (size_t i = 0; i < widths.size(); ++i) {
      copy_block(bytes(args.in[i]), widths[i], mutable_bytes(args.out[0]) + offset, to.axis * to.inner_bytes, to.outer,
                 widths[i]);
      offset += widths[i];
    }
  };
}

// In square tiles that fit the cache, so that both sides use whole cache lines.
template <typename T>
void transpose(const T* x, T* y, int64_t rows, int64_t cols) {
  constexpr int64_t kSquare = 64;
  parallel_for((cols + kSquare - 1) / kSquare, std::max<int64_t>(1, kGrainBytes / (kSquare * rows)),
               [&](int64_t first, int64_t last) {
                 for (int64_t c0 = first * kSquare; c0 < std::min(cols, last * kSquare); c0 += kSquare) {
                   const int64_t c1 = std::min(cols, c0 + kSquare);
                   for (int64_t r0 = 0; r0 < rows; r0 += kSquare) {
                     const int64_t r1 = std::min(rows, r0 + kSquare);
                     for (int64_t c = c0; c < c1; ++c) {
                       for (int64_t r = r0; r < r1; ++r) y[c * rows + r] = x[r * cols + c];
                     }
                   }
                 }
               });
}

BoundKernel bind_transpose(const Graph& graph, const Node& node) {
  const Shape shape = graph.shape(node.inputs[0]);
  const int64_t rows = shape.rows(), cols = shape.cols(), size = dtype_bytes(node.results[0].dtype);
  return [=](const KernelArgs& args) {
    const auto move = [&]<typename T>(T) { transpose(args.in[0].as<const T>(), args.out[0].as<T>(), rows, cols); };
    if (size == 1) move(uint8_t{});
    if (size == 2) move(uint16_t{});
    if (size == 4) move(uint32_t{});
    if (size == 8) move(uint64_t{});
  };
}

// Rows of a table by their numbers: select_rows and embedding, whose operands are the other way round. Zeros for row -1
// of select_rows, and of a part of a table for the rows of other ranks.
template <size_t kTable>
BoundKernel bind_gather(const Graph& graph, const Node& node) {
  const TensorType& table = graph.type(node.inputs[kTable]);
  const int64_t rows = table.shape.rows(), width = table.shape.cols() * dtype_bytes(table.dtype);
  return [rows, width, part = TablePart(node), op = op_name(node.op)](const KernelArgs& args) {
    const int32_t* ids = args.in[1 - kTable].as<const int32_t>();
    parallel_for(args.in[1 - kTable].elements(), grain_of(width), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int64_t id = ids[t] - part.first;
        const bool is_here = id >= 0 && id < rows;
        check(is_here || part.is_part || (kTable == 0 && id == -1), ErrorCode::kInvalidArgument,
              "{}: id {} of token {} is outside the table's {} rows", op, id, t, rows);
        std::byte* to = mutable_bytes(args.out[0]) + t * width;
        is_here ? std::memcpy(to, bytes(args.in[kTable]) + id * width, static_cast<size_t>(width))
                : std::memset(to, 0, static_cast<size_t>(width));
      }
    });
  };
}

// A task is some columns of a segment: rows are added in order.
BoundKernel bind_segment_mean(const Graph& graph, const Node& node) {
  const TensorType& type = graph.type(node.inputs[0]);
  if (!is_f32_or_bf16(type.dtype)) return nullptr;
  const int64_t rows = type.shape.rows(), cols = type.shape.cols();
  return [=, dtype = type.dtype](const KernelArgs& args) {
    const int32_t* starts = args.in[1].as<const int32_t>();
    parallel_for(args.in[1].elements() - 1, grain_of(rows * cols / 8), [&](int64_t first, int64_t last) {
      for (int64_t s = first; s < last; ++s) {
        check(starts[s] >= 0 && starts[s] <= starts[s + 1] && starts[s + 1] <= rows, ErrorCode::kInvalidArgument,
              "segment_mean: segment {} is [{}, {}) of {} rows", s, starts[s], starts[s + 1], rows);
        float* mean = args.out[0].as<float>() + s * cols;
        const float factor = 1.0f / static_cast<float>(std::max(1, starts[s + 1] - starts[s]));
        with_float_type(dtype, [&]<typename T>(T) {
          const T* x = args.in[0].as<const T>();
          simd::for_lanes(cols, [&](int64_t c, auto lanes) {
            simd::Floats sum{};
            for (int64_t t = starts[s]; t < starts[s + 1]; ++t) sum += simd::load(x + t * cols + c, lanes);
            simd::store(mean + c, sum * factor, lanes);
          });
        });
      }
    });
  };
}

}  // namespace

std::vector<KernelEntry> shape_kernels() {
  return {{Op::kReshape, "reshape_copy", bind_reshape},
          {Op::kSlice, "slice_copy", bind_slice},
          {Op::kConcat, "concat_copy", bind_concat},
          {Op::kTranspose, "transpose_squares", bind_transpose},
          {Op::kSelectRows, "select_rows_copy", bind_gather<0>},
          {Op::kSegmentMean, "segment_mean_lanes", bind_segment_mean},
          {Op::kEmbedding, "embedding_lookup", bind_gather<1>}};
}

}  // namespace octet::cpu
