// The gradient of a table lookup: each row of the table is owned by one thread, which adds its tokens in order, so sums
// do not depend on the number of threads. An id outside the table is an error before anything is written; outside a
// part of it, another rank's. The same as a list of the rows that tokens looked up, by sorting their ids.
#include <algorithm>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "base/threads.h"
#include "kernels/common/parts.h"
#include "kernels/cpu/embedding/capacity.h"
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

// Rows by (id, place), those of c first; a thread sums the rows of some of the distinct ids in order.
class Coalesce {
 public:
  Coalesce(const Graph& graph, const Node& node)
      : name_(node.name),
        tokens_(graph.shape(node.inputs[0]).elements()),
        capacity_(node.results[0].shape.elements()),
        cols_(node.results[1].shape.cols()),
        first_(node.operand("c_ids").exists() ? capacity_ : 0) {
    sorted_.reserve(static_cast<size_t>(first_ + tokens_));
    begins_.reserve(sorted_.capacity() + 1);
  }

  template <typename T>
  void run(const KernelArgs& args) {
    sort(args);
    int32_t* ids = args.out[0].as<int32_t>();
    float* rows = args.out[1].as<float>();
    const int64_t distinct = std::ssize(begins_) - 1;
    check_capacity(name_, distinct, capacity_);
    parallel_for(capacity_, std::max<int64_t>(1, kGrainElements / cols_), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto at = static_cast<size_t>(i);
        const bool used = i < distinct;
        if (ids != nullptr) ids[i] = used ? static_cast<int32_t>(sorted_[begins_[at]] >> 32) : -1;
        if (rows != nullptr) sum<T>(args, used ? begins_[at] : 0, used ? begins_[at + 1] : 0, rows + i * cols_);
      }
    });
  }

 private:
  void sort(const KernelArgs& args) {
    sorted_.clear(), begins_.clear();
    const auto add = [&](const int32_t* ids, int64_t count, int64_t place) {
      for (int64_t t = 0; t < count; ++t) {
        check(ids[t] >= -1, ErrorCode::kInvalidArgument, "coalesce_rows \"{}\": id {} of row {}", name_, ids[t], t);
        if (ids[t] >= 0) sorted_.push_back(static_cast<uint64_t>(ids[t]) << 32 | static_cast<uint64_t>(place + t));
      }
    };
    if (first_ > 0) add(args.in[2].as<const int32_t>(), first_, 0);
    add(args.in[0].as<const int32_t>(), tokens_, first_);
    std::ranges::sort(sorted_);
    for (size_t i = 0; i < sorted_.size(); ++i)
      if (i == 0 || sorted_[i] >> 32 != sorted_[i - 1] >> 32) begins_.push_back(i);
    begins_.push_back(sorted_.size());
  }

  template <typename T>
  void sum(const KernelArgs& args, size_t begin, size_t end, float* to) const {
    std::fill_n(to, cols_, 0.0f);
    const auto add = [&]<typename From>(const From* row) {
      simd::for_lanes(cols_, [&](int64_t i, auto lanes) {
        simd::store(to + i, simd::load(to + i, lanes) + simd::load(row + i, lanes), lanes);
      });
    };
    for (size_t i = begin; i < end; ++i) {
      const auto place = static_cast<int64_t>(sorted_[i] & 0xffffffff);
      if (place < first_) {
        add(args.in[3].as<const float>() + place * cols_);
      } else {
        add(args.in[1].as<const T>() + (place - first_) * cols_);
      }
    }
  }

  std::string name_;
  int64_t tokens_, capacity_, cols_, first_;  // first_: rows of c
  std::vector<uint64_t> sorted_;              // of every row its id and, in the low half, its place
  std::vector<size_t> begins_;                // of each distinct id among them, and the end
};

BoundKernel bind_coalesce(const Graph& graph, const Node& node) {
  const DType rows = graph.dtype(node.inputs[1]);
  if (!is_f32_or_bf16(rows)) return nullptr;
  auto coalesce = std::make_shared<Coalesce>(graph, node);
  return with_float_type(rows, [&]<typename T>(T) -> BoundKernel {
    return [coalesce](const KernelArgs& args) { coalesce->run<T>(args); };
  });
}

}  // namespace

std::vector<KernelEntry> embedding_kernels() {
  return {{Op::kEmbeddingGrad, "embedding_grad_owned_rows", bind_gradient},
          {Op::kCoalesceRows, "coalesce_rows_sorted", bind_coalesce}};
}

}  // namespace octet::cpu
