// The join of an item: over the warps of a block, then over the blocks that share it (split-K over the context).
//
// A team (the block where its warps share heads, else the warp of a head) stores its piece of a shared item and counts
// its arrival; the last to arrive joins the pieces in the order of the blocks, so that the result does not depend on
// which one it is. More than kFan pieces are joined kFan neighbours at a time first. Counts wrap to 0 with the last
// arrival: they are cleared once, when they are allocated.
#pragma once

#include "kernels/cuda/common/arrivals.cuh"
#include "kernels/cuda/inference/decode_columns.cuh"

namespace octet::cuda::decode {

struct Team {
  bool wide;        // the block
  int head, heads;  // of the key heads of the item's group

  __device__ int first_warp() const { return wide ? static_cast<int>(threadIdx.x) / 32 : 0; }
  __device__ int warps() const { return wide ? kWarps : 1; }
};

// The blocks that have a part in an item.
struct Share {
  int first, count;
};
__device__ __forceinline__ Share share_of(const Run& run, int begin, int units) {  // of an item's units in the line
  const int first = begin >= run.begin ? static_cast<int>(blockIdx.x) : begin / run.each;
  const int last =
      begin + units <= run.begin + run.count ? static_cast<int>(blockIdx.x) : (begin + units - 1) / run.each;
  return {first, last - first + 1};
}

// True in all threads of the last of `expected` teams, which then see what the others wrote before.
__device__ __forceinline__ bool arrives_last(const Team& team, uint32_t* count, int expected) {
  bool last = false;
  if (team.wide) {
    __syncthreads();
  } else {
    __syncwarp();
  }
  if (threadIdx.x % (team.wide ? kThreads : 32) == 0)
    last = octet::cuda::arrives_last(count, static_cast<uint32_t>(expected));
  if (team.wide) return __syncthreads_or(last ? 1 : 0) != 0;
  last = __any_sync(kWholeWarp, last ? 1 : 0) != 0;
  __syncwarp();
  return last;
}

// Weight of a part in a whole whose largest score is `top`; 0 for parts without keys.
__device__ __forceinline__ float part_weight(float anchor, float top) {
  return anchor == -INFINITY ? 0.0f : exp2_fast(anchor - top);
}

// Four elements of a row of the result.
__device__ __forceinline__ void store_result(const PagedProblem& p, const PagedOperands& x, const Item& item, int head,
                                             int r, int d, float by, float (&value)[4]) {
  unroll<4>([&](int e) { value[e] *= by; });
  store<4>(static_cast<bf16*>(x.out.data) + item.rows.element(p, item.kv_head + head, r) + d, value);
}

// The block's warps share the item's heads: their sums, [cut.rows, kDim] of warp w at w * stride, and parts become the
// result, or the block's piece when it is not the whole; that begins at row `piece` of the pieces.
template <int kDim, int kRows>
__device__ __forceinline__ void join_warps(const PagedProblem& p, const PagedOperands& x, const Cut& cut,
                                           const Pieces& pieces, const Item& item, bool whole, float v_scale,
                                           const Partial (&parts)[kWarps][kRows], const float* sums, int stride,
                                           int piece) {
  constexpr int kLanes = kDim / 4;  // of a row
  const int heads = cut.head_warps(), rows = item.rows.count;
  for (int i = static_cast<int>(threadIdx.x); i < heads * rows * kLanes; i += kThreads) {
    const int d = i % kLanes * 4, h = i / kLanes >= rows ? 1 : 0, r = i / kLanes - h * rows;
    if (d >= p.dim) continue;
    float top = -INFINITY, sum = 0, value[4] = {};
    for (int w = h; w < kWarps; w += heads) top = fmaxf(top, parts[w][r].anchor);
    for (int w = h; w < kWarps; w += heads) {
      const float weight = part_weight(parts[w][r].anchor, top);
      float own[4];
      load<4>(sums + w * stride + r * kDim + shared_place(r, d), own);
      sum = fmaf(weight, parts[w][r].sum, sum);
      unroll<4>([&](int e) { value[e] = fmaf(weight, own[e], value[e]); });
    }
    if (whole) {
      store_result(p, x, item, h, r, d, v_scale / sum, value);
    } else {
      const int at = piece + h * cut.rows + r;
      store<4>(pieces.sums + static_cast<int64_t>(at) * p.dim + d, value);
      if (d == 0) pieces.parts[at] = {top, sum};
    }
  }
}

// After a team has left its piece of an item.
template <int kDim>
__device__ __forceinline__ void join_blocks(const PagedProblem& p, const PagedOperands& x, const Cut& cut,
                                            const Pieces& pieces, const Item& item, const Share& share,
                                            const Team& team, float v_scale) {
  constexpr int kVectors = kDim > 128 ? 2 : 1, kAtOnce = 8 / kVectors;
  const int lane = static_cast<int>(threadIdx.x) % 32, rows = item.rows.count;
  // Pieces left are those of blocks first + (k << shift); those that are joined with this team's are start + n.
  for (int level = 0, shift = 0;; ++level, shift += kFanShift) {
    const int left = ((share.count - 1) >> shift) + 1;
    const int start = (static_cast<int>(blockIdx.x) - share.first) >> (shift + kFanShift) << kFanShift;
    const int count = min(kFan, left - start);
    const auto piece_of = [&](int n) { return 2 * (share.first + ((start + n) << shift)) + (start + n == 0 ? 1 : 0); };
    if (!arrives_last(team, pieces.arrivals + (piece_of(0) * kWarps + team.head) * 2 + level, count)) return;
    const bool ends = left <= kFan;
    for (int i = team.first_warp(); i < team.heads * rows; i += team.warps()) {
      const int head = team.head + (i >= rows ? 1 : 0), r = i >= rows ? i - rows : i;
      const auto row_of = [&](int n) { return ((piece_of(n) << cut.head_shift) + head) * cut.rows + r; };
      float weight = 0, top = 0, sum = 0, value[kVectors][4] = {};
#pragma unroll 1
      for (int from = 0; from < count; from += kAtOnce) {
        float4 own[kAtOnce][kVectors];  // on their way while the weights are made
        unroll<kAtOnce>([&](int n) {
          const auto row = static_cast<uint32_t>(row_of(from + n) * p.dim);
          unroll<kVectors>([&](int v) {
            const int d = 128 * v + 4 * lane;
            own[n][v] = {};
            if (from + n < count && d < p.dim)
              own[n][v] = __ldcg(reinterpret_cast<const float4*>(pieces.sums + row + d));
          });
        });
        if (from == 0) {  // lane n: of piece n
          float2 part{-INFINITY, 0.0f};
          if (lane < count) part = __ldcg(reinterpret_cast<const float2*>(pieces.parts) + row_of(lane));
          top = warp_reduce<Max>(fmaxf(part.x, Max::kIdentity));
          weight = part_weight(part.x, top);
          sum = warp_reduce<Sum>(weight * part.y);
        }
        unroll<kAtOnce>([&](int n) {
          const float by = __shfl_sync(kWholeWarp, weight, from + n);
          unroll<kVectors>([&](int v) {
            value[v][0] = fmaf(by, own[n][v].x, value[v][0]), value[v][1] = fmaf(by, own[n][v].y, value[v][1]);
            value[v][2] = fmaf(by, own[n][v].z, value[v][2]), value[v][3] = fmaf(by, own[n][v].w, value[v][3]);
          });
        });
      }
      unroll<kVectors>([&](int v) {
        const int d = 128 * v + 4 * lane;
        if (d >= p.dim) return;
        if (ends) {
          store_result(p, x, item, head, r, d, v_scale / sum, value[v]);
        } else {
          store<4>(pieces.sums + static_cast<int64_t>(row_of(0)) * p.dim + d, value[v]);
        }
      });
      if (!ends && lane == 0) pieces.parts[row_of(0)] = {top, sum};
    }
    if (ends) return;
  }
}

}  // namespace octet::cuda::decode
