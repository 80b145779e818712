// Table lookup, and its gradient: each row of the table is owned by one thread, which adds its tokens in order, so
// sums do not depend on the number of threads. An id outside the table is an error before anything is written.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/threads.h"
#include "kernels/cpu/row_kernels.h"
#include "kernels/cpu/simd.h"

namespace octet::cpu {
namespace {

constexpr int64_t kGrainElements = 16 * 1024;

void check_ids(const int32_t* ids, int64_t count, int64_t rows, const char* op) {
  for (int64_t t = 0; t < count; ++t) {
    check(ids[t] >= 0 && ids[t] < rows, ErrorCode::kInvalidArgument,
          "{}: id {} of token {} is outside the table's {} rows", op, ids[t], t, rows);
  }
}

bool accepts_lookup(const Graph& graph, const Node& node) {
  return is_float(graph.dtype(node.inputs[1])) && is_float(node.results[0].dtype);
}

BoundKernel bind_lookup(const Graph& graph, const Node& node) {
  const TensorType table = graph.type(node.inputs[1]);
  const DType to = node.results[0].dtype;
  const int64_t tokens = graph.shape(node.inputs[0]).elements(), rows = table.shape.rows(), cols = table.shape.cols();
  return [=, from = table.dtype](const KernelArgs& args) {
    const int32_t* ids = args.in[0].as<const int32_t>();
    check_ids(ids, tokens, rows, "embedding");
    parallel_for(tokens, std::max<int64_t>(1, kGrainElements / cols), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        convert(from, args.in[1].as<const std::byte>() + ids[t] * cols * dtype_bytes(from), to,
                args.out[0].as<std::byte>() + t * cols * dtype_bytes(to), cols);
      }
    });
  };
}

// float32 tables (weight gradients stay in float32), dy of either type
bool accepts_gradient(const Graph& graph, const Node& node) {
  const Value c = node.operand("c");
  return is_f32_or_bf16(graph.dtype(node.inputs[1])) && node.results[0].dtype == DType::kF32 &&
         (!c.exists() || graph.dtype(c) == DType::kF32);
}

template <typename T>
void add_rows(const KernelArgs& args, int64_t tokens, int64_t rows, int64_t cols) {
  const int32_t* ids = args.in[0].as<const int32_t>();
  const T* dy = args.in[1].as<const T>();
  const float* c = args.in.size() > 2 ? args.in[2].as<const float>() : nullptr;
  float* table = args.out[0].as<float>();
  check_ids(ids, tokens, rows, "embedding_grad");
  parallel_for(rows, std::max<int64_t>(1, kGrainElements / cols), [&](int64_t begin, int64_t end) {
    const auto size = static_cast<size_t>((end - begin) * cols) * sizeof(float);
    if (c == nullptr) {
      std::memset(table + begin * cols, 0, size);
    } else if (c != table) {
      std::memcpy(table + begin * cols, c + begin * cols, size);
    }
    for (int64_t t = 0; t < tokens; ++t) {
      if (ids[t] < begin || ids[t] >= end) continue;
      float* row = table + ids[t] * cols;
      simd::for_lanes(cols, [&](int64_t i, auto lanes) {
        simd::store(row + i, simd::load(row + i, lanes) + simd::load(dy + t * cols + i, lanes), lanes);
      });
    }
  });
}

BoundKernel bind_gradient(const Graph& graph, const Node& node) {
  const int64_t tokens = graph.shape(node.inputs[0]).elements();
  const int64_t rows = node.results[0].shape.rows(), cols = node.results[0].shape.cols();
  const bool bf16 = graph.dtype(node.inputs[1]) == DType::kBF16;
  return [=](const KernelArgs& args) {
    bf16 ? add_rows<BF16>(args, tokens, rows, cols) : add_rows<float>(args, tokens, rows, cols);
  };
}

}  // namespace

std::span<const KernelEntry> embedding_kernels() {
  static const KernelEntry kernels[] = {
      {Op::kEmbedding, "embedding_lookup", accepts_lookup, bind_lookup},
      {Op::kEmbeddingGrad, "embedding_grad_owned_rows", accepts_gradient, bind_gradient},
  };
  return kernels;
}

}  // namespace octet::cpu
