// The elementwise ops, each a body of common/pointwise.cuh.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/common/activation.cuh"
#include "kernels/cuda/common/philox.cuh"
#include "kernels/cuda/common/pointwise.cuh"
#include "kernels/cuda/elementwise/elementwise.h"

namespace octet::cuda {
namespace {

// --- scale, cast, the activations and their gradients
struct Same {
  __device__ __forceinline__ float operator()(float x) const { return x; }
};

struct Times {
  float factor;
  __device__ __forceinline__ float operator()(float x) const { return x * factor; }
};

struct Tanh {
  __device__ __forceinline__ float operator()(float x) const { return tanhf(x); }
};

// dx = dy slope(x)
template <typename T, typename Fn>
struct MapGradient {
  const T *x, *dy;
  T* dx;
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
    unroll<kVec>([&](int k) { v.at[k] = from_float<T>(to_float(held.dy.at[k]) * Fn::slope(to_float(held.x.at[k]))); });
    write<kVec>(dx + i, v);
  }
};

// --- add, sub, mul, maximum; b has the shape of a, or is [C] against its last dim, or [1]
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
};

template <typename A, typename B>
void launch_combine(Binary op, Broadcast broadcast, const A* a, const B* b, A* y, int64_t count, int64_t cols,
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

// --- dropout: kept elements times 1 / (1 - p), decided by the element's own random word; one Philox call makes four
// RandomStream::words with what does not depend on the block made once a thread: the keys of the rounds, and half of
// the first round. The compiler would add the keys up again for every block.
struct PreparedStream {
  uint32_t first_key[10], second_key[10], low;  // of round 0: first_key with the high half of its second product

  __device__ __forceinline__ void prepare(const RandomStream& stream) {
    const uint64_t product = uint64_t{0xCD9E8D57u} * stream.node_key;
    unroll<10>([&](int round) {
      first_key[round] = stream.key0 + static_cast<uint32_t>(round) * 0x9E3779B9u;
      second_key[round] = stream.key1 + static_cast<uint32_t>(round) * 0xBB67AE85u;
    });
    first_key[0] ^= static_cast<uint32_t>(product >> 32), second_key[0] ^= stream.micro_batch;
    low = static_cast<uint32_t>(product);
    unroll<10>([&](int round) { asm volatile("" : "+r"(first_key[round]), "+r"(second_key[round])); });
  }
  __device__ __forceinline__ uint4 words(uint64_t block) const {
    const uint64_t product = uint64_t{0xD2511F53u} * static_cast<uint32_t>(block);
    uint4 c = {static_cast<uint32_t>(block >> 32) ^ first_key[0], low,
               static_cast<uint32_t>(product >> 32) ^ second_key[0], static_cast<uint32_t>(product)};
#pragma unroll
    for (int round = 1; round < 10; ++round) {
      const uint64_t x = uint64_t{0xD2511F53u} * c.x, z = uint64_t{0xCD9E8D57u} * c.z;
      c = {static_cast<uint32_t>(z >> 32) ^ c.y ^ first_key[round], static_cast<uint32_t>(z),
           static_cast<uint32_t>(x >> 32) ^ c.w ^ second_key[round], static_cast<uint32_t>(x)};
    }
    return c;
  }
};

// The number of the random word of element i.
struct OfWhole {
  static constexpr bool kAligned = true;  // that of a vector's first element is a multiple of 4, and they follow it
  __device__ __forceinline__ int64_t element(int64_t i) const { return i; }
};
struct OfPart {
  static constexpr bool kAligned = false;
  Divider cols;
  int64_t first, skipped;  // by a row of the part: elements of the whole's row
  __device__ __forceinline__ int64_t element(int64_t i) const { return first + i + cols.quotient(i) * skipped; }
};

template <typename T, typename Place, bool kBytes>
struct Drop {
  const T* x;
  const int64_t* rng;
  T* y;
  DropoutSite site;
  Place place;
  PreparedStream stream = {};  // by begin
  __device__ __forceinline__ void begin() { stream.prepare(RandomStream::of(rng, site.key)); }
  template <int kVec>
  using Held = Vec<T, kVec>;
  template <int kVec>
  __device__ __forceinline__ Held<kVec> load(int64_t i) const {
    return read<kVec>(x + i);
  }
  __device__ __forceinline__ float keep(float value, uint32_t word) const {
    return word >= site.threshold << 8 ? value * site.factor : 0.0f;  // spares word >> 8
  }
  __device__ __forceinline__ float keep_byte(float value, uint32_t word, int byte) const {
    return (word >> (8 * byte) & 0xff) >= site.threshold ? value * site.factor : 0.0f;
  }
  __device__ __forceinline__ float keep_one(float value, int64_t element) const {
    constexpr int kBytesOf = kBytes ? 4 : 1;  // elements a word
    const uint4 words = stream.words(static_cast<uint64_t>(element) / (4 * kBytesOf));
    const int64_t at = element / kBytesOf % 4;
    const uint32_t word = at == 0 ? words.x : at == 1 ? words.y : at == 2 ? words.z : words.w;
    return kBytes ? keep_byte(value, word, static_cast<int>(element % 4)) : keep(value, word);
  }
  template <int kVec>
  __device__ __forceinline__ void finish(const Held<kVec>& held, int64_t i) {
    float v[kVec];
    widen(held, v);
    if constexpr (kVec == 1) {
      v[0] = keep_one(v[0], place.element(i));
    } else if constexpr (kBytes) {
      const int64_t element = place.element(i);
      if (!Place::kAligned && (element % kVec != 0 || place.element(i + kVec - 1) != element + kVec - 1)) {
        unroll<kVec>([&](int k) { v[k] = keep_one(v[k], place.element(i + k)); });
      } else {
        const uint4 words = stream.words(static_cast<uint64_t>(element) / 16);
        const bool second = element % 16 >= 8;
        uint32_t pair[2] = {second ? words.z : words.x, second ? words.w : words.y};
        if (kVec == 4 && element % 8 >= 4) pair[0] = pair[1];
        unroll<kVec>([&](int k) { v[k] = keep_byte(v[k], pair[k / 4], k % 4); });
      }
    } else {
#pragma unroll
      for (int k = 0; k < kVec; k += 4) {
        const int64_t element = place.element(i + k);
        if (!Place::kAligned && (element % 4 != 0 || place.element(i + k + 3) != element + 3)) {
          unroll<4>([&](int j) { v[k + j] = keep_one(v[k + j], place.element(i + k + j)); });
          continue;
        }
        const uint4 words = stream.words(static_cast<uint64_t>(element) / 4);
        v[k] = keep(v[k], words.x), v[k + 1] = keep(v[k + 1], words.y);
        v[k + 2] = keep(v[k + 2], words.z), v[k + 3] = keep(v[k + 3], words.w);
      }
    }
    write<kVec>(y + i, narrow<T>(v));
  }
};

// --- a constant
__global__ void fill_kernel(uint64_t pattern, uint8_t* y, int64_t bytes) {
  const int64_t at = 16 * (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x);
  if (at + 16 <= bytes) {
    *reinterpret_cast<ulonglong2*>(y + at) = {pattern, pattern};
  } else {
    for (int64_t i = at; i < bytes; ++i) y[i] = static_cast<uint8_t>(pattern >> (i % 8 * 8));
  }
}

}  // namespace

void launch_cast(DType from, const void* x, DType to, void* y, int64_t count, cudaStream_t stream) {
  if (from == to) {
    if (x != y) cudaMemcpyAsync(y, x, static_cast<size_t>(count * dtype_bytes(to)), cudaMemcpyDeviceToDevice, stream);
    return;
  }
  with_number_type(from, [&]<typename X>(X) {
    with_number_type(to, [&]<typename Y>(Y) {
      if constexpr (!std::is_same_v<X, Y>) {
        constexpr int kVec = std::min(kVecOf<X>, kVecOf<Y>);
        const Map<X, Y, Same> map{static_cast<const X*>(x), static_cast<Y*>(y), {}};
        launch_pointwise<kVec, 4>(count, map, stream);
      }
    });
  });
}

void launch_scale(DType dtype, const void* x, void* y, int64_t count, float factor, cudaStream_t stream) {
  with_f32_or_bf16(dtype, [&]<typename T>(T) {
    const Map<T, T, Times> map{static_cast<const T*>(x), static_cast<T*>(y), {factor}};
    launch_pointwise<kVecOf<T>, 1>(count, map, stream);
  });
}

void launch_tanh(DType dtype, const void* x, void* y, int64_t count, cudaStream_t stream) {
  with_f32_or_bf16(dtype, [&]<typename T>(T) {
    const Map<T, T, Tanh> map{static_cast<const T*>(x), static_cast<T*>(y), {}};
    launch_pointwise<kVecOf<T>, 1>(count, map, stream);
  });
}

void launch_activation(Activation fn, DType dtype, const void* x, void* y, int64_t count, cudaStream_t stream) {
  with_f32_or_bf16(dtype, [&]<typename T>(T) {
    const auto launch = [&]<typename Fn>(Fn) {
      const Map<T, T, Fn> map{static_cast<const T*>(x), static_cast<T*>(y), {}};
      constexpr bool kErf = std::is_same_v<Fn, GeluErf>;  // bound by its arithmetic: more of it side by side
      launch_pointwise<kVecOf<T>, kErf ? 4 : 1>(count, map, stream);
    };
    with_activation(fn, launch);
  });
}

void launch_activation_grad(Activation fn, DType dtype, const void* x, const void* dy, void* dx, int64_t count,
                            cudaStream_t stream) {
  with_f32_or_bf16(dtype, [&]<typename T>(T) {
    with_activation(fn, [&]<typename Fn>(Fn) {
      const MapGradient<T, Fn> map{static_cast<const T*>(x), static_cast<const T*>(dy), static_cast<T*>(dx)};
      launch_pointwise<kVecOf<T>, 2>(count, map, stream);
    });
  });
}

void launch_binary(Binary op, Broadcast broadcast, DType a_type, const void* a, DType b_type, const void* b, void* y,
                   int64_t count, int64_t cols, cudaStream_t stream) {
  with_f32_or_bf16(a_type, [&]<typename A>(A) {
    with_f32_or_bf16(b_type, [&]<typename B>(B) {
      launch_combine(op, broadcast, static_cast<const A*>(a), static_cast<const B*>(b), static_cast<A*>(y), count, cols,
                     stream);
    });
  });
}

void launch_dropout(DropoutSite site, DType dtype, const void* x, const int64_t* rng, void* y, int64_t count,
                    cudaStream_t stream) {
  if (!site.bytes &&
      site.threshold >> 24 != 0) {  // p so close to 1 that nothing stays, and the threshold does not fit `keep`
    if (count > 0) launch_fill(0, y, count * dtype_bytes(dtype), stream);
    return;
  }
  with_f32_or_bf16(dtype, [&]<typename T>(T) {
    const auto launch_by = [&]<bool kBytes, typename Place>(std::bool_constant<kBytes>, const Place& place) {
      const Drop<T, Place, kBytes> drop{static_cast<const T*>(x), rng, static_cast<T*>(y), site, place};
      launch_pointwise<kVecOf<T>, 4>(count, drop, stream);
    };
    const auto launch = [&](const auto& place) {
      site.bytes ? launch_by(std::true_type{}, place) : launch_by(std::false_type{}, place);
    };
    site.is_part ? launch(OfPart{Divider(site.cols), site.first, site.stride - site.cols}) : launch(OfWhole{});
  });
}

void launch_fill(uint64_t pattern, void* y, int64_t bytes, cudaStream_t stream) {
  constexpr int64_t kBlock = 256 * 16;
  fill_kernel<<<static_cast<unsigned>((bytes + kBlock - 1) / kBlock), 256, 0, stream>>>(
      pattern, static_cast<uint8_t*>(y), bytes);
}

}  // namespace octet::cuda
