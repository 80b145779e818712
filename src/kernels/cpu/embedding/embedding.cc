// The gradient of a table lookup: each row of the table is owned by one thread, which adds its tokens in order, so sums
// do not depend on the number of threads. An id outside the table is an error before anything is written; outside a
// part of it, another rank's.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/threads.h"
#include "kernels/common/parts.h"
#include "kernels/cpu/row_kernels.h"

namespace octet::cpu {
namespace {

constexpr int64_t kGrainElements = 16 * 1024;

template <typename T>
void add_rows(const KernelArgs& args, int64_t tokens, int64_t rows, int64_t cols, const TablePart& part) {
  const int32_t* ids = args.in[0].as<const int32_t>();
  const T* dy = args.in[1].as<const T>();
  const float* c = args.in.size() > 2 ? args.in[2].as<const float>() : nullptr;
  float* table = args.out[0].as<float>();
  for (int64_t t = 0; t < tokens && !part.is_part; ++t) {
    check(ids[t] >= 0 && ids[t] < rows, ErrorCode::kInvalidArgument,
          "embedding_grad: id {} of token {} is outside the table's {} rows", ids[t], t, rows);
  }
  parallel_for(rows, std::max<int64_t>(1, kGrainElements / cols), [&](int64_t begin, int64_t end) {
    const auto size = static_cast<size_t>((end - begin) * cols) * sizeof(float);
    if (c == nullptr) {
      std::memset(table + begin * cols, 0, size);
    } else if (c != table) {
      std::memcpy(table + begin * cols, c + begin * cols, size);
    }
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t id = ids[t] - part.first;
      if (id < begin || id >= end) continue;
      float* row = table + id * cols;
      simd::for_lanes(cols, [&](int64_t i, auto lanes) {
        simd::store(row + i, simd::load(row + i, lanes) + simd::load(dy + t * cols + i, lanes), lanes);
      });
    }
  });
}

BoundKernel bind_gradient(const Graph& graph, const Node& node) {
  const TensorType& table = node.results[0];
  const DType dy = graph.dtype(node.inputs[1]);
  if (!is_f32_or_bf16(dy)) return nullptr;
  const int64_t tokens = graph.shape(node.inputs[0]).elements(), rows = table.shape.rows(), cols = table.shape.cols();
  return with_float_type(dy, [&]<typename T>(T) -> BoundKernel {
    return [=, part = TablePart(node)](const KernelArgs& args) { add_rows<T>(args, tokens, rows, cols, part); };
  });
}

}  // namespace

std::vector<KernelEntry> embedding_kernels() {
  return {{Op::kEmbeddingGrad, "embedding_grad_owned_rows", bind_gradient}};
}

}  // namespace octet::cpu
