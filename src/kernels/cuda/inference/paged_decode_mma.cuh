// Decode over the paged cache on tensor cores: queries of bf16, a cache of bf16 or FP8 codes. Bound by reading the
// cache.
//
// A warp walks over tiles of 16 keys of one key head through its own ring of stages in shared memory, which runs ahead
// across the ends of items (decode_work.cuh), so that short contexts keep the memory as busy as long ones. Keys are the
// rows of the products and (query, head of the group) pairs their columns, 8 kTiles of them: scores^T = K q^T and
// sums^T = V^T p^T, p turned over by movmatrix. The largest score of a column is brought up to date only when a new
// one exceeds it by 2^8: until then weights are above 1, which the sums and denominators carry.
//
// FP8 codes become f16, exactly, between shared memory and the fragments. Elements of the contraction may stand in any
// order as long as both operands agree: lane (g, c) of 8 x 4 takes elements 16 c .. 16 c + 15 of every 64 of keys g and
// g + 8, which are its share of four products. Of values it takes elements 16 g .. 16 g + 15 of every 128 (8 g of 64)
// of keys 2 c, 2 c + 1, 2 c + 8 and 2 c + 9: row g of product n is element 2 n of them, row g + 8 the next.
#pragma once

#include "kernels/cuda/attention/mma.cuh"
#include "kernels/cuda/inference/decode_work.cuh"
#include "kernels/cuda/inference/halves.cuh"
#include "kernels/cuda/inference/paged_decode_mma.h"

namespace octet::cuda::decode {

// A stage of a warp: 16 keys, then their values, rows of kDim elements in pieces of 16 bytes.
template <typename T, int kDim, int kTiles, int kStages>
struct Shape {
  static constexpr int kRowBytes = kDim * static_cast<int>(sizeof(T)), kPieces = kRowBytes / 16;
  static constexpr int kTileBytes = kUnitKeys * kRowBytes, kStageBytes = 2 * kTileBytes;
  static constexpr int kRingBytes = kWarps * kStages * kStageBytes;

  // Swizzled so that the eight lanes of a phase of the fragments' reads take different banks.
  __device__ static uint32_t offset(int row, int piece) {
    if constexpr (sizeof(T) == 2) {
      return static_cast<uint32_t>(row * kRowBytes + ((piece ^ (row & 7)) << 4));
    } else if constexpr (kPieces >= 8) {
      return static_cast<uint32_t>(row * kRowBytes + ((piece ^ (row & 6) ^ (row & 1) << 2) << 4));
    } else {
      return static_cast<uint32_t>(row / 2 * 128 + ((((row & 1) << 2 | piece) ^ (row & 6)) << 4));
    }
  }
};

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
__device__ __forceinline__ uint32_t transposed(uint32_t x) {
  uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(y) : "r"(x));
  return y;
}
// The chunk of rows of one key head that a warp works for: what is common to an item's units.
template <typename T, int kDim, int kTiles>
struct Columns {
  using Number = std::conditional_t<sizeof(T) == 2, bf16, f16>;  // of the products
  uint32_t q[kDim / 16][kTiles][2];                              // the right operands of the products with keys
  float sums[kDim / 16][kTiles][4];
  float largest[kTiles][2], denominator[kTiles][2];  // of columns 8 j + 2 c and the next; denominators: of own keys
  int begin, queries, first_row, count, head;        // count 0: nothing to do for this warp
  int first_high, last_low;                          // keys [last_low, first_high) are seen by all queries

  __device__ bool exists(int r) const { return r < count; }
  __device__ int query(const PagedProblem& p, int r) const { return queries == 1 ? 0 : (first_row + r) / p.group; }
  __device__ int64_t row(const PagedProblem& p, int r) const {  // of [tokens x heads]
    const int at = query(p, r);
    return static_cast<int64_t>(begin + at) * p.heads + head * p.group + first_row + r - at * p.group;
  }
  // Column 8 j + 2 c + e times `by`, as row `to` of p.dim elements.
  template <typename Out>
  __device__ __forceinline__ void store_column(const PagedProblem& p, int j, int e, float by, Out* to) const {
    if constexpr (sizeof(T) == 1) {
#pragma unroll
      for (int n = 0; n < kDim / 16; n += 4) {
        float eight[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) eight[i] = sums[n + i / 2][j][i % 2 * 2 + e] * by;
        const int d = element(n, 0);
        if (d < p.dim) store<8>(to + d, eight);
      }
    } else {
#pragma unroll
      for (int n = 0; n < kDim / 16; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int d = element(n, half);
          if (d < p.dim) to[d] = from_float<Out>(sums[n][j][2 * half + e] * by);
        }
      }
    }
  }
  // The element of the head that sums[n][.][2 half + .] of this lane belong to.
  __device__ static int element(int n, int half) {
    const int g = static_cast<int>(threadIdx.x) % 32 / 4;
    if constexpr (sizeof(T) == 2) return 16 * n + g + 8 * half;
    constexpr int kEach = kDim >= 128 ? 8 : 4;  // products of a read
    return n / kEach * 128 + g * 2 * kEach + n % kEach * 2 + half;
  }

  __device__ void enter(const PagedProblem& p, const PagedOperands& x, const Cut& cut, const Place& place) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int g = lane / 4, c = lane % 4;
    begin = place.sequence.begin, queries = place.sequence.queries;
    head = place.group * cut.head_warps() + (warp & (cut.head_warps() - 1));
    first_row = place.chunk * cut.rows;
    count = head < p.kv_heads ? min(cut.rows, queries * p.group - first_row) : 0;
    first_high = place.sequence.position(0) + 1, last_low = place.sequence.first_key(p, queries - 1);
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) largest[j][e] = -INFINITY, denominator[j][e] = 0;
#pragma unroll
      for (int n = 0; n < kDim / 16; ++n) {
        q[n][j][0] = q[n][j][1] = 0;
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[n][j][e] = 0;
      }
      if (!exists(8 * j + g)) continue;
      const bf16* from = static_cast<const bf16*>(x.q.data) + row(p, 8 * j + g) * p.dim;
      if constexpr (sizeof(T) == 2) {
#pragma unroll
        for (int n = 0; n < kDim / 16; ++n) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int d = 16 * n + 8 * half + 2 * c;
            if (d < p.dim) q[n][j][half] = *reinterpret_cast<const uint32_t*>(from + d);
          }
        }
      } else {
#pragma unroll
        for (int n = 0; n < kDim / 64; ++n) {
          const int d = 64 * n + 16 * c;
          if (d >= p.dim) continue;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const uint4 eight = *reinterpret_cast<const uint4*>(from + d + 8 * half);
            q[4 * n + 2 * half][j][0] = mma::halves_of_bf16(eight.x),
                          q[4 * n + 2 * half][j][1] = mma::halves_of_bf16(eight.y);
            q[4 * n + 2 * half + 1][j][0] = mma::halves_of_bf16(eight.z);
            q[4 * n + 2 * half + 1][j][1] = mma::halves_of_bf16(eight.w);
          }
        }
      }
    }
  }

  // scores[j]: keys g (elements 0, 1) and g + 8 against columns 8 j + 2 c and the next.
  template <typename S>
  __device__ __forceinline__ void multiply_keys(uint32_t keys, float (&scores)[kTiles][4]) const {
    float others[kTiles][4] = {};  // two chains of products: they wait for each other less
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
    if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int n = 0; n < kDim / 16; ++n) {
        uint32_t a[4];
        mma::load_fragments(keys + S::offset(lane % 16, 2 * n + lane / 16), a);
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          mma::multiply_add<Number>(n % 2 == 0 ? scores[j] : others[j], a, q[n][j][0], q[n][j][1]);
        }
      }
    } else {
#pragma unroll
      for (int n = 0; n < kDim / 64; ++n) {
        const uint4 near = load16(keys + S::offset(g, 4 * n + c)), far = load16(keys + S::offset(g + 8, 4 * n + c));
        const uint32_t low[4] = {near.x, near.y, near.z, near.w}, high[4] = {far.x, far.y, far.z, far.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t a[4] = {mma::halves<T>(low[i]), mma::halves<T>(high[i]), mma::halves<T>(low[i] >> 16),
                                 mma::halves<T>(high[i] >> 16)};
#pragma unroll
          for (int j = 0; j < kTiles; ++j) {
            mma::multiply_add<Number>(i % 2 == 0 ? scores[j] : others[j], a, q[4 * n + i][j][0], q[4 * n + i][j][1]);
          }
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[j][e] += others[j][e];
    }
  }

  // Adds what the distances of keys first .. first + 15 make; `biases` of the warp's rows are for unscaled scores.
  __device__ __forceinline__ void add_biases(const PagedProblem& p, int first, const float (&biases)[8 * kTiles],
                                             float (&scores)[kTiles][4]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int r = 8 * j + 2 * c + e, distance = first + g - (first_high - 1 + query(p, r));
        scores[j][e] = fmaf(biases[r], static_cast<float>(distance), scores[j][e]);
        scores[j][e + 2] = fmaf(biases[r], static_cast<float>(distance + 8), scores[j][e + 2]);
      }
    }
  }

  // Scores of keys first .. first + 15 that a column does not see become -inf.
  __device__ __forceinline__ void mask(const PagedProblem& p, int first, float (&scores)[kTiles][4]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
    if (first >= last_low && first + kUnitKeys <= first_high) return;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int position = first_high - 1 + query(p, 8 * j + 2 * c + e);
        const int low = p.window > 0 ? position - p.window + 1 : 0;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int key = first + g + 8 * half;
          if (key < low || key > position) scores[j][2 * half + e] = -INFINITY;
        }
      }
    }
  }

  static __device__ float anchor_of(float largest, float steps) {
    return largest == -INFINITY ? 0.0f : largest * steps;
  }

  // Scores become weights, powers of two over the anchors; `steps` powers of two make a unit of the score.
  __device__ __forceinline__ void weigh(float steps, float (&scores)[kTiles][4]) {
    constexpr float kSlack = 8.0f;
    bool grows = false;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        grows |= (fmaxf(scores[j][e], scores[j][e + 2]) - largest[j][e]) * steps > kSlack;  // NaN of -inf: nothing seen
      }
    }
    if (__any_sync(kWholeWarp, grows)) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        float shrink[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float top = fmaxf(scores[j][e], scores[j][e + 2]);
#pragma unroll
          for (int lanes = 4; lanes < 32; lanes <<= 1) top = fmaxf(top, __shfl_xor_sync(kWholeWarp, top, lanes));
          top = fmaxf(top, largest[j][e]);
          shrink[e] = mma::power_of_two(fmaf(largest[j][e], steps, -anchor_of(top, steps)));
          largest[j][e] = top, denominator[j][e] *= shrink[e];
        }
#pragma unroll
        for (int n = 0; n < kDim / 16; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[n][j][e] *= shrink[e % 2];
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float anchor = anchor_of(largest[j][e], steps);
        scores[j][e] = mma::power_of_two(fmaf(scores[j][e], steps, -anchor));
        scores[j][e + 2] = mma::power_of_two(fmaf(scores[j][e + 2], steps, -anchor));
        denominator[j][e] += scores[j][e] + scores[j][e + 2];
      }
    }
  }

  template <typename S>
  __device__ __forceinline__ void add_values(uint32_t values, const float (&weights)[kTiles][4]) {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
    uint32_t b[kTiles][2];
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        b[j][half] = transposed(mma::pack<Number>(weights[j][2 * half], weights[j][2 * half + 1]));
      }
    }
    const auto multiply = [&](int n, const uint32_t(&a)[4]) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) mma::multiply_add<Number>(sums[n][j], a, b[j][0], b[j][1]);
    };
    if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int n = 0; n < kDim / 16; ++n) {
        uint32_t a[4];
        mma::load_fragments_transposed(values + S::offset(lane % 8 + lane / 16 * 8, 2 * n + lane / 8 % 2), a);
        multiply(n, a);
      }
    } else {
      constexpr int kWords = kDim >= 128 ? 4 : 2;
#pragma unroll
      for (int part = 0; part < kDim / (32 * kWords); ++part) {
        uint32_t codes[4][kWords];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = 2 * c + i % 2 + i / 2 * 8;
          if constexpr (kWords == 4) {
            const uint4 v = load16(values + S::offset(key, 8 * part + g));
            codes[i][0] = v.x, codes[i][1] = v.y, codes[i][2] = v.z, codes[i][3] = v.w;
          } else {
            const uint2 v = load8(values + S::offset(key, g / 2) + g % 2 * 8);
            codes[i][0] = v.x, codes[i][1] = v.y;
          }
        }
#pragma unroll
        for (int i = 0; i < 2 * kWords; ++i) {
          const uint32_t select = i % 2 == 0 ? 0x5140 : 0x7362;  // two elements of both keys, pair by pair
          const uint32_t near = __byte_perm(codes[0][i / 2], codes[1][i / 2], select);
          const uint32_t far = __byte_perm(codes[2][i / 2], codes[3][i / 2], select);
          const uint32_t a[4] = {mma::halves<T>(near), mma::halves<T>(near >> 16), mma::halves<T>(far),
                                 mma::halves<T>(far >> 16)};
          multiply(part * 2 * kWords + i, a);
        }
      }
    }
  }
};

template <typename T, int kDim, int kTiles, int kStages, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    paged_decode_mma_kernel(PagedProblem p, PagedOperands x, Cut cut, int block_shift, Pieces pieces) {
  using S = Shape<T, kDim, kTiles, kStages>;
  constexpr float kLog2e = 1.44269504088896341f;
  extern __shared__ uint4 shared_pieces[];
  __shared__ RunScratch run_scratch;
  __shared__ Partial warp_parts[kWarps][8 * kTiles];
  __shared__ float biases[kWarps][8 * kTiles];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int head_lane = (warp & (cut.head_warps() - 1)), key_lane = warp >> cut.head_shift, key_warps = cut.key_warps();

  wait_for_previous();
  allow_next();
  if (threadIdx.x == 0) pieces.items[blockIdx.x].exists = 0;
  Run run;
  if (!find_run(p, x, cut, run_scratch, run)) return;

  // The copying side: runs ahead of the other by up to kStages - 1 units.
  const int64_t head_bytes = static_cast<int64_t>(p.dim) * static_cast<int64_t>(sizeof(T));
  const int64_t row_bytes = p.kv_heads * head_bytes;
  const int own_piece = lane % S::kPieces, own_row = lane / S::kPieces;
  const bool within = own_piece * 16 < p.dim * static_cast<int>(sizeof(T));
  const uint32_t ring = mma::shared_address(shared_pieces) + static_cast<uint32_t>(warp * kStages * S::kStageBytes);
  Place ahead = run.place;
  int to_copy = run.count;
  const auto tile_key = [&](const Place& place) {
    return (place.first_tile + place.unit * key_warps + key_lane) * kUnitKeys;
  };
  // The block of the cache of this warp's tile of unit `ahead`, one unit before it is copied.
  const auto look_up = [&] {
    const int key = tile_key(ahead);
    const bool exists =
        to_copy > 0 && key < ahead.sequence.length && ahead.group * cut.head_warps() + head_lane < p.kv_heads;
    return exists ? ahead.sequence.table[key >> block_shift] : -1;
  };
  // The rows of q of item `ahead`: this warp reads them when it gets there.
  const auto prefetch_queries = [&] {
    const int head = (ahead.group << cut.head_shift) + head_lane, first = ahead.chunk * cut.rows;
    const int bytes = min(cut.rows, ahead.sequence.queries * p.group - first) * p.dim * 2;  // one query's lie together
    if (ahead.sequence.queries > 1 || head >= p.kv_heads) return;
    const char* from = static_cast<const char*>(x.q.data) +
                       ((static_cast<int64_t>(ahead.sequence.begin) * p.heads + head * p.group + first) * p.dim) * 2;
    for (int at = lane * 128; at < bytes; at += 32 * 128) {
      asm volatile("prefetch.global.L2 [%0];\n" ::"l"(from + at));
    }
  };
  int block = look_up();
  const auto copy_next = [&](int stage) {
    if (to_copy > 0) {
      const int key = tile_key(ahead);
      const int64_t slot = (static_cast<int64_t>(block) << block_shift) + (key & (p.block_size - 1));
      const bool exists = block >= 0 && slot + kUnitKeys <= p.slots && within;
      const int64_t at = exists ? (slot + own_row) * row_bytes +
                                      (ahead.group * cut.head_warps() + head_lane) * head_bytes + own_piece * 16
                                : 0;
      const int low = ahead.oldest - key, high = exists ? ahead.sequence.length - key : 0;
      const char *keys = static_cast<const char*>(x.k.data) + at, *values = static_cast<const char*>(x.v.data) + at;
      const uint32_t to = ring + static_cast<uint32_t>(stage * S::kStageBytes);
      if (ahead.unit == 0) prefetch_queries();
      constexpr int kRowsAtOnce = 32 / S::kPieces;
#pragma unroll
      for (int n = 0; n < kUnitKeys / kRowsAtOnce; ++n) {
        const int row = own_row + n * kRowsAtOnce;
        const bool seen = row >= low && row < high;
        const int64_t step = exists ? n * kRowsAtOnce * row_bytes : 0;
        mma::copy16_async(to + S::offset(row, own_piece), keys + step, seen);
        mma::copy16_async(to + S::offset(row, own_piece) + S::kTileBytes, values + step, seen);
      }
      if (--to_copy > 0) {
        ahead.advance(p, x, cut);
        block = look_up();
      }
    }
    mma::commit_copies();
  };
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) copy_next(stage);

  const float k_scale = factor(x.k_scale), v_scale = factor(x.v_scale);
  const float steps = p.scale * k_scale * kLog2e;  // scores as powers of two
  Place place = run.place;
  Columns<T, kDim, kTiles> columns;
  const auto enter = [&] {
    columns.enter(p, x, cut, place);
    if (p.alibi == 0) return;
    __syncwarp();
    for (int r = lane; r < 8 * kTiles; r += 32) {
      const int head = columns.head * p.group + columns.first_row + r - columns.query(p, r) * p.group;
      biases[warp][r] = columns.exists(r) ? alibi_bias(p, head) / (p.scale * k_scale) : 0.0f;
    }
    __syncwarp();
  };
  enter();
  bool began_here = place.unit == 0;
  int stage = 0;
#pragma unroll 1
  for (int unit = 0; unit < run.count; ++unit) {
    mma::wait_copies<kStages - 2>();
    __syncwarp();
    copy_next(stage == 0 ? kStages - 1 : stage - 1);  // into what the step before has read
    const uint32_t keys = ring + static_cast<uint32_t>(stage * S::kStageBytes), values = keys + S::kTileBytes;
    stage = stage + 1 == kStages ? 0 : stage + 1;
    const int first = tile_key(place);
    if (columns.count > 0 && first < place.sequence.length) {
      float scores[kTiles][4] = {};
      columns.template multiply_keys<S>(keys, scores);
      if (p.alibi != 0) columns.add_biases(p, first, biases[warp], scores);
      columns.mask(p, first, scores);
      columns.weigh(steps, scores);
      columns.template add_values<S>(values, scores);
    }
    __syncwarp();
    const bool ends = place.unit + 1 == place.units, last = unit + 1 == run.count;
    if (!ends && !last) {
      ++place.unit;
      continue;
    }

    // The item's result, or this block's piece of it.
    const bool whole = ends && began_here;
    const int64_t piece = (static_cast<int64_t>(blockIdx.x) * 2 + (began_here ? 1 : 0)) * cut.head_warps();
    if (last && !ends && began_here && threadIdx.x == 0) {
      const int item_end = run.begin + run.count + place.units - place.unit - 2;  // its last unit
      pieces.items[blockIdx.x] = {1,
                                  place.sequence.begin,
                                  place.chunk,
                                  place.group,
                                  min(cut.rows, place.sequence.queries * p.group - place.chunk * cut.rows),
                                  item_end / run.each};
    }
    float total[kTiles][2];
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float sum = columns.denominator[j][e];
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes <<= 1) sum += __shfl_xor_sync(kWholeWarp, sum, lanes);
        total[j][e] = sum;
      }
    }
    const auto part_of = [&](int j, int e) {
      return Partial{columns.largest[j][e] == -INFINITY ? -INFINITY : columns.largest[j][e] * steps, total[j][e]};
    };
    if (key_warps == 1) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int r = 8 * j + lane % 4 * 2 + e;
          if (!columns.exists(r)) continue;
          if (whole) {
            const int64_t row = columns.row(p, r);
            columns.store_column(p, j, e, v_scale / total[j][e], static_cast<bf16*>(x.out.data) + row * p.dim);
          } else {
            const int64_t at = (piece + head_lane) * cut.rows + r;
            if (lane / 4 == 0) pieces.parts[at] = part_of(j, e);
            columns.store_column(p, j, e, 1.0f, pieces.sums + at * p.dim);
          }
        }
      }
    } else {
      float* warp_sums = reinterpret_cast<float*>(shared_pieces) + S::kRingBytes / 4;  // [kWarps, rows, kDim]
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int r = 8 * j + lane % 4 * 2 + e;
          if (!columns.exists(r)) continue;
          if (lane / 4 == 0) warp_parts[warp][r] = part_of(j, e);
#pragma unroll
          for (int n = 0; n < kDim / 16; ++n) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              warp_sums[(warp * cut.rows + r) * kDim + columns.element(n, half)] = columns.sums[n][j][2 * half + e];
            }
          }
        }
      }
      __syncthreads();
      const int rows = min(cut.rows, place.sequence.queries * p.group - place.chunk * cut.rows);
      for (int i = static_cast<int>(threadIdx.x); i < cut.head_warps() * rows * kDim; i += kThreads) {
        const int d = i % kDim, r = i / kDim % rows, h = i / kDim / rows, head = place.group * cut.head_warps() + h;
        if (d >= p.dim || head >= p.kv_heads) continue;
        float top = -INFINITY, sum = 0, value = 0;
        for (int w = h; w < kWarps; w += cut.head_warps()) top = fmaxf(top, warp_parts[w][r].anchor);
        for (int w = h; w < kWarps; w += cut.head_warps()) {
          const float weight = top == -INFINITY ? 0.0f : mma::power_of_two(warp_parts[w][r].anchor - top);
          sum = fmaf(weight, warp_parts[w][r].sum, sum);
          value = fmaf(weight, warp_sums[(w * cut.rows + r) * kDim + d], value);
        }
        if (whole) {
          const int query = (columns.first_row + r) / p.group, member = (columns.first_row + r) % p.group;
          const int64_t row = static_cast<int64_t>(columns.begin + query) * p.heads + head * p.group + member;
          static_cast<bf16*>(x.out.data)[row * p.dim + d] = from_float<bf16>(value * (v_scale / sum));
        } else {
          const int64_t at = (piece + h) * cut.rows + r;
          pieces.sums[at * p.dim + d] = value;
          if (d == 0) pieces.parts[at] = {top, sum};
        }
      }
      __syncthreads();
    }
    if (last) break;
    place.advance(p, x, cut);
    enter();
    began_here = true;
  }
  mma::wait_copies<0>();
}

template <typename T, int kDim, int kTiles, int kStages, int kBlocks>
Instance instance() {
  return {paged_decode_mma_kernel<T, kDim, kTiles, kStages, kBlocks>, 8 * kTiles, kDim,
          Shape<T, kDim, kTiles, kStages>::kRingBytes};
}

}  // namespace octet::cuda::decode
