// add, sub, mul, maximum; b has the shape of a, or is [C] against its last dim, or [1].
#include "kernels/cuda/common/pointwise.cuh"
#include "kernels/cuda/elementwise/elementwise.h"

namespace octet::cuda {
namespace {

// The operation is the same for the whole grid: its branch is free where memory is the bound, and saves instances.
__device__ __forceinline__ float combine(Binary op, float a, float b) {
  switch (op) {
    case Binary::kAdd: return a + b;
    case Binary::kSub: return a - b;
    case Binary::kMul: return a * b;
    default: return max_or_nan(a, b);
  }
}

template <typename A, typename B, Broadcast kBroadcast>
struct Combine {
  const A* a;
  const B* b;
  A* y;
  Divider cols;
  Binary op;
  bool whole_vectors;  // of b: cols is a multiple of them
  template <int kVec>
  struct Held {
    Vec<A, kVec> a;
    Vec<B, kVec> b;
  };
  template <int kVec>
  __device__ __forceinline__ Held<kVec> load(int64_t i) const {
    Held<kVec> held;
    held.a = read<kVec>(a + i);
    if constexpr (kBroadcast == Broadcast::kNone) {
      held.b = read<kVec>(b + i);
    } else if constexpr (kBroadcast == Broadcast::kRow) {
      int64_t col = cols.remainder(i);
      if (kVec == 1 || whole_vectors) {
        held.b = read<kVec>(b + col);
      } else {
        unroll<kVec>([&](int k) {
          held.b.at[k] = b[col];
          if (++col == cols.divisor) col = 0;
        });
      }
    } else {
      unroll<kVec>([&](int k) { held.b.at[k] = b[0]; });
    }
    return held;
  }
  template <int kVec>
  __device__ __forceinline__ void finish(const Held<kVec>& held, int64_t i) {
    Vec<A, kVec> v;
    unroll<kVec>([&](int k) { v.at[k] = from_float<A>(combine(op, to_float(held.a.at[k]), to_float(held.b.at[k]))); });
    write<kVec>(y + i, v);
  }
  __device__ void end() {}
};

template <typename A, typename B>
void launch(Binary op, Broadcast broadcast, const A* a, const B* b, A* y, int64_t count, int64_t cols,
            cudaStream_t stream) {
  constexpr int kBoth = kVecOf<A> < kVecOf<B> ? kVecOf<A> : kVecOf<B>;
  constexpr int kVec = kVecOf<A>;  // a broadcast b comes from cache
  switch (broadcast) {
    case Broadcast::kNone:
      launch_pointwise<kBoth, 2>(count, Combine<A, B, Broadcast::kNone>{a, b, y, Divider(cols), op, true}, stream);
      break;
    case Broadcast::kRow:
      launch_pointwise<kVec, 1>(count, Combine<A, B, Broadcast::kRow>{a, b, y, Divider(cols), op, cols % kVec == 0},
                                stream);
      break;
    case Broadcast::kOne:
      launch_pointwise<kVec, 1>(count, Combine<A, B, Broadcast::kOne>{a, b, y, Divider(cols), op, true}, stream);
      break;
  }
}

}  // namespace

void launch_binary(Binary op, Broadcast broadcast, DType a_type, const void* a, DType b_type, const void* b, void* y,
                   int64_t count, int64_t cols, cudaStream_t stream) {
  const auto with_b = [&]<typename A>(A) {
    const A* left = static_cast<const A*>(a);
    if (b_type == DType::kF32) {
      launch(op, broadcast, left, static_cast<const float*>(b), static_cast<A*>(y), count, cols, stream);
    } else {
      launch(op, broadcast, left, static_cast<const bf16*>(b), static_cast<A*>(y), count, cols, stream);
    }
  };
  a_type == DType::kF32 ? with_b(float{}) : with_b(bf16{});
}

}  // namespace octet::cuda
