// The activation fusions that go element by element, with the amaxes of their results on the way.
#include "kernels/cuda/activation/activation.h"
#include "kernels/cuda/common/activation.cuh"
#include "kernels/cuda/common/pointwise.cuh"

namespace octet::cuda {
namespace {

// The largest magnitude a thread meets; its block raises `to`, which may be null.
struct Amax {
  float* to;
  uint32_t bits = 0;
  template <typename T>
  __device__ __forceinline__ void see(T x) {
    bits = max(bits, magnitude_bits(to_float(x)));
  }
  __device__ __forceinline__ void end() const {
    if (to != nullptr) block_amax(bits, to);
  }
};

template <int kVec, typename T>
__device__ __forceinline__ void write_wanted(T* to, int64_t i, const Vec<T, kVec>& v) {
  if (to != nullptr) write<kVec>(to + i, v);
}

template <typename T, typename B, typename Fn>
struct BiasGeluBody {
  const T* x;
  const B* bias;
  T *biased, *y;
  Divider cols;
  Amax amax;
  Fn gelu;
  template <int kVec>
  struct Held {
    Vec<T, kVec> x;
    Vec<B, kVec> bias;
  };
  template <int kVec>
  __device__ __forceinline__ Held<kVec> load(int64_t i) const {
    Held<kVec> held{read<kVec>(x + i), {}};
    if (bias != nullptr) held.bias = read<kVec>(bias + cols.remainder(i));
    return held;
  }
  template <int kVec>
  __device__ __forceinline__ void finish(const Held<kVec>& held, int64_t i) {
    Vec<T, kVec> sum = held.x, v;
#pragma unroll
    for (int k = 0; k < kVec; ++k) {
      if (bias != nullptr) sum.at[k] = from_float<T>(to_float(held.x.at[k]) + to_float(held.bias.at[k]));
      v.at[k] = from_float<T>(gelu(to_float(sum.at[k])));
      amax.see(v.at[k]);
    }
    write_wanted<kVec>(biased, i, sum);
    write_wanted<kVec>(y, i, v);
  }
  __device__ void end() { amax.end(); }
};

template <typename T, typename Slope>
struct GeluGradBody {
  const T *x, *dy;
  T* dx;
  Amax amax;
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
    Vec<T, kVec> v;
#pragma unroll
    for (int k = 0; k < kVec; ++k) {
      v.at[k] = from_float<T>(to_float(held.dy.at[k]) * slope(to_float(held.x.at[k])));
      amax.see(v.at[k]);
    }
    write_wanted<kVec>(dx, i, v);
  }
  __device__ void end() { amax.end(); }
};

template <typename T>
struct SwigluBody {
  const T *gate, *up;
  T *silu, *y;
  Amax amax;
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
    Vec<T, kVec> s, v;
#pragma unroll
    for (int k = 0; k < kVec; ++k) {
      s.at[k] = from_float<T>(Silu{}(to_float(held.gate.at[k])));
      v.at[k] = from_float<T>(to_float(s.at[k]) * to_float(held.up.at[k]));
      amax.see(v.at[k]);
    }
    write_wanted<kVec>(silu, i, s);
    write_wanted<kVec>(y, i, v);
  }
  __device__ void end() { amax.end(); }
};

template <typename T>
struct SwigluGradBody {
  const T *gate, *up, *dy, *silu;
  T *dsilu, *dgate, *dup, *silu_out;
  Amax amax_dgate, amax_dup;
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
    Vec<T, kVec> s = held.silu, ds, dg, du;
#pragma unroll
    for (int k = 0; k < kVec; ++k) {
      const float x = to_float(held.gate.at[k]), d = to_float(held.dy.at[k]);
      if (silu == nullptr) s.at[k] = from_float<T>(Silu{}(x));
      ds.at[k] = from_float<T>(d * to_float(held.up.at[k]));
      dg.at[k] = from_float<T>(to_float(ds.at[k]) * SiluSlope{}(x));
      du.at[k] = from_float<T>(d * to_float(s.at[k]));
      amax_dgate.see(dg.at[k]);
      amax_dup.see(du.at[k]);
    }
    write_wanted<kVec>(silu_out, i, s);
    write_wanted<kVec>(dsilu, i, ds);
    write_wanted<kVec>(dgate, i, dg);
    write_wanted<kVec>(dup, i, du);
  }
  __device__ void end() { amax_dgate.end(), amax_dup.end(); }
};

// One access in flight a thread: occupancy covers the rest, and more of several streams are slower. Every block's amax
// is an access to the same word: blocks go on for eight steps.
template <int kVec, typename Body>
void launch_body(int64_t count, const Body& body, bool amax, cudaStream_t stream) {
  amax ? launch_pointwise<kVec, 1, 8>(count, body, stream) : launch_pointwise<kVec, 1>(count, body, stream);
}

void clear(float* amax, cudaStream_t stream) {
  if (amax != nullptr) cudaMemsetAsync(amax, 0, sizeof(float), stream);
}
template <typename Body>
void with_f32_or_bf16(DType dtype, Body&& body) {
  dtype == DType::kF32 ? body(float{}) : body(bf16{});
}

template <typename T, typename B, typename Fn>
void launch(const BiasGelu& job, cudaStream_t stream) {
  constexpr int kVec = kVecOf<T>;
  const BiasGeluBody<T, B, Fn> body{static_cast<const T*>(job.x),
                                    static_cast<const B*>(job.bias),
                                    static_cast<T*>(job.biased),
                                    static_cast<T*>(job.y),
                                    Divider(job.cols),
                                    {job.amax},
                                    {}};
  launch_body<kVec>(job.rows * job.cols, body, job.amax != nullptr, stream);
}

template <typename Fn>
void launch(const BiasGelu& job, cudaStream_t stream) {
  if (job.dtype == DType::kF32) return launch<float, float, Fn>(job, stream);
  job.bias_type == DType::kF32 ? launch<bf16, float, Fn>(job, stream) : launch<bf16, bf16, Fn>(job, stream);
}

}  // namespace

void launch_bias_gelu(const BiasGelu& job, cudaStream_t stream) {
  clear(job.amax, stream);
  job.tanh_form ? launch<GeluTanh>(job, stream) : launch<GeluErf>(job, stream);
}

void launch_gelu_grad(const GeluGrad& job, cudaStream_t stream) {
  clear(job.amax, stream);
  with_f32_or_bf16(job.dtype, [&]<typename T>(T) {
    const T *x = static_cast<const T*>(job.x), *dy = static_cast<const T*>(job.dy);
    T* dx = static_cast<T*>(job.dx);
    const auto launch = [&]<typename Slope>(Slope slope) {
      launch_body<kVecOf<T>>(job.rows * job.cols, GeluGradBody<T, Slope>{x, dy, dx, {job.amax}, slope},
                             job.amax != nullptr, stream);
    };
    job.tanh_form ? launch(GeluTanhSlope{}) : launch(GeluErfSlope{});
  });
}

void launch_swiglu(const Swiglu& job, cudaStream_t stream) {
  clear(job.amax, stream);
  with_f32_or_bf16(job.dtype, [&]<typename T>(T) {
    const SwigluBody<T> body{static_cast<const T*>(job.gate),
                             static_cast<const T*>(job.up),
                             static_cast<T*>(job.silu),
                             static_cast<T*>(job.y),
                             {job.amax}};
    launch_body<kVecOf<T>>(job.rows * job.cols, body, job.amax != nullptr, stream);
  });
}

void launch_swiglu_grad(const SwigluGrad& job, cudaStream_t stream) {
  clear(job.amax_dgate, stream), clear(job.amax_dup, stream);
  with_f32_or_bf16(job.dtype, [&]<typename T>(T) {
    const SwigluGradBody<T> body{static_cast<const T*>(job.gate),
                                 static_cast<const T*>(job.up),
                                 static_cast<const T*>(job.dy),
                                 static_cast<const T*>(job.silu),
                                 static_cast<T*>(job.dsilu),
                                 static_cast<T*>(job.dgate),
                                 static_cast<T*>(job.dup),
                                 static_cast<T*>(job.silu_out),
                                 {job.amax_dgate},
                                 {job.amax_dup}};
    launch_body<kVecOf<T>>(job.rows * job.cols, body, job.amax_dgate != nullptr || job.amax_dup != nullptr, stream);
  });
}

}  // namespace octet::cuda
