// scatter_rows: new rows copied into their slots of the cache, in place; slot -1 is not stored. scatter_codes: the same
// as int8 codes with scales. copy_blocks: whole blocks of the cache copied to others.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/threads.h"
#include "kernels/cpu/precision/scale_formula.h"
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

void check_slots(const char* op, const int32_t* slot, int64_t tokens, int64_t slots) {
  for (int64_t t = 0; t < tokens; ++t) {
    check(slot[t] >= -1 && slot[t] < slots, ErrorCode::kInvalidArgument, "{}: slot {} of a cache of {}", op, slot[t],
          slots);
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
    check_slots("scatter_rows", slot, tokens, slots);
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

// A group of a row as codes; returns scale_inv.
template <typename T>
float append_codes(const T* x, int64_t count, I8* codes) {
  const float scale = scale_from_amax(std::bit_cast<float>(amax_run(x, count)), DType::kI8, 0, false);
  for (int64_t i = 0; i < count; ++i) codes[i] = codec::encode<I8>(codec::decode(x[i]) * scale);
  return 1.0f / scale;
}

BoundKernel bind_codes(const Graph& graph, const Node& node) {
  const TensorType &rows = graph.type(node.inputs[1]), &scales = node.results[1];
  if (!is_f32_or_bf16(rows.dtype)) return nullptr;
  const int64_t slots = scales.shape.rows(), groups = scales.shape.cols(), width = rows.shape.cols() / groups;
  return [=, tokens = rows.shape.rows(), from = rows.dtype](const KernelArgs& args) {
    const int32_t* slot = args.in[2].as<const int32_t>();
    check_slots("scatter_codes", slot, tokens, slots);
    copy_tensor(args.in[0], args.out[0]);
    copy_tensor(args.in[3], args.out[1]);
    auto* codes = args.out[0].as<I8>();
    auto* scale_inv = args.out[1].as<float>();
    std::vector<I8> unwanted(codes == nullptr ? static_cast<size_t>(width) : 0);
    with_float_type(from, [&]<typename T>(T) {
      const T* x = args.in[1].as<const T>();
      for (int64_t t = 0; t < tokens; ++t) {  // as scatter_rows
        for (int64_t g = 0; g < groups && slot[t] >= 0; ++g) {
          const int64_t at = slot[t] * groups + g;
          const float inverse = append_codes(x + (t * groups + g) * width, width,
                                             codes != nullptr ? codes + at * width : unwanted.data());
          if (scale_inv != nullptr) scale_inv[at] = inverse;
        }
      }
    });
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
  return {{Op::kScatterRows, "scatter_rows_copy", bind_scatter},
          {Op::kScatterCodes, "scatter_codes_rows", bind_codes},
          {Op::kCopyBlocks, "copy_blocks_threads", bind_copy}};
}

}  // namespace octet::cpu
