// Gradients of the norms. Blocks stay: each walks rows block, block + blocks, ..., which come through a ring in shared
// memory, copied ahead by the bulk copy engine; sums over rows (dweight, dbias, column sums) stay in registers and are
// written once; a second kernel adds them up in block order: the same bits every run.
//
// With h = (x - mean) rstd (rms_norm: mean 0) and g = dy weight:
//   dx = rstd (g - mean(g) - h mean(g h)), without mean(g) for rms_norm;  dweight = sum dy h;  dbias = sum dy.
// Bound by memory: x, dy (and the addend) read, dx written. Up to kNarrowCols columns: gradient_narrow.cuh.
#pragma once

#include <algorithm>

#include "kernels/cuda/common/bulk_copy.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/quantize_tile.cuh"
#include "kernels/cuda/norm/gradient_narrow.cuh"
#include "kernels/cuda/norm/norm.h"
#include "kernels/cuda/norm/row_access.cuh"

namespace octet::cuda {

template <typename T, bool kLayer, bool kColumnSum, int kGroups>
__global__ void __launch_bounds__(kGroups == 4 ? 512 : 768)
    norm_gradient_kernel(const __grid_constant__ NormGradient p, int stages, bool keeps_weights) {
  // f32 weights [C] where kept, then the ring [stages][x, dy, addend]
  extern __shared__ __align__(128) unsigned char kept[];
  __shared__ float2 scratch[64];
  __shared__ BulkBarrier full[kMaxStages];
  __shared__ uint32_t amaxes[32];
  griddep_wait();
  griddep_launch_dependents();
  PairedBlockReduce team{scratch};
  const int thread = threadIdx.x, threads = blockDim.x, operands = p.addend != nullptr ? 3 : 2;
  const auto row_bytes = static_cast<uint32_t>(p.cols * static_cast<int64_t>(sizeof(T)));
  unsigned char* ring = kept + (keeps_weights ? p.cols * static_cast<int64_t>(sizeof(float)) : 0);
  const auto row_of = [&](int64_t turn) { return blockIdx.x + turn * gridDim.x; };
  const auto place = [&](int stage, int operand) {
    return reinterpret_cast<T*>(ring + int64_t{stage * operands + operand} * row_bytes);
  };
  const auto request = [&](int64_t turn, int stage) {
    const int64_t row = row_of(turn);
    if (row >= p.rows) return;
    full[stage].expect(row_bytes * operands);
    const void* from[3] = {p.x, p.dy, p.addend};
    for (int i = 0; i < operands; ++i) {
      bulk_load(place(stage, i), static_cast<const T*>(from[i]) + row * p.cols, row_bytes, full[stage]);
    }
  };
  if (thread == 0) {
    for (int s = 0; s < stages; ++s) full[s].init();
    publish_barriers();
    for (int s = 0; s < stages; ++s) request(s, s);
  }
  const auto column_of = [&](int g) { return (g * threads + thread) * kGroup; };
  const auto cols = static_cast<int>(p.cols);
  if (keeps_weights) {
    for (int g = 0; g < kGroups && column_of(g) < cols; ++g) {
      float weight[kGroup];
      load_channels(p.weight, p.weight_dtype, column_of(g), weight);
      store(reinterpret_cast<float*>(kept) + column_of(g), weight);
    }
  }
  const auto load_weight = [&](int g, float(&weight)[kGroup]) {
    if (keeps_weights) {
      load(reinterpret_cast<const float*>(kept) + column_of(g), weight);
    } else {
      load_channels(p.weight, p.weight_dtype, column_of(g), weight);
    }
  };
  __syncthreads();

  using M = Magnitudes<T>;
  constexpr int kSums = 1 + kLayer + kColumnSum;
  float sums[kSums][kGroups][kGroup] = {};
  const float scale = 1.0f / static_cast<float>(p.cols);
  uint32_t largest = 0, phase = 0;
  int stage = 0;
  float next_mean = kLayer ? p.mean[blockIdx.x] : 0.0f, next_rstd = p.rstd[blockIdx.x];
  for (int64_t turn = 0; row_of(turn) < p.rows; ++turn) {
    const int64_t row = row_of(turn), after = row_of(turn + 1);
    const float mean = next_mean, rstd = next_rstd;
    if (after < p.rows) next_mean = kLayer ? p.mean[after] : 0.0f, next_rstd = p.rstd[after];
    full[stage].wait(phase);
    const T *x = place(stage, 0), *dy = place(stage, 1), *addend = place(stage, 2);
    float2 dots = {0, 0};  // sums of g h and g
    Packed<T, kGroup> xs[kGroups], dys[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (column_of(g) >= cols) continue;
      xs[g] = load_packed<kGroup>(x + column_of(g)), dys[g] = load_packed<kGroup>(dy + column_of(g));
      float weight[kGroup], h[kGroup], d[kGroup];
      load_weight(g, weight);
      xs[g].unpack(h), dys[g].unpack(d);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        h[i] = (kLayer ? h[i] - mean : h[i]) * rstd;
        sums[0][g][i] = fmaf(d[i], h[i], sums[0][g][i]);
        if constexpr (kLayer) sums[1][g][i] += d[i];
        d[i] *= weight[i];
        dots.x = fmaf(d[i], h[i], dots.x);
        if constexpr (kLayer) dots.y += d[i];
      }
    }
    dots = team.template sum<kLayer>(dots);
    const float mean_gh = dots.x * scale, mean_g = dots.y * scale;
    // x and dy are in registers now; the addend is read from its place only below.
    if (thread == 0 && operands == 2) request(turn + stages, stage);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (column_of(g) >= cols) continue;
      const int64_t at = row * p.cols + column_of(g);
      float weight[kGroup], h[kGroup], out[kGroup];
      load_weight(g, weight);
      xs[g].unpack(h), dys[g].unpack(out);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        h[i] = (kLayer ? h[i] - mean : h[i]) * rstd, out[i] *= weight[i];
        out[i] = rstd * fmaf(-h[i], mean_gh, kLayer ? out[i] - mean_g : out[i]);
      }
      const Packed<T, kGroup> dx = pack<T>(out);
      if (p.dx != nullptr) store_packed(static_cast<T*>(p.dx) + at, dx);
      if (operands == 2) continue;
      const Packed<T, kGroup> sum = add_packed(dx, load_packed<kGroup>(addend + column_of(g)));
      if (p.sum != nullptr) store_packed(static_cast<T*>(p.sum) + at, sum);
#pragma unroll
      for (uint32_t word : sum.words) largest = M::max(largest, word & M::kMask);
      if constexpr (kColumnSum) {
        sum.unpack(out);
#pragma unroll
        for (int i = 0; i < kGroup; ++i) sums[kSums - 1][g][i] += out[i];
      }
    }
    if (operands == 3) {
      __syncthreads();
      if (thread == 0) request(turn + stages, stage);
    }
    if (++stage == stages) stage = 0, phase ^= 1;
  }
  if (p.amax != nullptr) {
    largest = block_max(M::bits(largest), amaxes);
    if (thread == 0) p.block_amaxes[blockIdx.x] = largest;
  }
  // partials [kSums, blocks, C]
#pragma unroll
  for (int which = 0; which < kSums; ++which) {
    float* to = p.partials + (int64_t{which} * gridDim.x + blockIdx.x) * p.cols;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (column_of(g) < cols) store(to + column_of(g), sums[which][g]);
    }
  }
}

template <typename T, bool kLayer, bool kColumnSum>
void launch_norm_gradient_rows(const NormGradient& call, cudaStream_t stream) {
  if (call.cols <= kNarrowCols) return launch_norm_gradient_narrow<T, kLayer, kColumnSum>(call, stream);
  const int groups = static_cast<int>(call.cols / kGroup);
  const int64_t stage = (call.addend != nullptr ? 3 : 2) * call.cols * static_cast<int64_t>(sizeof(T));
  // Weights stay in shared memory where two stages fit beside them: the level 1 cache has no room for many.
  const int64_t room = (int64_t{216} << 10) / norm_gradient_blocks_per_sm(call.cols), weights = call.cols * 4;
  const bool keeps_weights = weights + 2 * stage <= room;
  const auto stages =
      static_cast<int>(std::clamp<int64_t>((room - (keeps_weights ? weights : 0)) / stage, 1, kMaxStages));
  const auto run = [&](auto kernel, int each) {
    const auto shared = static_cast<size_t>(stages * stage + (keeps_weights ? weights : 0));
    allow_shared(kernel, shared);
    const auto threads = static_cast<unsigned>(((groups + each - 1) / each + 31) / 32 * 32);
    launch_overlapped(kernel, {static_cast<unsigned>(call.blocks), threads, shared}, stream, call, stages,
                      keeps_weights);
  };
  if (groups <= 1536) {
    run(norm_gradient_kernel<T, kLayer, kColumnSum, 2>, 2);
  } else {
    run(norm_gradient_kernel<T, kLayer, kColumnSum, 4>, 4);
  }
}

}  // namespace octet::cuda
