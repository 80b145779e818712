// dropout: kept elements times 1 / (1 - p), decided by the element's own random word; one Philox call makes four.
#include "kernels/cuda/common/philox.cuh"
#include "kernels/cuda/common/pointwise.cuh"
#include "kernels/cuda/elementwise/elementwise.h"

namespace octet::cuda {
namespace {

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

template <typename T>
struct Drop {
  const T* x;
  const int64_t* rng;
  T* y;
  DropoutSite site;
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
  template <int kVec>
  __device__ __forceinline__ void finish(const Held<kVec>& held, int64_t i) {
    float v[kVec];
    widen(held, v);
    if constexpr (kVec == 1) {
      const uint4 words = stream.words(static_cast<uint64_t>(i) / 4);
      v[0] = keep(v[0], i % 4 == 0 ? words.x : i % 4 == 1 ? words.y : i % 4 == 2 ? words.z : words.w);
    } else {
#pragma unroll
      for (int k = 0; k < kVec; k += 4) {
        const uint4 words = stream.words(static_cast<uint64_t>(i + k) / 4);
        v[k] = keep(v[k], words.x), v[k + 1] = keep(v[k + 1], words.y);
        v[k + 2] = keep(v[k + 2], words.z), v[k + 3] = keep(v[k + 3], words.w);
      }
    }
    write<kVec>(y + i, narrow<T>(v));
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
    launch_pointwise<kVecOf<T>, 4>(count, Drop<T>{static_cast<const T*>(x), rng, static_cast<T*>(y), site}, stream);
  };
  dtype == DType::kF32 ? launch(float{}) : launch(bf16{});
}

}  // namespace octet::cuda
