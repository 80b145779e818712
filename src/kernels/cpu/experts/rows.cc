// Rows of tokens to where their experts read them, and back: threads over tokens, each in the order of its choices.
#include <algorithm>
#include <cstring>

#include "base/codec.h"
#include "base/error.h"
#include "base/threads.h"
#include "kernels/cpu/experts/experts.h"

namespace octet::cpu {
namespace {

constexpr int64_t kGrainElements = 1 << 14;

// Of choice `i`, checked.
int64_t place_of(const Tensor& places, int64_t i) {
  const int64_t place = places.as<int32_t>()[i];
  check(place >= 0 && place < places.elements(), ErrorCode::kInvalidArgument, "place {} of {} rows", place,
        places.elements());
  return place;
}

// fn(token) for all, by all threads; `width`: elements of a row.
template <typename Fn>
void for_tokens(const Tensor& places, int64_t width, const Fn& fn) {
  const int64_t of_token = std::max<int64_t>(width * places.shape().cols(), 1);
  parallel_for(places.shape().rows(), std::max<int64_t>(kGrainElements / of_token, 1), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) fn(t);
  });
}

BoundKernel bind_dispatch(const Graph&, const Node& node) {
  return [scaled = node.operand("scale_inv").exists()](const KernelArgs& args) {
    const Tensor &x = args.in[0], &places = args.in[1];
    const int64_t bytes = x.shape().cols() * dtype_bytes(x.dtype()), k = places.shape().cols();
    for_tokens(places, x.shape().cols(), [&](int64_t t) {
      for (int64_t i = t * k; i < (t + 1) * k; ++i) {
        const int64_t place = place_of(places, i);
        if (args.out[0].data != nullptr)
          std::memcpy(args.out[0].as<std::byte>() + place * bytes, x.as<std::byte>() + t * bytes,
                      static_cast<size_t>(bytes));
        if (scaled && args.out[1].data != nullptr) args.out[1].as<float>()[place] = args.in[2].as<float>()[t];
      }
    });
  };
}

BoundKernel bind_combine(const Graph& graph, const Node& node) {
  const DType dtype = node.results[0].dtype;
  if (!is_wide_float(dtype)) return nullptr;
  const bool weighted = node.operand("weights").exists();
  return with_wide_type(dtype, [&]<typename T>(T) -> BoundKernel {
    return [weighted](const KernelArgs& args) {
      const Tensor &rows = args.in[0], &places = args.in[1];
      const float* weights = weighted ? args.in[2].as<float>() : nullptr;
      const int64_t width = rows.shape().cols(), k = places.shape().cols();
      for_tokens(places, width, [&](int64_t t) {
        std::vector<float> sums(static_cast<size_t>(width));
        for (int64_t i = t * k; i < (t + 1) * k; ++i) {
          const T* row = rows.as<T>() + place_of(places, i) * width;
          const float weight = weights != nullptr ? weights[i] : 1.0f;
          for (int64_t c = 0; c < width; ++c) sums[static_cast<size_t>(c)] += weight * codec::decode(row[c]);
        }
        T* to = args.out[0].as<T>() + t * width;
        for (int64_t c = 0; c < width; ++c) to[c] = codec::encode<T>(sums[static_cast<size_t>(c)]);
      });
    };
  });
}

BoundKernel bind_combine_grad(const Graph& graph, const Node& node) {
  const DType dtype = node.results[0].dtype;
  if (!is_wide_float(dtype) || graph.dtype(node.inputs[3]) != dtype) return nullptr;
  return with_wide_type(dtype, [&]<typename T>(T) -> BoundKernel {
    return [](const KernelArgs& args) {
      const Tensor &rows = args.in[0], &places = args.in[1];
      const int64_t width = rows.shape().cols(), k = places.shape().cols();
      T* drows = static_cast<T*>(args.out[0].data);
      float* dweights = static_cast<float*>(args.out[1].data);
      for_tokens(places, width, [&](int64_t t) {
        const T* dy = args.in[3].as<T>() + t * width;
        for (int64_t i = t * k; i < (t + 1) * k; ++i) {
          const int64_t at = place_of(places, i) * width;
          const float weight = args.in[2].as<float>()[i];
          float sum = 0;
          for (int64_t c = 0; c < width; ++c) {
            const float given = codec::decode(dy[c]);
            if (drows != nullptr) drows[at + c] = codec::encode<T>(weight * given);
            sum += codec::decode(rows.as<T>()[at + c]) * given;
          }
          if (dweights != nullptr) dweights[i] = sum;
        }
      });
    };
  });
}

}  // namespace

std::vector<KernelEntry> experts_kernels() {
  std::vector<KernelEntry> entries = grouped_product_kernels();
  entries.push_back({Op::kDispatchRows, "dispatch_rows_copy", bind_dispatch});
  entries.push_back({Op::kCombineRows, "combine_rows_direct", bind_combine});
  entries.push_back({Op::kCombineRowsGrad, "combine_rows_grad_direct", bind_combine_grad});
  return entries;
}

}  // namespace octet::cpu
