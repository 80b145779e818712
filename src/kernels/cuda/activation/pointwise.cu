// Activations and their gradients element by element, with the amaxes of their results on the way; activations with
// codes and a scale a row.
#include <algorithm>

#include "kernels/cuda/activation/groups.cuh"
#include "kernels/cuda/common/arrivals.cuh"
#include "kernels/cuda/common/quantize_per_row.cuh"

namespace octet::cuda {
namespace {

using Form = ActivationForm;

template <int kVec, typename T>
__device__ __forceinline__ void write_wanted(T* to, int64_t i, const Vec<T, kVec>& v) {
  if (to != nullptr) write<kVec>(to + i, v);
}

// --- with a bias. A CTA keeps its columns, and a thread the biases of kVec of them, and walks the rows group,
// group + groups, ...; two rows are in flight while it works on two.
template <typename T, typename B>
struct BiasedJob {
  const T* x;         // [rows, cols]
  const B* bias;      // [cols]
  T *biased, *a, *y;  // [rows, cols], may be null
  GridAmax amax;
  int64_t rows;
  int cols, chunks;  // chunks: CTAs per row
};
constexpr int kRowsAhead = 2, kBiasBlocks = 5;  // an SM, of 256 threads

template <typename T, typename B, typename Fn, Form kForm>
__global__ void __launch_bounds__(kPointwiseThreads, kBiasBlocks)
    biased_activation_kernel(const __grid_constant__ BiasedJob<T, B> job) {
  __shared__ uint32_t scratch[32];
  constexpr int kVec = kVecOf<T>;
  griddep_wait();
  griddep_launch_dependents();
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
        const Vec<T, kVec> biased = plus(held[r], bias);
        write_wanted<kVec>(job.biased, i, biased);
        const Vec<T, kVec> a = activate<Fn>(biased);
        if constexpr (kForm != Form::kPlain) write_wanted<kVec>(job.a, i, a);
        const Vec<T, kVec> y = of_form<kForm>(a, a);
        write_wanted<kVec>(job.y, i, y);
        amax.see(y);
        held[r] = next[r];
      }
    }
  }
  amax.end(scratch);
}

// --- without

template <typename T, typename Fn, Form kForm>
struct ForwardBody {
  const T *x, *up;  // [rows, cols]; up: kGated
  T *a, *y;         // [rows, cols], may be null
  Amax<T> amax;
  template <int kVec>
  struct Held {
    Vec<T, kVec> x, up;
  };
  template <int kVec>
  __device__ __forceinline__ Held<kVec> load(int64_t i) const {
    Held<kVec> held{read<kVec>(x + i), {}};
    if constexpr (kForm == Form::kGated) held.up = read<kVec>(up + i);
    return held;
  }
  template <int kVec>
  __device__ __forceinline__ void finish(const Held<kVec>& held, int64_t i) {
    const Vec<T, kVec> act = activate<Fn>(held.x);
    if constexpr (kForm != Form::kPlain) write_wanted(a, i, act);
    const Vec<T, kVec> made = of_form<kForm>(act, held.up);
    write_wanted(y, i, made);
    amax.see(made);
  }
  __device__ void end() {
    __shared__ uint32_t scratch[32];
    amax.end(scratch);
  }
};

template <typename T, typename Fn, Form kForm>
struct GradientBody {
  const T *x, *up, *dy, *a;  // [rows, cols]; up: kGated; a may be null
  T *da, *dx, *dup, *a_out;  // [rows, cols], may be null
  Amax<T> amax, amax_up;
  template <int kVec>
  struct Held {
    Vec<T, kVec> x, up, dy, a;
  };
  template <int kVec>
  __device__ __forceinline__ Held<kVec> load(int64_t i) const {
    Held<kVec> held{read<kVec>(x + i), {}, read<kVec>(dy + i), {}};
    if constexpr (kForm == Form::kGated) held.up = read<kVec>(up + i);
    if constexpr (kForm != Form::kPlain) {
      if (a != nullptr) held.a = read<kVec>(a + i);
    }
    return held;
  }
  template <int kVec>
  __device__ __forceinline__ void finish(const Held<kVec>& held, int64_t i) {
    Vec<T, kVec> act = held.a;
    if constexpr (kForm != Form::kPlain) {
      if (a == nullptr) act = activate<Fn>(held.x);
      if constexpr (kForm == Form::kGated) write_wanted(a_out, i, act);
    }
    const Vec<T, kVec> of_a = gradient_of_a<kForm>(held.dy, kForm == Form::kGated ? held.up : act);
    if constexpr (kForm == Form::kGated) write_wanted(da, i, of_a);
    const Vec<T, kVec> of_x = times_slope<Fn>(of_a, held.x);
    write_wanted(dx, i, of_x);
    amax.see(of_x);
    if constexpr (kForm == Form::kGated) {
      const Vec<T, kVec> of_up = times(held.dy, act);
      write_wanted(dup, i, of_up);
      amax_up.see(of_up);
    }
  }
  __device__ void end() {
    __shared__ uint32_t scratch[2][32];
    amax.end(scratch[0]);
    if constexpr (kForm == Form::kGated) amax_up.end(scratch[1]);
  }
};

// Without an amax one access in flight per thread: occupancy covers the rest, and more of several streams are slower.
// With an amax CTAs are persistent, kBlocks per SM: their ends cost a barrier and two atomics. make(T{}) is the body of
// a type; kPlain has instances with an amax only, and amaxes are of bf16 only.
template <Form kForm, int kBlocks, typename MakeBody>
void launch_body(DType dtype, int64_t count, bool amax, int sm_count, cudaStream_t stream, const MakeBody& make) {
  if (amax || kForm == Form::kPlain)
    return launch_pointwise_persistent<kVecOf<bf16>, 1, kBlocks>(count, make(bf16{}), sm_count, stream);
  if constexpr (kForm != Form::kPlain) {
    dtype == DType::kF32 ? launch_pointwise<kVecOf<float>, 1>(count, make(float{}), stream)
                         : launch_pointwise<kVecOf<bf16>, 1>(count, make(bf16{}), stream);
  }
}

template <typename T, typename B, typename Fn, Form kForm>
void launch_biased(const ActivationForward& job, cudaStream_t stream) {
  const int groups = static_cast<int>(job.cols / kVecOf<T>);  // of a row
  const int chunks = (groups + kPointwiseThreads - 1) / kPointwiseThreads;
  const int threads = ((groups + chunks - 1) / chunks + 31) / 32 * 32;
  const int most = std::max(kBiasBlocks * job.sm_count * (kPointwiseThreads / threads) / chunks, 1);
  const auto blocks = static_cast<unsigned>(chunks * std::min<int64_t>(job.rows, most));
  const BiasedJob<T, B> on_device{static_cast<const T*>(job.x),
                                  static_cast<const B*>(job.bias),
                                  static_cast<T*>(job.biased),
                                  static_cast<T*>(job.a),
                                  static_cast<T*>(job.y),
                                  {job.amax, job.counters},
                                  job.rows,
                                  static_cast<int>(job.cols),
                                  chunks};
  launch_overlapped(biased_activation_kernel<T, B, Fn, kForm>, {blocks, static_cast<unsigned>(threads)}, stream,
                    on_device);
}

template <typename Fn, Form kForm>
void launch_biased(const ActivationForward& job, cudaStream_t stream) {
  if (job.dtype == DType::kF32) return launch_biased<float, float, Fn, kForm>(job, stream);
  job.bias_type == DType::kF32 ? launch_biased<bf16, float, Fn, kForm>(job, stream)
                               : launch_biased<bf16, bf16, Fn, kForm>(job, stream);
}

// --- rows: (bias,) activation (, gate), quantize with a scale a row
using Group = Packed<bf16, kRowGroup>;

template <typename Fn, Form kForm>
struct ActivatedRows {
  static constexpr bool kAnyColumns = false;
  using Element = bf16;
  struct Operands {
    Group x, up;
  };
  const bf16 *x, *up;
  int64_t x_stride, up_stride;
  const void* bias;
  bool bias_f32;

  template <bool kVector>
  __device__ __forceinline__ Operands load(int64_t row, int64_t column, int64_t left) const {
    Operands operands{load_group<kVector>(x + row * x_stride + column, left), {}};
    if constexpr (kForm == Form::kGated) operands.up = load_group<kVector>(up + row * up_stride + column, left);
    return operands;
  }
  template <bool kVector>
  __device__ __forceinline__ Group make(Operands operands, int64_t column, int64_t left) const {
    if constexpr (kForm != Form::kGated) {
      if (bias != nullptr && left > 0) {
        float b[kRowGroup];
        bias_f32 ? octet::cuda::load(static_cast<const float*>(bias) + column, b)
                 : octet::cuda::load(static_cast<const bf16*>(bias) + column, b);
        operands.x = plus(operands.x, b);
      }
    }
    return of_form<kForm>(activate<Fn>(operands.x), operands.up);
  }
};

}  // namespace

void launch_activation_pointwise(const ActivationForward& job, cudaStream_t stream) {
  with_activation_form(job.fn, job.form, [&]<typename Fn, Form kForm>(Fn, std::integral_constant<Form, kForm>) {
    if constexpr (kForm != Form::kGated) {
      if (job.bias != nullptr) return launch_biased<Fn, kForm>(job, stream);
    }
    const auto body = [&]<typename T>(T) {
      return ForwardBody<T, Fn, kForm>{static_cast<const T*>(job.x),
                                       static_cast<const T*>(job.up),
                                       static_cast<T*>(job.a),
                                       static_cast<T*>(job.y),
                                       {{job.amax, job.counters}}};
    };
    launch_body<kForm, 6>(job.dtype, job.rows * job.cols, job.amax != nullptr, job.sm_count, stream, body);
  });
}

void launch_activation_grad_pointwise(const ActivationGradient& job, cudaStream_t stream) {
  with_activation_form(job.fn, job.form, [&]<typename Fn, Form kForm>(Fn, std::integral_constant<Form, kForm>) {
    const auto body = [&]<typename T>(T) {
      return GradientBody<T, Fn, kForm>{static_cast<const T*>(job.x),  static_cast<const T*>(job.up),
                                        static_cast<const T*>(job.dy), static_cast<const T*>(job.a),
                                        static_cast<T*>(job.da),       static_cast<T*>(job.dx),
                                        static_cast<T*>(job.dup),      static_cast<T*>(job.a_out),
                                        {{job.amax, job.counters}},    {{job.amax_up, job.counters + kAmaxWords}}};
    };
    const bool amax = job.amax != nullptr || job.amax_up != nullptr;
    launch_body<kForm, kForm == Form::kGated ? 4 : 6>(job.dtype, job.rows * job.cols, amax, job.sm_count, stream, body);
  });
}

void launch_activation_rows(const ActivationForward& job, QuantizeJob quantize, DType format, cudaStream_t stream) {
  if (quantize.amax != nullptr) cudaMemsetAsync(quantize.amax, 0, sizeof(float), stream);
  with_activation_form<true>(job.fn, job.form, [&]<typename Fn, Form kForm>(Fn, std::integral_constant<Form, kForm>) {
    const ActivatedRows<Fn, kForm> rows{
        static_cast<const bf16*>(job.x), static_cast<const bf16*>(job.up), job.x_stride, job.up_stride, job.bias,
        job.bias_type == DType::kF32};
    const PerRowPlan plan = choose_quantize_per_row(quantize.rows, quantize.cols, true);
    format == DType::kI8 ? launch_quantize_per_row<int8_t>(rows, quantize, plan, stream)
                         : launch_quantize_per_row<e4m3>(rows, quantize, plan, stream);
  });
}

}  // namespace octet::cuda
