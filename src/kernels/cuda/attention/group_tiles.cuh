// What attention's kernels on Hopper's products of a warp group share: tiles of 64 rows in panels (common/wgmma.cuh),
// their products, and dropout by bytes (kernels/common/keep_byte.h).
//
// A lane draws the bytes of what it holds, two draws for its two rows of 64 columns. Where keys own, fragments lie the
// other way round: the block draws and hands the bytes over in shared memory.
#pragma once

#include "kernels/cuda/attention/tiles.cuh"
#include "kernels/cuda/common/wgmma.cuh"

namespace octet::cuda::group {

inline constexpr int kGroup = 128, kRows = kOwn, kPanelBytes = kRows * 128;
template <int kDim>
inline constexpr int kPanels = kDim / 64;
template <int kDim>
inline constexpr int kTileBytes = kPanels<kDim>* kPanelBytes;

// threadIdx.x, read again: in long loops a register less.
__device__ __forceinline__ int thread_again() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// Panels of x[first + row][head], zeros beyond the tokens and beyond dim, a multiple of 8.
template <int kDim, int kThreads>
__device__ __forceinline__ void load_panels(uint32_t to, const Operand& x, int first, int tokens, int heads, int head,
                                            int dim) {
  constexpr int kPieces = kDim / 8, kAtOnce = kThreads / kPieces;
  const int piece = static_cast<int>(threadIdx.x) % kPieces, row = static_cast<int>(threadIdx.x) / kPieces;
  const int64_t stride = static_cast<int64_t>(heads) * dim;
  const bf16* from = static_cast<const bf16*>(x.data) + (first + row) * stride + head * dim + piece * 8;
  to += static_cast<uint32_t>(piece / 8 * kPanelBytes);
  if (first + kRows <= tokens && dim == kDim) {  // the way of nearly all tiles, without questions
    unroll<kRows / kAtOnce>([&](int n) {
      asm volatile(
          "cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to + wgmma::panel_offset(row + n * kAtOnce, piece % 8)),
          "l"(from + n * kAtOnce * stride));
    });
    return;
  }
  unroll<kRows / kAtOnce>([&](int n) {
    const bool exists = first + row + n * kAtOnce < tokens && piece * 8 < dim;
    mma::copy16_async(to + wgmma::panel_offset(row + n * kAtOnce, piece % 8),
                      exists ? from + n * kAtOnce * stride : x.data, exists);
  });
}
__device__ __forceinline__ void copy4_async(uint32_t to, const float* from, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(to), "l"(from), "r"(exists ? 4 : 0));
}

// The descriptor so many bytes further.
__device__ __forceinline__ uint64_t further(uint64_t descriptor, uint32_t bytes) {
  return (descriptor & 0xffffffff00000000ull) | (static_cast<uint32_t>(descriptor) + (bytes >> 4));
}

// Products of tiles: d = rows . rows of `right` over kDim; sums += weights, as bf16, . columns of `right` over its
// rows.
template <int kDim>
__device__ __forceinline__ void start_rows(float (&d)[32], uint32_t left, uint32_t right) {
  wgmma::pin(d);
  wgmma::fence();
  const uint64_t a = wgmma::descriptor(left), b = wgmma::descriptor(right);
  unroll<kDim / 16>([&](int k) {
    const uint32_t at = k / 4 * kPanelBytes + k % 4 * 32;
    wgmma::multiply_rows<bf16>(d, further(a, at), further(b, at), k > 0 ? 1 : 0);
  });
  wgmma::commit();
}
template <int kDim>
__device__ __forceinline__ void start_columns(float (&sums)[kPanels<kDim>][32], const uint32_t (&weights)[4][4],
                                              uint32_t right) {
  unroll<kPanels<kDim>>([&](int n) { wgmma::pin(sums[n]); });
  wgmma::fence();
  const uint64_t b = wgmma::descriptor(right, kPanelBytes);
  unroll<4, kPanels<kDim>>([&](int k, int n) {
    wgmma::multiply_columns<bf16>(sums[n], weights[k], further(b, n * kPanelBytes + k * 2048));
  });
  wgmma::commit();
}

__device__ __forceinline__ uint32_t bytes_at(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;\n" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
  return bytes;
}

// What is kept of a lane's elements of a tile, columns 8 n + 2 (lane % 4) + e of row half r: bit 7 of a byte of
// words[e][n / 2]. Queries by keys it is byte r + 2 (n % 2), keys by queries byte 2 r + n % 2.
template <bool kKeysByQueries>
struct KeptBytes {
  uint32_t words[2][4];

  __device__ __forceinline__ static uint32_t byte(int n, int r) {
    return static_cast<uint32_t>(kKeysByQueries ? 2 * r + n % 2 : r + n % 2 * 2);
  }
  // All bits of the halves e = 0, 1 of a pair; all bits of an element. (Bit 3 of a selector repeats the byte's sign.)
  __device__ __forceinline__ uint32_t pair(int n, int r) const {
    return bytes_at(words[0][n / 2], words[1][n / 2], byte(n, r) * 0x1111 + 0xcc88);
  }
  __device__ __forceinline__ uint32_t one(int n, int r, int e) const {
    return bytes_at(words[e][n / 2], 0, byte(n, r) * 0x1111 + 0x8888);
  }
};

struct ByteStream {
  RandomStream stream;
  uint32_t below, either;

  __device__ static ByteStream of(const AttentionProblem& p, const int64_t* rng) {
    ByteStream site{RandomStream::of(rng, p.key), p.threshold % 128 * 0x01010101u, p.threshold < 128 ? ~0u : 0u};
    // Equal in all lanes: this way they come into uniform registers.
    for (uint32_t* word : {&site.stream.key0, &site.stream.key1, &site.stream.micro_batch}) *word = warp_max(*word);
    return site;
  }
  // Bit 7 of every byte: it is not below the threshold.
  __device__ __forceinline__ uint32_t kept(uint32_t word) const {
    const uint32_t rest = (word | 0x80808080u) - below;
    return (word & rest) | ((word | rest) & either);
  }
  // RandomStream::words of blocks rows << 32 | within[e], side by side: the keys of the rounds are added up once.
  __device__ __forceinline__ void draw(uint32_t rows, const uint32_t (&within)[2], uint32_t (&to)[2][4]) const {
    uint32_t k0 = stream.key0, k1 = stream.key1;
    unroll<2>([&](int e) {
      to[e][0] = within[e], to[e][1] = rows, to[e][2] = stream.node_key, to[e][3] = stream.micro_batch;
    });
#pragma unroll
    for (int round = 0; round < 10; ++round) {
      unroll<2>([&](int e) {
        const uint64_t x = uint64_t{0xD2511F53u} * to[e][0], z = uint64_t{0xCD9E8D57u} * to[e][2];
        to[e][0] = static_cast<uint32_t>(z >> 32) ^ to[e][1] ^ k0, to[e][1] = static_cast<uint32_t>(z);
        to[e][2] = static_cast<uint32_t>(x >> 32) ^ to[e][3] ^ k1, to[e][3] = static_cast<uint32_t>(x);
      });
      k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    unroll<2, 4>([&](int e, int i) { to[e][i] = kept(to[e][i]); });
  }
};
// KeepByte::block's upper word for the 16 queries from `query` on.
__device__ __forceinline__ uint32_t draw_row(const AttentionProblem& p, int head, int query) {
  return static_cast<uint32_t>(p.first_head + head) * static_cast<uint32_t>((p.tokens + 15) / 16) +
         static_cast<uint32_t>(query / 16);
}

// Of a thread: its lane's row and columns in fragments, 16 rows a warp.
struct Lane {
  int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4,
      warp = static_cast<int>(threadIdx.x) % kGroup / 32, row = 16 * warp + g;
};

// Whether the warp's rows, which see columns [low, high), see all of the tile from `first` on.
__device__ __forceinline__ bool see_all(int first, const int (&low)[2], const int (&high)[2]) {
  return __all_sync(kWholeWarp, first >= max(low[0], low[1]) && first + kRows <= min(high[0], high[1])) != 0;
}

// Results of a group's rows [first + row, + 8]: sums times factors.
template <int kDim>
__device__ __forceinline__ void store_sums(const AttentionProblem& p, const Operand& to, const Lane& of, int first,
                                           int heads, int head, const float (&sums)[kPanels<kDim>][32],
                                           const float (&factors)[2], const bool (&exists)[2]) {
  if (to.data == nullptr) return;
  unroll<2>([&](int r) {
    const int row = first + of.row + 8 * r;
    if (row >= p.tokens) return;
    bf16* at = static_cast<bf16*>(to.data) + (static_cast<int64_t>(row) * heads + head) * p.dim;
    unroll<kDim / 8>([&](int n) {
      const int d = 8 * n + 2 * of.c;
      const float(&s)[32] = sums[n / 8];
      if (d >= p.dim) return;
      *reinterpret_cast<uint32_t*>(at + d) =
          exists[r] ? mma::pack(s[n % 8 * 4 + 2 * r] * factors[r], s[n % 8 * 4 + 2 * r + 1] * factors[r]) : 0u;
    });
  });
}

}  // namespace octet::cuda::group
