// Codes of a norm's result in both directions under one scale, from one reading of x (and the addend): a slab of 32
// rows lies in the shared memory of a cluster, 1024 columns a block, while its statistics are made; bf16 only.
//
// Three blocks share a multiprocessor, so that one's copies, sums and stores run beside each other's. With an addend,
// whose tile lies beside that of x, a slab comes in two parts of 16 rows. A thread makes the codes of 4 columns, 4 rows
// at a time, and leaves them, turned, where the warp has read x: 32 rows of a column are a whole sector of the
// transposed codes.
//
// The sums are row_access.cuh's group_sums, bit for bit: a warp adds the 32 neighbouring groups of 256 columns, sends
// that to every block of the cluster (st.async, counted by a barrier in shared memory: no thread waits for its stores),
// and each block adds all of them as the same tree.
#pragma once

#include "kernels/cuda/norm/forward.cuh"

namespace octet::cuda {

inline constexpr int kSlabRows = 32, kSlabCols = 1024, kSlabThreads = 256, kSlabBytes = kSlabRows * kSlabCols * 2;
inline constexpr int kSlabChunks = kSlabCols / 256, kMostChunks = 64;  // of 32 groups, of a block and of a row

template <bool kAdd>
struct SlabShared {
  static constexpr int kRows = kAdd ? kSlabRows / 2 : kSlabRows;  // of a part
  float sums[kMostChunks][kRows + 1];
  alignas(16) float mean[kRows], rstd[kRows];
  BulkBarrier full;  // of sums
  uint32_t amaxes[32];
};

__device__ __forceinline__ void copy_ahead(bf16* shared, const bf16* global, bool inside) {  // a group, or zeros
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(inside ? 16 : 0)
               : "memory");
}
// What is at `shared` here, at the same place in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ uint32_t address_in(uint32_t rank, const void* shared) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(shared)), "r"(rank));
  return address;
}
// Four bytes to another block, counted by its barrier; nowhere where `to` is 0.
__device__ __forceinline__ void send(uint32_t to, uint32_t offset, float value, uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .pred some;\n"
      "setp.ne.u32 some, %0, 0;\n"
      "@some st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%1], %2, [%3];\n"
      "}\n" ::"r"(to),
      "r"(to + offset), "r"(__float_as_uint(value)), "r"(to + barrier)
      : "memory");
}
// Of all threads of the cluster; those of a warp come together.
__device__ __forceinline__ void arrive_in_cluster() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_for_cluster() {
  __syncwarp();
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// A block's part of the rows that the cluster has in hand: copies and statistics.
template <bool kLayer, bool kAdd>
struct SlabNorm {
  using Shared = SlabShared<kAdd>;
  static constexpr int kRows = Shared::kRows, kWarpRows = kRows / (kSlabThreads / 32), kRowLanes = 32 / kWarpRows;
  const NormForward& p;
  bf16* data;  // [kAdd ? 2 : 1][kRows][kSlabCols]
  Shared& shared;
  int blocks, rows, cols;  // of the cluster; of x
  int c0;
  uint32_t parity = 0;
  uint32_t sums_there[2] = {};  // of the blocks this lane sends to

  __device__ __forceinline__ int lane() const { return static_cast<int>(threadIdx.x) & 31; }
  __device__ __forceinline__ int warp_row() const { return static_cast<int>(threadIdx.x >> 5) * kWarpRows; }
  // The lane's group of its warp's row i and chunk k, from the beginning of the data.
  __device__ __forceinline__ int group(int i, int k) const {
    return (warp_row() + i) * kSlabCols + (k * 32 + lane()) * kGroup;
  }

  __device__ __forceinline__ void begin() {
    if (threadIdx.x == 0) {
      shared.full.init();
      publish_barriers();
    }
    for (int i = 0; i < 2; ++i) {
      const int rank = (lane() & 7) + i * 8;
      if (rank < blocks) sums_there[i] = address_in(static_cast<uint32_t>(rank), shared.sums);
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  }

  // A lane brings the groups that it sums later.
  __device__ __forceinline__ void request_x(int r0) const { request(p.x, r0, data); }
  __device__ __forceinline__ void request_addend(int r0) const { request(p.addend, r0, data + kRows * kSlabCols); }
  __device__ __forceinline__ void request(const void* x, int r0, bf16* to) const {
    const int r = r0 + warp_row(), c = c0 + lane() * kGroup;
    const bf16* from = static_cast<const bf16*>(x) + int64_t{r} * cols + c;
    if (r + kWarpRows <= rows && c0 + kSlabCols <= cols) {
#pragma unroll
      for (int i = 0; i < kWarpRows; ++i, from += cols) {
#pragma unroll
        for (int k = 0; k < kSlabChunks; ++k) copy_ahead(to + group(i, k), from + k * 256, true);
      }
    } else if (r0 < rows) {
#pragma unroll
      for (int i = 0; i < kWarpRows; ++i) {
#pragma unroll
        for (int k = 0; k < kSlabChunks; ++k) {
          const bool inside = r + i < rows && c + k * 256 < cols;
          const bf16* at = inside ? from + int64_t{i} * cols + k * 256 : static_cast<const bf16*>(x);
          copy_ahead(to + group(i, k), at, inside);
        }
      }
    }
  }
  __device__ __forceinline__ void wait_for_copies() const { asm volatile("cp.async.wait_all;" ::: "memory"); }

  // Sums of x, or of (x - mean)^2, of the warp's rows, to all blocks of the cluster. kFirst adds the addend.
  template <bool kSquares, bool kFirst>
  __device__ __forceinline__ void send_sums(int r0, const float (&mean)[kWarpRows]) {
    wait_for_cluster();  // everybody has read the sums before
    if (threadIdx.x == 0 && blocks > 1) {
      shared.full.expect(static_cast<uint32_t>(blocks * kSlabChunks * kRows) * 4);
    }
    const int first = c0 / kSlabCols * kSlabChunks;
    const int live_rows = rows - r0 - warp_row(), live_cols = cols - c0 - lane() * kGroup;
    bf16* sum_to = nullptr;
    if constexpr (kAdd && kFirst) {
      if (p.sum != nullptr && live_cols > 0) {
        sum_to = static_cast<bf16*>(p.sum) + int64_t{r0 + warp_row()} * cols + c0 + lane() * kGroup;
      }
    }
    constexpr int kAtOnce = 4 / kWarpRows;  // chunks
#pragma unroll
    for (int k0 = 0; k0 < kSlabChunks; k0 += kAtOnce) {
      float sums[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int i = n % kWarpRows, k = k0 + n / kWarpRows;
        bf16* at = data + group(i, k);
        auto x = load_packed<kGroup>(at);
        if constexpr (kAdd && kFirst) {
          x = add_packed<bf16>(x, load_packed<kGroup>(at + kRows * kSlabCols));
          store_packed(at, x);
          if (sum_to != nullptr && i < live_rows && k * 256 < live_cols) {
            store_packed(sum_to + int64_t{i} * cols + k * 256, x);
          }
        }
        float v[kGroup];
        x.unpack(v);
        sums[n] = 0;
        if constexpr (kSquares) {
#pragma unroll
          for (float value : v) {
            const float d = kLayer ? value - mean[i] : value;
            sums[n] = fmaf(d, d, sums[n]);
          }
          if (kLayer && k * 256 >= live_cols) sums[n] = 0;
        } else {
#pragma unroll
          for (float value : v) sums[n] += value;
        }
      }
      int which;
      const float sum = warp_sums(sums, which);
      const int chunk = first + k0 + which / kWarpRows, row = warp_row() + which % kWarpRows;
      if (blocks == 1) {  // no cluster: a warp reads what it has written
        if (lane() % 8 == 0) shared.sums[chunk][row] = sum;
        continue;
      }
      const auto offset = static_cast<uint32_t>(chunk * (kRows + 1) + row) * 4;
      const uint32_t barrier = shared_address(&shared.full) - shared_address(shared.sums);
      send(sums_there[0], offset, sum, barrier);
      send(sums_there[1], offset, sum, barrier);
    }
  }
  // A row's sum over all chunks: rows of the warp lie side by side in its lanes.
  __device__ __forceinline__ float receive_sum() {
    if (blocks > 1) {
      shared.full.wait(parity);
      parity ^= 1;
    }
    __syncwarp();
    constexpr int kMine = kMostChunks / kRowLanes;
    static_assert(kMine == 4 || kMine == 8);
    float sums[kMine];
    const float* at = &shared.sums[lane() % kRowLanes][warp_row() + lane() / kRowLanes];
#pragma unroll
    for (int j = 0; j < kMine; ++j) {
      const bool has = lane() % kRowLanes + j * kRowLanes < blocks * kSlabChunks;
      sums[j] = has ? at[j * kRowLanes * (kRows + 1)] : 0.0f;
    }
    if constexpr (kMine == 8) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[j] += sums[j + 4];
    }
    sums[0] += sums[2], sums[1] += sums[3];
    float sum = sums[0] + sums[1];
#pragma unroll
    for (int lanes = kRowLanes / 2; lanes > 0; lanes >>= 1) sum += __shfl_xor_sync(kWholeWarp, sum, lanes);
    arrive_in_cluster();
    return sum;
  }

  // Statistics of the part's rows to shared memory; asks for the next addend once this one is added; ends with a
  // barrier.
  __device__ __forceinline__ void statistics(int r0, int next_r0) {
    const float scale = 1.0f / static_cast<float>(cols);
    const int row = warp_row() + lane() / kRowLanes;
    const bool owns = lane() % kRowLanes == 0, stores = owns && c0 == 0 && r0 + row < rows;
    float mean[kWarpRows] = {};
    if constexpr (kLayer) {
      send_sums<false, true>(r0, mean);
      if constexpr (kAdd) request_addend(next_r0);
      const float mine = receive_sum() * scale;
#pragma unroll
      for (int i = 0; i < kWarpRows; ++i) mean[i] = __shfl_sync(kWholeWarp, mine, i * kRowLanes);
      if (owns) shared.mean[row] = mine;
      if (stores && p.mean != nullptr) p.mean[r0 + row] = mine;
    }
    send_sums<true, !kLayer>(r0, mean);
    if constexpr (kAdd && !kLayer) request_addend(next_r0);
    const float rstd = rsqrtf(receive_sum() * scale + p.eps);
    if (owns) shared.rstd[row] = rstd;
    if (stores && p.rstd != nullptr) p.rstd[r0 + row] = rstd;
    __syncthreads();
  }
};

template <typename Code, bool kLayer, bool kAdd>
struct SlabCodes {
  using Norm = SlabNorm<kLayer, kAdd>;
  using M = Magnitudes<bf16>;
  static constexpr int kRows = Norm::kRows;
  const NormForward& p;
  Norm& norm;
  float given;
  int column;
  float weight[4], bias[4];
  uint32_t largest = 0;

  __device__ __forceinline__ void begin() {
    given = *p.quantize.scale;
    column = norm.c0 + static_cast<int>(threadIdx.x) * 4;
    const bool in = column < norm.cols;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      weight[j] = in ? load_channel(p.weight, p.weight_dtype, column + j) : 0.0f;
      if constexpr (kLayer) bias[j] = in ? load_channel(p.bias, p.bias_dtype, column + j) : 0.0f;
    }
  }

  // Where lane `from` of the warp leaves its columns' words of rows 4 quad .. + 3 of the slab: half of the place of x
  // of four rows. Lanes are swizzled so that both quads that a pair of lanes reads lie in other banks.
  __device__ __forceinline__ uint32_t* turned(int quad, int from) const {
    const int row = !kAdd ? 4 * quad : quad < 4 ? 4 * quad + 2 : 4 * (quad - 4), lane = from ^ (quad & 4);
    bf16* to = norm.data + (row + (lane >> 4)) * kSlabCols + static_cast<int>(threadIdx.x >> 5) * 128 + (lane & 15) * 8;
    return reinterpret_cast<uint32_t*>(to);
  }

  // Codes of the part's rows. kWhole: all of the slab's rows and columns are there.
  template <bool kWhole>
  __device__ __forceinline__ void make(int r0) {
    const int live = kWhole ? kRows : column < norm.cols ? min(norm.rows - r0, kRows) : 0;
    const int64_t first = int64_t{r0} * norm.cols + column;
    auto* codes = static_cast<uint8_t*>(p.quantize.codes) + first;
#pragma unroll 2
    for (int quad = 0; quad < kRows / 4; ++quad) {
      const float4 rstd = reinterpret_cast<const float4*>(norm.shared.rstd)[quad];
      const float4 mean = kLayer ? reinterpret_cast<const float4*>(norm.shared.mean)[quad] : float4{};
      const float rstds[4] = {rstd.x, rstd.y, rstd.z, rstd.w}, means[4] = {mean.x, mean.y, mean.z, mean.w};
      Packed<bf16, 4> y[4];
      uint32_t products = 0, rows[4], columns[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float x[4];
        load_packed<4>(norm.data + (quad * 4 + i) * kSlabCols + threadIdx.x * 4).unpack(x);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          x[j] = kLayer ? fmaf((x[j] - means[i]) * rstds[i], weight[j], bias[j]) : x[j] * rstds[i] * weight[j];
        }
        y[i] = pack<bf16>(x);
        products = M::add_product(products, y[i].words[0], y[i].words[1]);
        y[i].unpack(x);
        rows[i] = encode4_numbers<Code>(x[0], x[1], x[2], x[3], given);
      }
      if (!M::finite(products)) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          rows[i] = with_nans<Code>(rows[i], __byte_perm(y[i].words[0], y[i].words[1], 0x7531));
      }
      if (p.y != nullptr || p.amax != nullptr) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (quad * 4 + i >= live) break;
          if (p.y != nullptr) store_packed(static_cast<bf16*>(p.y) + first + int64_t{quad * 4 + i} * norm.cols, y[i]);
          largest = M::max(largest, M::max(y[i].words[0] & M::kMask, y[i].words[1] & M::kMask));
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i, codes += norm.cols) {
        if (kWhole || quad * 4 + i < live) *reinterpret_cast<uint32_t*>(codes) = rows[i];
      }
      turn_codes(rows, columns);
      __syncwarp();
      *reinterpret_cast<uint4*>(turned(kAdd ? quad + 4 : quad, norm.lane())) = {columns[0], columns[1], columns[2],
                                                                                columns[3]};
    }
  }

  // The slab's transposed codes, once all its quads are in their places; frees the place of x with a barrier and calls
  // `freed` before it stores. A pair of lanes writes a column's sector.
  template <typename Freed>
  __device__ __forceinline__ void store_turned(int r0, bool vector, const Freed& freed) const {
    uint32_t words[8][4];
    const int odd = norm.lane() & 1, pair = norm.lane() >> 1;
    __syncwarp();
#pragma unroll
    for (int s = 0; s < 8; ++s) {
      const int c = s * 16 + pair;
#pragma unroll
      for (int k = 0; k < 4; ++k) words[s][k] = turned(odd * 4 + k, c >> 2)[c & 3];
    }
    __syncthreads();
    freed();
    const int c0 = norm.c0 + static_cast<int>(threadIdx.x >> 5) * 128 + pair, r = r0 + odd * 16;
    uint8_t* to = static_cast<uint8_t*>(p.quantize.codes_t) + int64_t{c0} * norm.rows + r;
    if (r >= norm.rows) return;
#pragma unroll
    for (int s = 0; s < 8; ++s, to += int64_t{16} * norm.rows) {
      if (c0 + s * 16 >= norm.cols) break;
      if (vector) {
        *reinterpret_cast<uint4*>(to) = {words[s][0], words[s][1], words[s][2], words[s][3]};
      } else {
#pragma unroll
        for (int b = 0; b < 16; ++b)
          if (r + b < norm.rows) to[b] = static_cast<uint8_t>(words[s][b / 4] >> (b % 4 * 8));
      }
    }
  }
};

template <typename Code, bool kLayer, bool kAdd>
__global__ void __launch_bounds__(kSlabThreads, 3) norm_slabs_kernel(const NormForward p, int blocks, bool vector) {
  using Norm = SlabNorm<kLayer, kAdd>;
  extern __shared__ __align__(128) unsigned char slab_data[];
  __shared__ SlabShared<kAdd> shared;
  wait_for_previous();
  allow_next();
  const int clusters = static_cast<int>(gridDim.x) / blocks;
  const int slabs = static_cast<int>((p.rows + kSlabRows - 1) / kSlabRows);
  int slab = static_cast<int>(blockIdx.x) / blocks;
  Norm norm{p,
            reinterpret_cast<bf16*>(slab_data),
            shared,
            blocks,
            static_cast<int>(p.rows),
            static_cast<int>(p.cols),
            static_cast<int>(blockIdx.x) % blocks * kSlabCols};
  norm.begin();
  norm.request_x(slab * kSlabRows);
  if constexpr (kAdd) norm.request_addend(slab * kSlabRows);
  SlabCodes<Code, kLayer, kAdd> codes{p, norm};
  codes.begin();
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    if (p.quantize.scale_inv != nullptr) *p.quantize.scale_inv = __fdiv_rn(1.0f, codes.given);
    if (p.quantize.scale_inv_t != nullptr) *p.quantize.scale_inv_t = __fdiv_rn(1.0f, codes.given);
  }
  for (; slab < slabs; slab += clusters) {
    const int r0 = slab * kSlabRows, next_r0 = (slab + clusters) * kSlabRows;
    const bool whole = r0 + kSlabRows <= norm.rows && norm.c0 + kSlabCols <= norm.cols;
    const auto make = [&](int from, int next) {
      norm.wait_for_copies();
      norm.statistics(from, next);
      whole ? codes.template make<true>(from) : codes.template make<false>(from);
    };
    if constexpr (kAdd) {
      constexpr int kRows = Norm::kRows;
      make(r0, r0 + kRows);
      uint4 held[4];
#pragma unroll
      for (int quad = 0; quad < 4; ++quad) held[quad] = *reinterpret_cast<uint4*>(codes.turned(quad + 4, norm.lane()));
      __syncthreads();
      norm.request_x(r0 + kRows);
      make(r0 + kRows, next_r0);
      __syncwarp();
#pragma unroll
      for (int quad = 0; quad < 4; ++quad) *reinterpret_cast<uint4*>(codes.turned(quad, norm.lane())) = held[quad];
    } else {
      make(r0, next_r0);
    }
    codes.store_turned(r0, vector, [&] { norm.request_x(next_r0); });
  }
  wait_for_cluster();
  join_amax({p.amax, p.counters}, Magnitudes<bf16>::bits(codes.largest), shared.amaxes);
}

}  // namespace octet::cuda
