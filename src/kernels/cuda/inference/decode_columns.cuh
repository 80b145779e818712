// The arithmetic of tensor-core decoding: a warp's rows in registers, and their products with a tile of 16 keys and
// values.
//
// Keys are the rows of the products and (query, head of the group) pairs their columns, 8 kTiles of them:
// scores^T = K q^T and sums^T = V^T p^T, p transposed by movmatrix. The largest score of a column is brought up to
// date only when a new one exceeds it by 2^8: until then weights are above 1, which the sums and denominators carry.
//
// FP8 codes become f16, int8 codes bf16, exactly, between shared memory and the fragments. Elements of the contraction
// may be in any order as long as both operands agree: lane (g, c) of 8 x 4 takes elements 16 c .. 16 c + 15 of every 64
// of keys g and g + 8, which are its share of four products. Of values it takes elements 16 g .. 16 g + 15 of every 128
// (8 g of 64) of keys 2 c, 2 c + 1, 2 c + 8 and 2 c + 9: row g of product n is element 2 n of them, row g + 8 the next.
#pragma once

#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/inference/decode_work.cuh"

namespace octet::cuda::decode {

__device__ __forceinline__ uint4 load16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];\n" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
  return v;
}
__device__ __forceinline__ uint2 load8(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];\n" : "=r"(v.x), "=r"(v.y) : "r"(address));
  return v;
}
__device__ __forceinline__ float load_float(uint32_t address) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];\n" : "=f"(v) : "r"(address));
  return v;
}
__device__ __forceinline__ uint32_t transposed(uint32_t x) {
  uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(y) : "r"(x));
  return y;
}
// Swizzle: where element d of row r lies in its row in shared memory; groups of eight stay contiguous.
__device__ __forceinline__ int shared_place(int r, int d) { return d ^ (r & 6) << 2; }

// The chunk of rows of one key head that a warp works for: what is common to an item's units.
template <typename T, int kDim, int kTiles>
struct Columns {
  using Number = mma::Factor<T>;                     // of the products
  uint32_t q[kDim / 16][kTiles][2];                  // q^T [kDim, 8 kTiles]: B fragments
  float sums[kDim / 16][kTiles][4];                  // sums^T [kDim, 8 kTiles]: accumulators
  float largest[kTiles][2], denominator[kTiles][2];  // of columns 8 j + 2 c and the next; denominators: of own keys
  int first_row, count;                              // of the chunk: rows of the sequence
  int first_high, last_low;                          // keys [last_low, first_high) are seen by all queries

  __device__ bool exists(int r) const { return r < count; }
  __device__ int query(const PagedProblem& p, int r) const { return Rows{0, first_row, count}.query(p, r); }
  // The denominators become those of all keys of the item that this warp has seen.
  __device__ __forceinline__ void sum_denominators() {
    unroll<kTiles, 2>([&](int j, int e) {
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes <<= 1) {
        denominator[j][e] += __shfl_xor_sync(kWholeWarp, denominator[j][e], lanes);
      }
    });
  }
  __device__ __forceinline__ void store_results(const PagedProblem& p, const Item& item, int head, float v_scale,
                                                bf16* out) const {
    for_each_row([&](int r, int j, int e) {
      store_column(p.dim, j, e, v_scale / denominator[j][e], out + item.rows.element(p, head, r));
    });
  }
  // Sums and parts as they are: rows of `dim` elements, in shared memory with those of different rows in different
  // banks (shared_place).
  template <bool kShared>
  __device__ __forceinline__ void store_rows(int dim, float steps, float* to, Partial* parts) const {
    for_each_row([&](int r, int j, int e) {
      store_column(dim, j, e, 1.0f, to + r * dim, kShared ? shared_place(r, 0) : 0);
      if (static_cast<int>(threadIdx.x) % 32 / 4 == 0) {
        parts[r] = {largest[j][e] == -INFINITY ? -INFINITY : largest[j][e] * steps, denominator[j][e]};
      }
    });
  }
  // Of this lane's columns: 8 j + 2 c and the next.
  template <typename Body>
  __device__ __forceinline__ void for_each_row(Body&& body) const {
    unroll<kTiles, 2>([&](int j, int e) {
      const int r = 8 * j + static_cast<int>(threadIdx.x) % 4 * 2 + e;
      if (exists(r)) body(r, j, e);
    });
  }
  // Column 8 j + 2 c + e times `by`, as row `to` of `dim` elements, d at d ^ flip.
  template <typename Out>
  __device__ __forceinline__ void store_column(int dim, int j, int e, float by, Out* to, int flip = 0) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (sizeof(T) == 1) {
      constexpr int kEach = kDim >= 128 ? 8 : 4;  // products of a read
#pragma unroll
      for (int n = 0; n < kDim / 16; n += 4) {
        float eight[8];
        unroll<8>([&](int i) { eight[i] = sums[n + i / 2][j][i % 2 * 2 + e] * by; });
        const int d = n / kEach * 128 + lane / 4 * 2 * kEach + n % kEach * 2;
        if (d < dim) store<8>(to + (d ^ flip), eight);
      }
    } else {
      unroll<kDim / 16, 2>([&](int n, int half) {
        const int first = 16 * n + 8 * half;  // of the eight that the lanes of a column store
        if (first < dim) {
          to[(first & ~24) + ((first & 24) ^ flip) + lane / 4] = from_float<Out>(sums[n][j][2 * half + e] * by);
        }
      });
    }
  }
  // Nothing seen, no queries. To be called when an item has ended: nothing is kept in registers while it is joined.
  __device__ __forceinline__ void clear() {
    unroll<kTiles>([&](int j) {
      unroll<2>([&](int e) { largest[j][e] = -INFINITY, denominator[j][e] = 0; });
      unroll<kDim / 16>([&](int n) {
        q[n][j][0] = q[n][j][1] = 0;
        unroll<4>([&](int e) { sums[n][j][e] = 0; });
      });
    });
  }
  __device__ __forceinline__ void enter(const PagedProblem& p, const PagedOperands& x, const Cut& cut, const Item& item,
                                        int head) {
    const int g = static_cast<int>(threadIdx.x) % 32 / 4, c = static_cast<int>(threadIdx.x) % 4;
    first_row = item.rows.first, count = item.rows.count;
    first_high = item.position() + 1, last_low = max(0, item.length - cut.window);
    unroll<kTiles>([&](int j) {
      if (!exists(8 * j + g)) return;
      const bf16* from = static_cast<const bf16*>(x.q.data) + item.rows.element(p, head, 8 * j + g);
      if constexpr (sizeof(T) == 2) {
        unroll<kDim / 16, 2>([&](int n, int half) {
          const int d = 16 * n + 8 * half + 2 * c;
          if (d < p.dim) q[n][j][half] = *reinterpret_cast<const uint32_t*>(from + d);
        });
      } else {
        unroll<kDim / 64>([&](int n) {
          const int d = 64 * n + 16 * c;
          if (d >= p.dim) return;
          unroll<2>([&](int half) {
            const uint4 eight = *reinterpret_cast<const uint4*>(from + d + 8 * half);
            q[4 * n + 2 * half][j][0] = mma::halves_of_bf16<T>(eight.x),
                          q[4 * n + 2 * half][j][1] = mma::halves_of_bf16<T>(eight.y);
            q[4 * n + 2 * half + 1][j][0] = mma::halves_of_bf16<T>(eight.z);
            q[4 * n + 2 * half + 1][j][1] = mma::halves_of_bf16<T>(eight.w);
          });
        });
      }
    });
  }

  // scores[j]: keys g (elements 0, 1) and g + 8 against columns 8 j + 2 c and the next.
  template <typename S>
  __device__ __forceinline__ void multiply_keys(uint32_t keys, float (&scores)[kTiles][4]) const {
    float others[kTiles][4] = {};  // two chains of products: they wait for each other less
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
    if constexpr (sizeof(T) == 2) {
      unroll<kDim / 16>([&](int n) {
        uint32_t a[4];
        mma::load_fragments(keys + S::offset(lane % 16, 2 * n + lane / 16), a);
        unroll<kTiles>(
            [&](int j) { mma::multiply_add<Number>(n % 2 == 0 ? scores[j] : others[j], a, q[n][j][0], q[n][j][1]); });
      });
    } else {
      unroll<kDim / 64>([&](int n) {
        const uint4 near = load16(keys + S::offset(g, 4 * n + c)), far = load16(keys + S::offset(g + 8, 4 * n + c));
        const uint32_t low[4] = {near.x, near.y, near.z, near.w}, high[4] = {far.x, far.y, far.z, far.w};
        unroll<4>([&](int i) {
          const uint32_t a[4] = {mma::halves<T>(low[i]), mma::halves<T>(high[i]), mma::halves<T>(low[i] >> 16),
                                 mma::halves<T>(high[i] >> 16)};
          unroll<kTiles>([&](int j) {
            mma::multiply_add<Number>(i % 2 == 0 ? scores[j] : others[j], a, q[4 * n + i][j][0], q[4 * n + i][j][1]);
          });
        });
      });
    }
    unroll<kTiles, 4>([&](int j, int e) { scores[j][e] += others[j][e]; });
  }

  // Scores, or weights, of keys g (elements 0, 1) and g + 8 times their factors, 16 float32 in shared memory.
  static __device__ __forceinline__ void multiply_by(uint32_t factors, float (&scores)[kTiles][4]) {
    const uint32_t own = factors + threadIdx.x % 32 / 4 * 4;
    const float near = load_float(own), far = load_float(own + 32);
    unroll<kTiles, 4>([&](int j, int e) { scores[j][e] *= e < 2 ? near : far; });
  }

  // What a step away from a row's query makes, of unscaled scores: `scale` makes scaled ones.
  __device__ __forceinline__ void make_biases(const PagedProblem& p, int head, float scale,
                                              float (&biases)[8 * kTiles]) const {
    __syncwarp();
#pragma unroll 1
    for (int r = static_cast<int>(threadIdx.x) % 32; r < 8 * kTiles; r += 32) {
      const int query_head = (head - query(p, r)) * p.group + first_row + r;
      biases[r] = exists(r) ? alibi_bias(p, query_head) / scale : 0.0f;
    }
    __syncwarp();
  }

  // Adds what the distances of keys first .. first + 15 make; `biases` of the warp's rows are for unscaled scores.
  __device__ __forceinline__ void add_biases(const PagedProblem& p, int first, const float (&biases)[8 * kTiles],
                                             float (&scores)[kTiles][4]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
    unroll<kTiles, 2>([&](int j, int e) {
      const int r = 8 * j + 2 * c + e, distance = first + g - (first_high - 1 + query(p, r));
      scores[j][e] = fmaf(biases[r], static_cast<float>(distance), scores[j][e]);
      scores[j][e + 2] = fmaf(biases[r], static_cast<float>(distance + 8), scores[j][e + 2]);
    });
  }

  // Scores of keys first .. first + 15 that a column does not see become -inf.
  __device__ __forceinline__ void mask(const PagedProblem& p, const Cut& cut, int first,
                                       float (&scores)[kTiles][4]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
    if (first >= last_low && first + kUnitKeys <= first_high) return;
    unroll<kTiles, 2>([&](int j, int e) {
      const int position = first_high - 1 + query(p, 8 * j + 2 * c + e), low = position - cut.window + 1;
      unroll<2>([&](int half) {
        const int key = first + g + 8 * half;
        if (key < low || key > position) scores[j][2 * half + e] = -INFINITY;
      });
    });
  }

  static __device__ float anchor_of(float largest, float steps) {
    return largest == -INFINITY ? 0.0f : largest * steps;
  }

  // Scores become weights, powers of two over the anchors; `steps` powers of two make a unit of the score.
  __device__ __forceinline__ void weigh(float steps, float (&scores)[kTiles][4]) {
    constexpr float kSlack = 8.0f;
    bool grows = false;
    unroll<kTiles, 2>([&](int j, int e) {
      grows |= (fmaxf(scores[j][e], scores[j][e + 2]) - largest[j][e]) * steps > kSlack;  // NaN of -inf: nothing seen
    });
    if (__any_sync(kWholeWarp, grows)) {
      unroll<kTiles>([&](int j) {
        float shrink[2];
        unroll<2>([&](int e) {
          float top = fmaxf(scores[j][e], scores[j][e + 2]);
#pragma unroll
          for (int lanes = 4; lanes < 32; lanes <<= 1) top = fmaxf(top, __shfl_xor_sync(kWholeWarp, top, lanes));
          top = fmaxf(top, largest[j][e]);
          shrink[e] = exp2_fast(fmaf(largest[j][e], steps, -anchor_of(top, steps)));
          largest[j][e] = top, denominator[j][e] *= shrink[e];
        });
        unroll<kDim / 16, 4>([&](int n, int e) { sums[n][j][e] *= shrink[e % 2]; });
      });
    }
    unroll<kTiles, 2>([&](int j, int e) {
      const float anchor = anchor_of(largest[j][e], steps);
      scores[j][e] = exp2_fast(fmaf(scores[j][e], steps, -anchor));
      scores[j][e + 2] = exp2_fast(fmaf(scores[j][e + 2], steps, -anchor));
      denominator[j][e] += scores[j][e] + scores[j][e + 2];
    });
  }

  template <typename S>
  __device__ __forceinline__ void add_values(uint32_t values, const float (&weights)[kTiles][4]) {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
    uint32_t b[kTiles][2];
    unroll<kTiles, 2>([&](int j, int half) {
      b[j][half] = transposed(mma::pack<Number>(weights[j][2 * half], weights[j][2 * half + 1]));
    });
    const auto multiply = [&](int n, const uint32_t(&a)[4]) {
      unroll<kTiles>([&](int j) { mma::multiply_add<Number>(sums[n][j], a, b[j][0], b[j][1]); });
    };
    if constexpr (sizeof(T) == 2) {
      unroll<kDim / 16>([&](int n) {
        uint32_t a[4];
        mma::load_fragments_transposed(values + S::offset(lane % 8 + lane / 16 * 8, 2 * n + lane / 8 % 2), a);
        multiply(n, a);
      });
    } else {
      constexpr int kWords = kDim >= 128 ? 4 : 2;
      unroll<kDim / (32 * kWords)>([&](int part) {
        uint32_t codes[4][kWords];
        unroll<4>([&](int i) {
          const int key = 2 * c + i % 2 + i / 2 * 8;
          if constexpr (kWords == 4) {
            const uint4 v = load16(values + S::offset(key, 8 * part + g));
            codes[i][0] = v.x, codes[i][1] = v.y, codes[i][2] = v.z, codes[i][3] = v.w;
          } else {
            const uint2 v = load8(values + S::offset(key, g / 2) + g % 2 * 8);
            codes[i][0] = v.x, codes[i][1] = v.y;
          }
        });
        unroll<2 * kWords>([&](int i) {
          const uint32_t select = i % 2 == 0 ? 0x5140 : 0x7362;  // two elements of both keys, pair by pair
          const uint32_t near = __byte_perm(codes[0][i / 2], codes[1][i / 2], select);
          const uint32_t far = __byte_perm(codes[2][i / 2], codes[3][i / 2], select);
          const uint32_t a[4] = {mma::halves<T>(near), mma::halves<T>(near >> 16), mma::halves<T>(far),
                                 mma::halves<T>(far >> 16)};
          multiply(part * 2 * kWords + i, a);
        });
      });
    }
  }
};

}  // namespace octet::cuda::decode
