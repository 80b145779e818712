// scatter_rows: new rows copied into their slots of the cache, in place; slot -1 is not stored. copy_blocks: whole
// blocks of the cache copied to others.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/threads.h"
#include "kernels/cpu/row_kernels.h"

namespace octet::cpu {
namespace {

constexpr int64_t kPiece = 512;  // elements of a row scaled at a time

// row x scale, rounded to float32 and then to the cache's type.
template <typename T>
void append_scaled(const T* row, float scale, DType to, std::byte* slot, int64_t width) {
  float piece[kPiece];
  for (int64_t begin = 0; begin < width; begin += kPiece) {
    const int64_t count = std::min(kPiece, width - begin);
    simd::for_lanes(count, [&](int64_t i, auto lanes) {
      simd::store(piece + i, simd::load(row + begin + i, lanes) * scale, lanes);
    });
    convert(DType::kF32, piece, to, slot + begin * dtype_bytes(to), count);
  }
}

BoundKernel bind_scatter(const Graph& graph, const Node& node) {
  const DType from = graph.dtype(node.inputs[1]), to = node.results[0].dtype;
  const bool scaled = node.operand("scale").exists();
  if (scaled && (!is_f32_or_bf16(from) || to == DType::kF64)) return nullptr;
  const int64_t slots = node.results[0].shape.rows(), width = node.results[0].shape.cols();
  const int64_t tokens = graph.shape(node.inputs[2]).elements();
  return [=](const KernelArgs& args) {
    const int32_t* slot = args.in[2].as<const int32_t>();
    for (int64_t t = 0; t < tokens; ++t) {
      check(slot[t] >= -1 && slot[t] < slots, ErrorCode::kInvalidArgument, "scatter_rows: slot {} of a cache of {}",
            slot[t], slots);
    }
    auto* cache = args.out[0].as<std::byte>();
    copy_tensor(args.in[0], args.out[0]);
    // In token order on one thread: few bytes, and of two tokens with one slot the last is stored.
    for (int64_t t = 0; t < tokens; ++t) {
      if (slot[t] < 0) continue;
      const std::byte* row = args.in[1].as<const std::byte>() + t * width * dtype_bytes(from);
      std::byte* place = cache + slot[t] * width * dtype_bytes(to);
      if (scaled) {
        with_float_type(from, [&]<typename T>(T) {
          append_scaled(reinterpret_cast<const T*>(row), *args.in[3].as<float>(), to, place, width);
        });
      } else if (from == to) {
        std::memcpy(place, row, static_cast<size_t>(width * dtype_bytes(to)));
      } else {
        convert(from, row, to, place, width);
      }
    }
  };
}

BoundKernel bind_copy(const Graph& graph, const Node& node) {
  const TensorType& cache = node.results[0];
  const int64_t block_size = node.attr<int64_t>("block_size"), blocks = cache.shape[0] / block_size;
  const int64_t bytes = block_size * cache.shape[1] * dtype_bytes(cache.dtype);
  const int64_t count = graph.shape(node.inputs[1])[0];
  return [=](const KernelArgs& args) {
    const int32_t* pairs = args.in[1].as<const int32_t>();
    for (int64_t p = 0; p < count; ++p) {
      check(pairs[2 * p] < blocks && pairs[2 * p + 1] < blocks, ErrorCode::kInvalidArgument,
            "copy_blocks: {} to {} of {} blocks", pairs[2 * p], pairs[2 * p + 1], blocks);
    }
    auto* to = args.out[0].as<std::byte>();
    copy_tensor(args.in[0], args.out[0]);
    parallel_for(count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        if (pairs[2 * p] < 0 || pairs[2 * p + 1] < 0) continue;
        std::memcpy(to + pairs[2 * p + 1] * bytes, to + pairs[2 * p] * bytes, static_cast<size_t>(bytes));
      }
    });
  };
}

}  // namespace

std::vector<KernelEntry> cache_kernels() {
  return {{Op::kScatterRows, "scatter_rows_copy", bind_scatter}, {Op::kCopyBlocks, "copy_blocks_threads", bind_copy}};
}

}  // namespace octet::cpu
