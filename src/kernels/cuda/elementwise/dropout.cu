// dropout: kept elements times 1 / (1 - p), decided by the element's own random word; one Philox call makes four.
#include "kernels/cuda/common/philox.cuh"
#include "kernels/cuda/common/pointwise.cuh"
#include "kernels/cuda/elementwise/elementwise.h"

namespace octet::cuda {
namespace {

template <typename T>
struct Drop {
  const T* x;
  const int64_t* rng;
  T* y;
  DropoutSite site;
  RandomStream stream = {};  // by begin
  __device__ __forceinline__ void begin() { stream = RandomStream::of(rng, site.key); }
  template <int kVec>
  using Held = Vec<T, kVec>;
  template <int kVec>
  __device__ __forceinline__ Held<kVec> load(int64_t i) const {
    return read<kVec>(x + i);
  }
  __device__ __forceinline__ T keep(T value, uint32_t word) const {
    return from_float<T>(word >= site.threshold << 8 ? to_float(value) * site.factor : 0.0f);  // spares word >> 8
  }
  template <int kVec>
  __device__ __forceinline__ void finish(const Held<kVec>& held, int64_t i) {
    Vec<T, kVec> v;
    if constexpr (kVec == 1) {
      const uint4 words = stream.words(static_cast<uint64_t>(i) / 4);
      const uint32_t word = i % 4 == 0 ? words.x : i % 4 == 1 ? words.y : i % 4 == 2 ? words.z : words.w;
      v.at[0] = keep(held.at[0], word);
    } else {
#pragma unroll
      for (int k = 0; k < kVec; k += 4) {
        const uint4 words = stream.words(static_cast<uint64_t>(i + k) / 4);
        v.at[k] = keep(held.at[k], words.x);
        v.at[k + 1] = keep(held.at[k + 1], words.y);
        v.at[k + 2] = keep(held.at[k + 2], words.z);
        v.at[k + 3] = keep(held.at[k + 3], words.w);
      }
    }
    write<kVec>(y + i, v);
  }
  __device__ void end() {}
};

}  // namespace

void launch_dropout(DropoutSite site, DType dtype, const void* x, const int64_t* rng, void* y, int64_t count,
                    cudaStream_t stream) {
  if (site.threshold >> 24 != 0) {  // p so close to 1 that nothing stays, and the threshold does not fit `keep`
    if (count > 0) launch_fill(0, y, count * dtype_bytes(dtype), stream);
    return;
  }
  const auto launch = [&]<typename T>(T) {
    launch_pointwise<kVecOf<T>, 2, 4>(count, Drop<T>{static_cast<const T*>(x), rng, static_cast<T*>(y), site}, stream);
  };
  dtype == DType::kF32 ? launch(float{}) : launch(bf16{});
}

}  // namespace octet::cuda
