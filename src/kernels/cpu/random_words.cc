#include "kernels/cpu/random_words.h"

#include <cstring>

#include "base/rng.h"
#include "kernels/cpu/simd.h"

namespace octet::cpu {
namespace {

constexpr int kBlocks = 8;  // Philox blocks at a time: one 64-bit lane each
typedef uint64_t Lanes __attribute__((vector_size(kBlocks * 8)));

// Products of the low halves of the lanes. (By reference: wide vectors as values are an ABI matter without AVX-512.)
OCTET_SIMD void multiply(const Lanes& a, uint32_t b, Lanes& product) {
#ifdef __AVX512F__
  product = (Lanes)_mm512_maskz_mul_epu32(0xff, (__m512i)a, _mm512_set1_epi64(b));
#else
  product = (a & 0xffffffffu) * uint64_t{b};
#endif
}

// Ten rounds as in base/rng.cc; the upper halves of the lanes are undefined until the end.
void philox_blocks(const RandomStream& stream, uint64_t first_block, uint32_t* words) {
  Lanes block{};
  for (int i = 0; i < kBlocks; ++i) block[i] = first_block + static_cast<uint64_t>(i);
  Lanes c0 = block & 0xffffffffu, c1 = block >> 32;
  Lanes c2 = Lanes{} + stream.node_key, c3 = Lanes{} + stream.micro_batch;
  uint32_t key0 = stream.key[0], key1 = stream.key[1];
  for (int round = 0; round < 10; ++round) {
    Lanes product0, product1;
    multiply(c0, 0xD2511F53u, product0);
    multiply(c2, 0xCD9E8D57u, product1);
    c0 = (product1 >> 32) ^ c1 ^ uint64_t { key0 };
    c1 = product1;
    c2 = (product0 >> 32) ^ c3 ^ uint64_t { key1 };
    c3 = product0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  const Lanes even = (c0 & 0xffffffffu) | (c1 << 32), odd = (c2 & 0xffffffffu) | (c3 << 32);
  const Lanes first = __builtin_shufflevector(even, odd, 0, 8, 1, 9, 2, 10, 3, 11);
  const Lanes second = __builtin_shufflevector(even, odd, 4, 12, 5, 13, 6, 14, 7, 15);
  std::memcpy(words, &first, sizeof first);
  std::memcpy(words + 16, &second, sizeof second);
}

}  // namespace

RandomStream RandomStream::of(const int64_t* seed_step_micro, uint32_t node_key) {
  const uint64_t key = static_cast<uint64_t>(seed_step_micro[0]) ^ mix64(static_cast<uint64_t>(seed_step_micro[1]));
  return {{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)},
          node_key,
          static_cast<uint32_t>(seed_step_micro[2])};
}

const uint32_t* random_words(const RandomStream& stream, uint64_t first, int64_t count, uint32_t* buffer) {
  const uint64_t block = first / 4;
  const auto skip = static_cast<int64_t>(first % 4);
  for (int64_t done = 0; done < count + skip; done += kRandomGroup) {
    philox_blocks(stream, block + static_cast<uint64_t>(done / 4), buffer + done);
  }
  return buffer + skip;
}

}  // namespace octet::cpu
