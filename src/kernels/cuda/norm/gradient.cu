// Gradients of the norms: persistent blocks. Block b walks over rows b, b + blocks, ..., which come through a ring in
// shared memory ahead of their use; sums over rows (dweight, dbias, column sums) stay in registers and are written
// once; a second kernel adds them up in block order: the same bits every run.
//
// With h = (x - mean) rstd (rms_norm: mean 0) and g = dy weight:
//   dx = rstd (g - mean(g) - h mean(g h)), without mean(g) for rms_norm;  dweight = sum dy h;  dbias = sum dy.
// Bound by memory: x, dy (and the addend) read, dx written. Up to kMaxTeamCols columns: gradient_narrow.cuh.
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/quantize_tile.cuh"
#include "kernels/cuda/norm/gradient_narrow.cuh"
#include "kernels/cuda/norm/norm.h"
#include "kernels/cuda/norm/row_access.cuh"
#include "kernels/cuda/norm/row_ring.cuh"

namespace octet::cuda {
namespace {

template <typename T, bool kLayer, bool kColumnSum, int kGroups>
__global__ void __launch_bounds__(kGroups == 4 ? 512 : 768)
    norm_gradient_row_persistent_kernel(const __grid_constant__ NormGradient p, int stages, bool shared_weights) {
  // weights [C] f32 where they lie in shared memory, then the ring [stages][x, dy, addend][C]
  extern __shared__ __align__(128) unsigned char kept[];
  __shared__ float2 scratch[64];
  __shared__ Mbarrier full[kMaxStages];
  __shared__ uint32_t amaxes[32];
  griddep_wait();
  griddep_launch_dependents();
  PairedBlockReduce team{scratch};
  const int thread = threadIdx.x, threads = blockDim.x, operands = p.addend != nullptr ? 3 : 2;
  const auto row_bytes = static_cast<uint32_t>(p.cols * static_cast<int64_t>(sizeof(T)));
  RowRing ring{kept + (shared_weights ? p.cols * static_cast<int64_t>(sizeof(float)) : 0), full, stages, operands,
               row_bytes};
  const auto row_of = [&](int64_t turn) { return blockIdx.x + turn * gridDim.x; };
  const auto request = [&](int64_t turn, int stage) {
    const int64_t row = row_of(turn);
    if (row < p.rows) ring.request<T>(stage, row * p.cols, row_bytes, p.x, p.dy, p.addend);
  };
  if (thread == 0) ring.begin([&](int s) { request(s, s); });
  const auto column_of = [&](int g) { return (g * threads + thread) * kGroup; };
  const auto cols = static_cast<int>(p.cols);
  if (shared_weights) {
    for (int g = 0; g < kGroups && column_of(g) < cols; ++g) {
      float weight[kGroup];
      load_channels(p.weight, p.weight_dtype, column_of(g), weight);
      store(reinterpret_cast<float*>(kept) + column_of(g), weight);
    }
  }
  const auto load_weight = [&](int g, float(&weight)[kGroup]) {
    if (shared_weights) {
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
  uint32_t largest = 0;
  float next_mean = kLayer ? p.mean[blockIdx.x] : 0.0f, next_rstd = p.rstd[blockIdx.x];
  for (int64_t turn = 0; row_of(turn) < p.rows; ++turn) {
    const int64_t row = row_of(turn), after = row_of(turn + 1);
    const float mean = next_mean, rstd = next_rstd;
    if (after < p.rows) next_mean = kLayer ? p.mean[after] : 0.0f, next_rstd = p.rstd[after];
    ring.wait();
    const auto stage = [&](int operand) { return reinterpret_cast<const T*>(ring.at(ring.stage, operand)); };
    const T *x = stage(0), *dy = stage(1), *addend = stage(2);
    float2 dots = {0, 0};  // sums of g h and g
    Packed<T, kGroup> xs[kGroups], dys[kGroups];
    unroll<kGroups>([&](int g) {
      if (column_of(g) >= cols) return;
      xs[g] = load_packed<kGroup>(x + column_of(g)), dys[g] = load_packed<kGroup>(dy + column_of(g));
      float weight[kGroup], h[kGroup], d[kGroup];
      load_weight(g, weight);
      xs[g].unpack(h), dys[g].unpack(d);
      unroll<kGroup>([&](int i) {
        h[i] = (kLayer ? h[i] - mean : h[i]) * rstd;
        sums[0][g][i] = fmaf(d[i], h[i], sums[0][g][i]);
        if constexpr (kLayer) sums[1][g][i] += d[i];
        d[i] *= weight[i];
        dots.x = fmaf(d[i], h[i], dots.x);
        if constexpr (kLayer) dots.y += d[i];
      });
    });
    dots = team.template sum<kLayer>(dots);
    const float mean_gh = dots.x * scale, mean_g = dots.y * scale;
    // x and dy are in registers now; the addend is read from its stage only below.
    if (thread == 0 && operands == 2) request(turn + stages, ring.stage);
    unroll<kGroups>([&](int g) {
      if (column_of(g) >= cols) return;
      const int64_t at = row * p.cols + column_of(g);
      float weight[kGroup], h[kGroup], out[kGroup];
      load_weight(g, weight);
      xs[g].unpack(h), dys[g].unpack(out);
      unroll<kGroup>([&](int i) {
        h[i] = (kLayer ? h[i] - mean : h[i]) * rstd, out[i] *= weight[i];
        out[i] = rstd * fmaf(-h[i], mean_gh, kLayer ? out[i] - mean_g : out[i]);
      });
      const Packed<T, kGroup> dx = pack<T>(out);
      if (p.dx != nullptr) store_packed(static_cast<T*>(p.dx) + at, dx);
      if (operands == 2) return;
      const Packed<T, kGroup> sum = add_packed(dx, load_packed<kGroup>(addend + column_of(g)));
      if (p.sum != nullptr) store_packed(static_cast<T*>(p.sum) + at, sum);
#pragma unroll
      for (uint32_t word : sum.words) largest = M::max(largest, word & M::kMask);
      if constexpr (kColumnSum) {
        sum.unpack(out);
        unroll<kGroup>([&](int i) { sums[kSums - 1][g][i] += out[i]; });
      }
    });
    if (operands == 3) {
      __syncthreads();
      if (thread == 0) request(turn + stages, ring.stage);
    }
    ring.advance();
  }
  if (p.amax != nullptr) {
    largest = block_max(M::bits(largest), amaxes);
    if (thread == 0) p.block_amaxes[blockIdx.x] = largest;
  }
  // partials [kSums, blocks, C]
  unroll<kSums>([&](int which) {
    float* to = p.partials + (int64_t{which} * gridDim.x + blockIdx.x) * p.cols;
    unroll<kGroups>([&](int g) {
      if (column_of(g) < cols) store(to + column_of(g), sums[which][g]);
    });
  });
}

template <typename T, bool kLayer, bool kColumnSum>
void launch_norm_gradient_plan(const NormGradient& call, const NormGradientPlan& plan, cudaStream_t stream) {
  const auto run = [&](auto kernel, auto... arguments) {
    const Grid grid{static_cast<unsigned>(plan.blocks), static_cast<unsigned>(plan.threads),
                    static_cast<size_t>(plan.shared)};
    launch_overlapped(kernel, grid, stream, call, arguments...);
  };
  if (plan.kernel == NormGradientKernel::kRowPersistent) {
    return run(plan.groups == 2 ? norm_gradient_row_persistent_kernel<T, kLayer, kColumnSum, 2>
                                : norm_gradient_row_persistent_kernel<T, kLayer, kColumnSum, 4>,
               plan.stages, plan.shared_weights);
  }
  const auto run_teams = [&]<bool kAdds>() {
    run(plan.groups == 1 ? norm_gradient_teams_kernel<T, kLayer, kColumnSum, kAdds, 1>
                         : norm_gradient_teams_kernel<T, kLayer, kColumnSum, kAdds, 2>,
        plan.teams, plan.stages);
  };
  if constexpr (!kColumnSum) {  // which are those of dx + addend
    if (call.addend == nullptr) return run_teams.template operator()<false>();
  }
  run_teams.template operator()<true>();
}

template <typename T>
void launch_norm_gradient_of(const NormGradient& call, const NormGradientPlan& plan, cudaStream_t stream) {
  if (call.column_sum != nullptr) {
    call.layer ? launch_norm_gradient_plan<T, true, true>(call, plan, stream)
               : launch_norm_gradient_plan<T, false, true>(call, plan, stream);
  } else {
    call.layer ? launch_norm_gradient_plan<T, true, false>(call, plan, stream)
               : launch_norm_gradient_plan<T, false, false>(call, plan, stream);
  }
}

// --- any number of columns, and the sum over the blocks' partial sums
constexpr int kAddCols = 32, kAddRows = 8;

// Where the sums over the blocks' shares go, in the order of the partials, and their amax; null: not wanted.
struct GradientSums {
  float *of[3], *amax;
  const uint32_t* block_amaxes;
};

// to.of[y] [C] = the sum over partials [y][blocks, C], in one order; the amax by the blocks beyond the last column.
__global__ void __launch_bounds__(kAddCols* kAddRows)
    add_partials_kernel(const float* partials, int blocks, int64_t cols, const __grid_constant__ GradientSums to) {
  __shared__ float part[kAddRows][kAddCols];
  griddep_wait();
  griddep_launch_dependents();
  if (blockIdx.x * int64_t{kAddCols} >= cols) {
    if (blockIdx.y != 0) return;
    const auto thread = static_cast<int>(threadIdx.y * kAddCols + threadIdx.x);
    uint32_t most = 0;
    for (int b = thread; b < blocks; b += kAddCols * kAddRows) most = max(most, to.block_amaxes[b]);
    most = warp_max(most);
    if (threadIdx.x == 0) part[0][threadIdx.y] = __uint_as_float(most);
    __syncthreads();
    if (threadIdx.y != 0) return;
    most = warp_max(__float_as_uint(part[0][threadIdx.x % kAddRows]));
    if (threadIdx.x == 0) *to.amax = __uint_as_float(most);
    return;
  }
  if (to.of[blockIdx.y] == nullptr) return;
  partials += int64_t{blockIdx.y} * blocks * cols;
  const int64_t column = int64_t{blockIdx.x} * kAddCols + threadIdx.x;
  float sum = 0;
  if (column < cols) {
#pragma unroll 8
    for (int b = threadIdx.y; b < blocks; b += kAddRows) sum += partials[int64_t{b} * cols + column];
  }
  part[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= cols) return;
#pragma unroll
  for (int r = 1; r < kAddRows; ++r) sum += part[r][threadIdx.x];
  to.of[blockIdx.y][column] = sum;
}

// A block a row; element by element.
template <typename T>
__global__ void norm_gradient_elementwise_dx_kernel(const NormGradient p) {
  __shared__ float scratch[kTeamScratch];
  BlockReduce<false> team{scratch};
  const int64_t row = blockIdx.x;
  const T *x = static_cast<const T*>(p.x) + row * p.cols, *dy = static_cast<const T*>(p.dy) + row * p.cols;
  T* dx = static_cast<T*>(p.dx) + row * p.cols;
  const float mean = p.layer ? p.mean[row] : 0.0f, rstd = p.rstd[row], scale = 1.0f / static_cast<float>(p.cols);
  float sum_g = 0, sum_gh = 0;
  for (int64_t c = threadIdx.x; c < p.cols; c += blockDim.x) {
    const float g = to_float(dy[c]) * load_channel(p.weight, p.weight_dtype, c);
    sum_g += g;
    sum_gh = fmaf(g, (to_float(x[c]) - mean) * rstd, sum_gh);
  }
  const float mean_g = p.layer ? team.sum(sum_g) * scale : 0.0f, mean_gh = team.sum(sum_gh) * scale;
  for (int64_t c = threadIdx.x; c < p.cols; c += blockDim.x) {
    const float g = to_float(dy[c]) * load_channel(p.weight, p.weight_dtype, c) - mean_g;
    dx[c] = from_float<T>(rstd * fmaf(-(to_float(x[c]) - mean) * rstd, mean_gh, g));
  }
}

// A thread a column; block b walks rows b, b + blocks, ...: partials [2, blocks, C] of dweight and dbias.
template <typename T>
__global__ void norm_gradient_elementwise_sums_kernel(const NormGradient p) {
  const int64_t column = int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (column >= p.cols) return;
  float dweight = 0, dbias = 0;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const float mean = p.layer ? p.mean[row] : 0.0f;
    const float d = to_float(static_cast<const T*>(p.dy)[row * p.cols + column]);
    dweight = fmaf(d, (to_float(static_cast<const T*>(p.x)[row * p.cols + column]) - mean) * p.rstd[row], dweight);
    dbias += d;
  }
  p.partials[int64_t{blockIdx.x} * p.cols + column] = dweight;
  if (p.layer) p.partials[(int64_t{gridDim.x} + blockIdx.x) * p.cols + column] = dbias;
}

template <typename T>
void launch_elementwise(const NormGradient& call, const NormGradientPlan& plan, cudaStream_t stream) {
  if (call.dx != nullptr) {
    norm_gradient_elementwise_dx_kernel<T><<<static_cast<unsigned>(call.rows), plan.threads, 0, stream>>>(call);
  }
  const dim3 grid(static_cast<unsigned>(plan.blocks), static_cast<unsigned>((call.cols + 127) / 128));
  norm_gradient_elementwise_sums_kernel<T><<<grid, 128, 0, stream>>>(call);
}

}  // namespace

int64_t norm_gradient_scratch(const NormGradientPlan& plan, int64_t cols, int sums) {
  return plan.blocks * (int64_t{sums} * cols + 1) * int64_t{sizeof(float)};
}

void launch_norm_gradient(const NormGradient& given, const NormGradientPlan& plan, cudaStream_t stream) {
  NormGradient call = given;
  const int sums = 1 + call.layer + (call.column_sum != nullptr ? 1 : 0);
  call.block_amaxes = reinterpret_cast<uint32_t*>(call.partials + int64_t{sums} * plan.blocks * call.cols);
  with_f32_or_bf16(call.dtype, [&]<typename T>(T) {
    plan.kernel == NormGradientKernel::kElementwise ? launch_elementwise<T>(call, plan, stream)
                                                    : launch_norm_gradient_of<T>(call, plan, stream);
  });
  GradientSums to{
      {call.dweight, call.layer ? call.dbias : call.column_sum, call.column_sum}, call.amax, call.block_amaxes};
  const auto tiles = static_cast<unsigned>((call.cols + kAddCols - 1) / kAddCols);
  const dim3 grid(tiles + (call.amax != nullptr ? 1 : 0), static_cast<unsigned>(sums));
  launch_overlapped(add_partials_kernel, {grid, dim3(kAddCols, kAddRows)}, stream, call.partials, plan.blocks,
                    call.cols, to);
}

}  // namespace octet::cuda
