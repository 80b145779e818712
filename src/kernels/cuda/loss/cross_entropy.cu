// Softmax cross-entropy: a block a row. Forward keeps a running maximum and sum a thread, so that logits are read once;
// the gradient is one walk too. Rows may begin at any element: those before the first 16-byte boundary and after the
// last are taken one by one.
//
// Bound by memory: forward 2 bytes a bf16 logit (one exp each, half of what the exponential unit can do), gradient 4.
#include <algorithm>

#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/loss/cross_entropy.h"

namespace octet::cuda {
namespace {

constexpr int kUnroll = 4;  // 16-byte loads in flight a thread

// Two units in the last place, of arguments near 0; smaller than 2^-126 becomes 0.
__device__ __forceinline__ float exp_of(float x) { return exp2_fast(x * kLog2E); }

// max of what was seen, and the sum of exp(x - max). -inf counts for nothing; a NaN is passed over by the maximum and
// comes back through the sum.
struct RunningSum {
  float max = Max::kIdentity, sum = 0;

  template <int kVectors, int kCount>
  __device__ __forceinline__ void add(const float (&x)[kVectors][kCount]) {
    float largest = max;
#pragma unroll
    for (const auto& vector : x) {
#pragma unroll
      for (float value : vector) largest = fmaxf(largest, value);
    }
    float terms = 0;
#pragma unroll
    for (const auto& vector : x) {
#pragma unroll
      for (float value : vector) terms += exp_of(value - largest);
    }
    sum = sum * exp_of(max - largest) + terms;
    max = largest;
  }
};

// Elements of a row before its first 16-byte boundary.
template <typename T>
__device__ __forceinline__ int64_t head_of(const T* row, int64_t cols) {
  const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T));
  return past == 0 ? 0 : min(cols, kVecOf<T> - past);
}

// lse - logits[target] of a row of logits, where its columns have the target.
template <typename T>
__device__ __forceinline__ float loss_of(const CrossEntropy& p, int64_t row, const T* logits, float lse) {
  const int64_t column = int64_t{p.targets[row]} - p.first;
  return p.targets[row] < 0 || column < 0 || column >= p.classes ? 0.0f : lse - to_float(logits[column]);
}

template <typename T>
__global__ void cross_entropy_kernel(const CrossEntropy p, float* losses, float* lses) {
  __shared__ float scratch[32];
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(p.logits) + row * p.cols;
  constexpr int kVec = kVecOf<T>;
  const int64_t head = head_of(x, p.classes), vectors = (p.classes - head) / kVec, tail = head + vectors * kVec;
  RunningSum running;
  int64_t at = threadIdx.x;
  for (; at + (kUnroll - 1) * int64_t{blockDim.x} < vectors; at += kUnroll * int64_t{blockDim.x}) {
    Packed<T, kVec> parts[kUnroll];
    unroll<kUnroll>([&](int u) { parts[u] = load_packed<kVec>(x + head + (at + u * int64_t{blockDim.x}) * kVec); });
    float values[kUnroll][kVec];
    unroll<kUnroll>([&](int u) { parts[u].unpack(values[u]); });
    running.add(values);
  }
  for (; at < vectors; at += blockDim.x) {
    float values[1][kVec];
    load_packed<kVec>(x + head + at * kVec).unpack(values[0]);
    running.add(values);
  }
  const auto add_one = [&](int64_t column) {
    const float value[1][1] = {{to_float(x[column])}};
    running.add(value);
  };
  if (threadIdx.x < head) add_one(threadIdx.x);
  if (tail + threadIdx.x < p.classes) add_one(tail + threadIdx.x);
  const float largest = block_reduce<Max>(running.max, scratch);
  const float sum = block_reduce<Sum>(running.sum * exp_of(running.max - largest), scratch);
  if (threadIdx.x != 0) return;
  const float lse = largest + logf(sum);
  if (lses != nullptr) lses[row] = lse;
  if (losses != nullptr) losses[row] = loss_of(p, row, x, lse);
}

// A thread a row: only the target's logit is read.
template <typename T>
__global__ void cross_entropy_given_kernel(const CrossEntropy p, const float* given, float* losses, float* lses) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= p.tokens) return;
  const float lse = given[row];
  if (lses != nullptr) lses[row] = lse;
  if (losses != nullptr) losses[row] = loss_of(p, row, static_cast<const T*>(p.logits) + row * p.cols, lse);
}

template <typename T>
__global__ void cross_entropy_grad_kernel(const CrossEntropy p, const float* lses, const float* dlosses, T* dlogits) {
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(p.logits) + row * p.cols;
  T* dx = dlogits + row * p.cols;
  constexpr int kVec = kVecOf<T>;
  const int cols = static_cast<int>(p.cols), classes = static_cast<int>(p.classes);
  const int head = static_cast<int>(head_of(x, p.cols)), vectors = (cols - head) / kVec, tail = head + vectors * kVec;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  if (p.targets[row] < 0) {
    const float zeros[kVec] = {};
    for (int v = thread; v < vectors; v += threads) store(dx + head + v * kVec, zeros);
    if (thread < head) dx[thread] = from_float<T>(0);
    if (tail + thread < cols) dx[tail + thread] = from_float<T>(0);
    return;
  }
  const float lse = lses[row], dloss = dlosses[row];
  const int target = p.targets[row] - p.first;  // a column, or outside
  const auto gradient = [&](float value, int column) {
    const float one = column == target ? 1.0f : 0.0f;
    return column < classes ? (exp_of(value - lse) - one) * dloss : 0.0f;
  };
  for (int first = thread; first < vectors; first += kUnroll * threads) {
    float values[kUnroll][kVec];
    unroll<kUnroll>([&](int u) {
      const int v = first + u * threads;
      if (v < vectors) load_packed<kVec>(x + head + v * kVec).unpack(values[u]);
    });
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int v = first + u * threads, column = head + v * kVec;
      if (v >= vectors) break;
      if (column + kVec <= classes && (target < column || target >= column + kVec)) {  // nearly always
#pragma unroll
        for (float& value : values[u]) value = exp_of(value - lse) * dloss;
      } else {
        unroll<kVec>([&](int i) { values[u][i] = gradient(values[u][i], column + i); });
      }
      store_packed(dx + column, pack<T>(values[u]));
    }
  }
  if (thread < head) dx[thread] = from_float<T>(gradient(to_float(x[thread]), thread));
  const int last = tail + thread;
  if (last < cols) dx[last] = from_float<T>(gradient(to_float(x[last]), last));
}

// Four vectors a thread, from a warp (small vocabularies) to 512 threads.
int threads_for(int64_t cols, int vector) {
  const int64_t wanted = (cols / (int64_t{vector} * kUnroll) + 31) / 32 * 32;
  return static_cast<int>(std::clamp<int64_t>(wanted, 32, 512));
}

}  // namespace

void launch_cross_entropy(const CrossEntropy& call, const float* given, float* loss, float* lse, cudaStream_t stream) {
  const auto grid = static_cast<unsigned>(call.tokens);
  with_f32_or_bf16(call.dtype, [&]<typename T>(T) {
    if (given != nullptr) {
      constexpr unsigned kThreads = 128;
      const unsigned blocks = (grid + kThreads - 1) / kThreads;
      cross_entropy_given_kernel<T><<<blocks, kThreads, 0, stream>>>(call, given, loss, lse);
    } else {
      cross_entropy_kernel<T><<<grid, threads_for(call.classes, kVecOf<T>), 0, stream>>>(call, loss, lse);
    }
  });
}

void launch_cross_entropy_grad(const CrossEntropy& call, const float* lse, const float* dloss, void* dlogits,
                               cudaStream_t stream) {
  const auto grid = static_cast<unsigned>(call.tokens);
  with_f32_or_bf16(call.dtype, [&]<typename T>(T) {
    cross_entropy_grad_kernel<T>
        <<<grid, threads_for(call.cols, kVecOf<T>), 0, stream>>>(call, lse, dloss, static_cast<T*>(dlogits));
  });
}

}  // namespace octet::cuda
