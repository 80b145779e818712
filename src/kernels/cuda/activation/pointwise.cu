// The activation fusions that go element by element, with the amaxes of their results on the way.
#include <algorithm>

#include "kernels/cuda/activation/activation.h"
#include "kernels/cuda/common/activation.cuh"
#include "kernels/cuda/common/arrivals.cuh"
#include "kernels/cuda/common/pointwise.cuh"

namespace octet::cuda {
namespace {

template <int kVec, typename T>
__device__ __forceinline__ void write_wanted(T* to, int64_t i, const Vec<T, kVec>& v) {
  if (to != nullptr) write<kVec>(to + i, v);
}

// A block keeps its columns, and a thread the biases of kVec of them, and walks the rows group, group + groups, ...;
// two rows are under way while it works on two.
template <typename T, typename B>
struct BiasGeluJob {
  const T* x;
  const B* bias;
  T *biased, *y;
  GridAmax amax;
  int64_t rows;
  int cols, chunks;  // blocks side by side
};
constexpr int kRowsAhead = 2, kBiasBlocks = 5;  // on a multiprocessor, of 256 threads

template <typename T, typename B, typename Fn>
__global__ void __launch_bounds__(kPointwiseThreads, kBiasBlocks)
    bias_gelu_kernel(const __grid_constant__ BiasGeluJob<T, B> job) {
  __shared__ uint32_t scratch[32];
  constexpr int kVec = kVecOf<T>;
  wait_for_previous();
  allow_next();
  const int chunk = static_cast<int>(blockIdx.x) % job.chunks;
  const int column = (chunk * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kVec;
  Amax<T> amax{job.amax};
  if (column < job.cols) {
    const unsigned groups = gridDim.x / static_cast<unsigned>(job.chunks);
    const int64_t step = int64_t{groups} * job.cols, end = job.rows * job.cols;
    int64_t i = int64_t{blockIdx.x / static_cast<unsigned>(job.chunks)} * job.cols + column;
    float bias[kVec];
    widen(read<kVec>(job.bias + column), bias);
    Vec<T, kVec> held[kRowsAhead], next[kRowsAhead];
    const auto fetch = [&](Vec<T, kVec>(&to)[kRowsAhead], int64_t from) {
#pragma unroll
      for (int r = 0; r < kRowsAhead; ++r, from += step) {
        if (from < end) to[r] = read<kVec>(job.x + from);
      }
    };
    fetch(held, i);
#pragma unroll 1
    while (i < end) {
      fetch(next, i + kRowsAhead * step);
#pragma unroll
      for (int r = 0; r < kRowsAhead; ++r, i += step) {
        if (i >= end) break;
        float v[kVec];
        widen(held[r], v);
#pragma unroll
        for (int k = 0; k < kVec; ++k) v[k] += bias[k];
        const Vec<T, kVec> sum = narrow<T>(v);
        write_wanted<kVec>(job.biased, i, sum);
        widen(sum, v);
#pragma unroll
        for (float& value : v) value = Fn{}(value);
        const Vec<T, kVec> y = narrow<T>(v);
        write_wanted<kVec>(job.y, i, y);
        amax.see(y);
        held[r] = next[r];
      }
    }
  }
  amax.end(scratch);
}

template <typename T, typename Slope>
struct GeluGradBody {
  const T *x, *dy;
  T* dx;
  Amax<T> amax;
  Slope slope;
  template <int kVec>
  struct Held {
    Vec<T, kVec> x, dy;
  };
  template <int kVec>
  __device__ __forceinline__ Held<kVec> load(int64_t i) const {
    return {read<kVec>(x + i), read<kVec>(dy + i)};
  }
  template <int kVec>
  __device__ __forceinline__ void finish(const Held<kVec>& held, int64_t i) {
    float v[kVec], d[kVec];
    widen(held.x, v), widen(held.dy, d);
#pragma unroll
    for (int k = 0; k < kVec; ++k) v[k] = d[k] * slope(v[k]);
    const Vec<T, kVec> made = narrow<T>(v);
    write_wanted<kVec>(dx, i, made);
    amax.see(made);
  }
  __device__ void end() {
    __shared__ uint32_t scratch[32];
    amax.end(scratch);
  }
};

template <typename T>
struct SwigluBody {
  const T *gate, *up;
  T *silu, *y;
  Amax<T> amax;
  template <int kVec>
  struct Held {
    Vec<T, kVec> gate, up;
  };
  template <int kVec>
  __device__ __forceinline__ Held<kVec> load(int64_t i) const {
    return {read<kVec>(gate + i), read<kVec>(up + i)};
  }
  template <int kVec>
  __device__ __forceinline__ void finish(const Held<kVec>& held, int64_t i) {
    float v[kVec], u[kVec];
    widen(held.gate, v);
#pragma unroll
    for (float& value : v) value = Silu{}(value);
    const Vec<T, kVec> s = narrow<T>(v);
    write_wanted<kVec>(silu, i, s);
    widen(s, v), widen(held.up, u);
#pragma unroll
    for (int k = 0; k < kVec; ++k) v[k] *= u[k];
    const Vec<T, kVec> made = narrow<T>(v);
    write_wanted<kVec>(y, i, made);
    amax.see(made);
  }
  __device__ void end() {
    __shared__ uint32_t scratch[32];
    amax.end(scratch);
  }
};

template <typename T>
struct SwigluGradBody {
  const T *gate, *up, *dy, *silu;
  T *dsilu, *dgate, *dup, *silu_out;
  Amax<T> amax_dgate, amax_dup;
  template <int kVec>
  struct Held {
    Vec<T, kVec> gate, up, dy, silu;
  };
  template <int kVec>
  __device__ __forceinline__ Held<kVec> load(int64_t i) const {
    Held<kVec> held{read<kVec>(gate + i), read<kVec>(up + i), read<kVec>(dy + i), {}};
    if (silu != nullptr) held.silu = read<kVec>(silu + i);
    return held;
  }
  template <int kVec>
  __device__ __forceinline__ void finish(const Held<kVec>& held, int64_t i) {
    float x[kVec], d[kVec], v[kVec];
    widen(held.gate, x), widen(held.dy, d);
    Vec<T, kVec> s = held.silu;
    if (silu == nullptr) {
#pragma unroll
      for (int k = 0; k < kVec; ++k) v[k] = Silu{}(x[k]);
      s = narrow<T>(v);
    }
    write_wanted<kVec>(silu_out, i, s);
    widen(held.up, v);
#pragma unroll
    for (int k = 0; k < kVec; ++k) v[k] = d[k] * v[k];
    const Vec<T, kVec> ds = narrow<T>(v);
    write_wanted<kVec>(dsilu, i, ds);
    widen(ds, v);
#pragma unroll
    for (int k = 0; k < kVec; ++k) v[k] *= SiluSlope{}(x[k]);
    const Vec<T, kVec> dg = narrow<T>(v);
    write_wanted<kVec>(dgate, i, dg);
    amax_dgate.see(dg);
    widen(s, v);
#pragma unroll
    for (int k = 0; k < kVec; ++k) v[k] = d[k] * v[k];
    const Vec<T, kVec> du = narrow<T>(v);
    write_wanted<kVec>(dup, i, du);
    amax_dup.see(du);
  }
  __device__ void end() {
    __shared__ uint32_t scratch[2][32];
    amax_dgate.end(scratch[0]), amax_dup.end(scratch[1]);
  }
};

// Alone, one access in flight a thread: occupancy covers the rest, and more of several streams are slower. With an amax
// blocks stay, kBlocks on a multiprocessor: their ends cost a barrier and two atomics.
template <int kVec, int kBlocks, typename Body>
void launch_body(int64_t count, const Body& body, bool amax, int sm_count, cudaStream_t stream) {
  amax ? launch_pointwise_stay<kVec, 1, kBlocks>(count, body, sm_count, stream)
       : launch_pointwise<kVec, 1>(count, body, stream);
}

template <typename Body>
void with_f32_or_bf16(DType dtype, Body&& body) {
  dtype == DType::kF32 ? body(float{}) : body(bf16{});
}

template <typename T, typename B, typename Fn>
void launch(const BiasGelu& job, cudaStream_t stream) {
  const int groups = static_cast<int>(job.cols / kVecOf<T>);  // of a row
  const int chunks = (groups + kPointwiseThreads - 1) / kPointwiseThreads;
  const int threads = ((groups + chunks - 1) / chunks + 31) / 32 * 32;
  const int most = std::max(kBiasBlocks * job.sm_count * (kPointwiseThreads / threads) / chunks, 1);
  const auto blocks = static_cast<unsigned>(chunks * std::min<int64_t>(job.rows, most));
  const BiasGeluJob<T, B> on_device{static_cast<const T*>(job.x), static_cast<const B*>(job.bias),
                                    static_cast<T*>(job.biased),  static_cast<T*>(job.y),
                                    {job.amax, job.counters},     job.rows,
                                    static_cast<int>(job.cols),   chunks};
  launch_overlapped(bias_gelu_kernel<T, B, Fn>, {blocks, static_cast<unsigned>(threads)}, stream, on_device);
}

template <typename Fn>
void launch(const BiasGelu& job, cudaStream_t stream) {
  if (job.dtype == DType::kF32) return launch<float, float, Fn>(job, stream);
  job.bias_type == DType::kF32 ? launch<bf16, float, Fn>(job, stream) : launch<bf16, bf16, Fn>(job, stream);
}

}  // namespace

void launch_bias_gelu(const BiasGelu& job, cudaStream_t stream) {
  job.tanh_form ? launch<GeluTanh>(job, stream) : launch<GeluErf>(job, stream);
}

void launch_gelu_grad(const GeluGrad& job, cudaStream_t stream) {
  with_f32_or_bf16(job.dtype, [&]<typename T>(T) {
    const T *x = static_cast<const T*>(job.x), *dy = static_cast<const T*>(job.dy);
    T* dx = static_cast<T*>(job.dx);
    const auto launch = [&]<typename Slope>(Slope slope) {
      launch_body<kVecOf<T>, 6>(job.rows * job.cols,
                                GeluGradBody<T, Slope>{x, dy, dx, {{job.amax, job.counters}}, slope},
                                job.amax != nullptr, job.sm_count, stream);
    };
    job.tanh_form ? launch(GeluTanhSlope{}) : launch(GeluErfSlope{});
  });
}

void launch_swiglu(const Swiglu& job, cudaStream_t stream) {
  with_f32_or_bf16(job.dtype, [&]<typename T>(T) {
    const SwigluBody<T> body{static_cast<const T*>(job.gate),
                             static_cast<const T*>(job.up),
                             static_cast<T*>(job.silu),
                             static_cast<T*>(job.y),
                             {{job.amax, job.counters}}};
    launch_body<kVecOf<T>, 6>(job.rows * job.cols, body, job.amax != nullptr, job.sm_count, stream);
  });
}

void launch_swiglu_grad(const SwigluGrad& job, cudaStream_t stream) {
  with_f32_or_bf16(job.dtype, [&]<typename T>(T) {
    const SwigluGradBody<T> body{static_cast<const T*>(job.gate),  static_cast<const T*>(job.up),
                                 static_cast<const T*>(job.dy),    static_cast<const T*>(job.silu),
                                 static_cast<T*>(job.dsilu),       static_cast<T*>(job.dgate),
                                 static_cast<T*>(job.dup),         static_cast<T*>(job.silu_out),
                                 {{job.amax_dgate, job.counters}}, {{job.amax_dup, job.counters + kAmaxWords}}};
    launch_body<kVecOf<T>, 4>(job.rows * job.cols, body, job.amax_dgate != nullptr || job.amax_dup != nullptr,
                              job.sm_count, stream);
  });
}

}  // namespace octet::cuda
