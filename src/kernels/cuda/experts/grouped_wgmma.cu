// Grouped products on Hopper's tensor cores: x [R, K] by the weights of each row's expert [N, K], bf16 or e4m3 codes.
//
// Persistent CTAs, one per SM, go through (expert, tile) pairs that each lists for itself from the offsets on the
// device: a tile is 128 rows of one expert by 128 or 256 columns. Two warp groups multiply, 64 rows each; a third
// copies 128 bytes of K of rows and columns into a ring of stages. Tiles of one expert and column block follow each
// other, so that its weights are read from memory once. Rows beyond an expert's last are zeros that are never stored.
#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/operand.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/inference/wgmma.cuh"

namespace octet::cuda {
namespace {

constexpr int kGroupThreads = 128, kThreads = 3 * kGroupThreads;
constexpr int kTileRows = 128, kPanelBytes = 128 * 128;  // 128 rows of 128 bytes

template <int kPanels>
inline constexpr int kStageBytes = (1 + kPanels) * kPanelBytes;
template <int kPanels>
inline constexpr int kStages = kPanels == 1 ? 6 : 4;

struct Ring {
  Mbarrier full[6], empty[6];
};

// d (+)= 32 codes of 64 rows by 32 codes of 128 rows.
__device__ __forceinline__ void multiply_panels(e4m3, float (&d)[64], uint64_t a, uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%"
      "30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%"
      "58,%59,%60,%61,%62,%63"
      "}, %64, %65, accumulate, 1, 1;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
        "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
        "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "l"(a), "l"(b), "r"(accumulate));
}
__device__ __forceinline__ void multiply_panels(bf16, float (&d)[64], uint64_t a, uint64_t b, int accumulate) {
  wgmma::multiply_rows<bf16>(d, a, b, accumulate);
}

// Tile t of all: rows [row, end) of the expert, at most 128 of them, columns from `column` on.
struct Tile {
  int expert;
  int64_t row, end, column;

  // before[e]: row tiles of the experts in front of e.
  __device__ Tile(const GroupedProduct& p, const int* before, int t, int column_tiles, int width) {
    int low = 0, high = p.experts;  // the expert is in [low, high)
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      before[middle]* column_tiles <= t ? low = middle : high = middle;
    }
    expert = low;
    const int of_expert = t - before[expert] * column_tiles, row_tiles = before[expert + 1] - before[expert];
    row = p.offsets[expert] + int64_t{of_expert % row_tiles} * kTileRows;
    end = p.offsets[expert + 1];
    column = int64_t{of_expert / row_tiles} * width;
  }
};

// By one warp.
__device__ __forceinline__ void count_row_tiles(const GroupedProduct& p, int* before, int lane) {
  int listed = 0;
  for (int base = 0; base < p.experts; base += 32) {
    const int e = base + lane;
    const int tiles = e < p.experts ? (p.offsets[e + 1] - p.offsets[e] + kTileRows - 1) / kTileRows : 0;
    int until = tiles;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes <<= 1) {
      const int other = __shfl_up_sync(kWholeWarp, until, lanes);
      if (lane >= lanes) until += other;
    }
    if (e < p.experts) before[e] = listed + until - tiles;
    listed += __shfl_sync(kWholeWarp, until, 31);
  }
  if (lane == 0) before[p.experts] = listed;
}

// The copying warp group: eight threads a row, 16 bytes each, 16 rows at once.
template <typename T, int kPanels>
__device__ __forceinline__ void copy_tile(const GroupedProduct& p, const Tile& tile, int steps, uint32_t& turn,
                                          uint32_t stages, Ring& ring) {
  const int i = static_cast<int>(threadIdx.x) % kGroupThreads, piece = i % 8, own = i / 8;
  const int64_t row_bytes = p.k * static_cast<int64_t>(sizeof(T));
  const char* x = static_cast<const char*>(p.x) + tile.row * row_bytes;
  const char* w = static_cast<const char*>(p.w) + (tile.expert * p.n + tile.column) * row_bytes;
  const auto rows = static_cast<int>(tile.end - tile.row < kTileRows ? tile.end - tile.row : kTileRows);
  const auto columns = static_cast<int>(p.n - tile.column < 128 * kPanels ? p.n - tile.column : 128 * kPanels);
  for (int step = 0; step < steps; ++step, ++turn) {
    const uint32_t stage = turn % kStages<kPanels>, to = stages + stage * kStageBytes<kPanels>;
    const int64_t at = int64_t{step} * 128 + piece * 16;
    const bool within = at < row_bytes;
    ring.empty[stage].wait(turn / kStages<kPanels> % 2 ^ 1);
#pragma unroll 8
    for (int row = own; row < kTileRows; row += 16) {
      const bool exists = within && row < rows;
      mma::copy16_async(to + wgmma::panel_offset(row, piece), exists ? x + row * row_bytes + at : x, exists);
    }
#pragma unroll 8
    for (int row = own; row < 128 * kPanels; row += 16) {
      const bool exists = within && row < columns;
      mma::copy16_async(to + kPanelBytes + wgmma::panel_offset(row, piece), exists ? w + row * row_bytes + at : w,
                        exists);
    }
    ring.full[stage].arrive_after_copies();
  }
}

// One of the multiplying warp groups: rows 64 group .. 64 group + 63 of the tile.
template <typename T, int kPanels>
__device__ __forceinline__ void multiply_tile(const GroupedProduct& p, const Tile& tile, int steps, uint32_t& turn,
                                              uint32_t stages, int group, Ring& ring) {
  const int i = static_cast<int>(threadIdx.x) % kGroupThreads, lane = i % 32, warp = i / 32;
  float sums[kPanels][64];
  const auto release = [&](uint32_t of) {
    if (lane == 0) ring.empty[of % kStages<kPanels>].arrive();
  };
  for (int step = 0; step < steps; ++step, ++turn) {
    const uint32_t stage = turn % kStages<kPanels>, at = stages + stage * kStageBytes<kPanels>;
    ring.full[stage].wait(turn / kStages<kPanels> % 2);
    wgmma::fence_shared();
    unroll<kPanels>([&](int n) { wgmma::pin(sums[n]); });
    wgmma::fence();
    unroll<4, kPanels>([&](int k, int n) {
      multiply_panels(T{}, sums[n], wgmma::descriptor(at + group * 64 * 128 + k * 32),
                      wgmma::descriptor(at + (1 + n) * kPanelBytes + k * 32), step > 0 || k > 0 ? 1 : 0);
    });
    wgmma::commit();
    wgmma::wait<1>();
    if (step > 0) release(turn - 1);
  }
  wgmma::wait<0>();
  unroll<kPanels>([&](int n) { wgmma::pin(sums[n]); });
  release(turn - 1);

  const float of_tensors = (p.x_scale != nullptr && !p.x_scale_rows ? *p.x_scale : 1.0f) *
                           (p.w_scale != nullptr && !p.w_scale_rows ? *p.w_scale : 1.0f);
  unroll<2>([&](int half) {
    const int64_t row = tile.row + group * 64 + warp * 16 + half * 8 + lane / 4;
    if (row >= tile.end) return;
    const float of_row = p.x_scale_rows ? of_tensors * p.x_scale[row] : of_tensors;
    unroll<kPanels, 16>([&](int n, int eight) {
      const int64_t column = tile.column + n * 128 + eight * 8 + lane % 4 * 2;
      unroll<2>([&](int c) {
        if (column + c >= p.n) return;
        const float of_column = p.w_scale_rows ? p.w_scale[tile.expert * p.n + column + c] : 1.0f;
        store(p.out, row * p.n + column + c, sums[n][eight * 4 + half * 2 + c] * of_row * of_column);
      });
    });
  });
}

template <typename T, int kPanels>
__global__ void __launch_bounds__(kThreads, 1) grouped_wgmma_kernel(GroupedProduct p) {
  extern __shared__ __align__(1024) uint8_t shared_stages[];
  __shared__ Ring ring;
  __shared__ int before[kGroupedWgmmaExperts + 1];
  if (threadIdx.x < 32) count_row_tiles(p, before, static_cast<int>(threadIdx.x));
  if (threadIdx.x == 32) {
    unroll<kStages<kPanels>>([&](int stage) {
      ring.full[stage].init(kGroupThreads);
      ring.empty[stage].init(8);  // warps that multiply
    });
    publish_barriers();
  }
  __syncthreads();
  constexpr int kWidth = 128 * kPanels;
  const int column_tiles = static_cast<int>((p.n + kWidth - 1) / kWidth), tiles = before[p.experts] * column_tiles;
  const int steps = static_cast<int>((p.k * static_cast<int64_t>(sizeof(T)) + 127) / 128);
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const uint32_t stages = shared_address(shared_stages);
  uint32_t turn = 0;  // steps of all tiles so far: stages and phases of the barriers go on
  for (int t = static_cast<int>(blockIdx.x); t < tiles; t += static_cast<int>(gridDim.x)) {
    const Tile tile(p, before, t, column_tiles, kWidth);
    if (group == 2) {
      copy_tile<T, kPanels>(p, tile, steps, turn, stages, ring);
    } else {
      multiply_tile<T, kPanels>(p, tile, steps, turn, stages, group, ring);
    }
  }
  if (group == 2) mma::wait_copies<0>();
}

template <typename T, int kPanels>
void launch(const GroupedProduct& product, int sm_count, cudaStream_t stream) {
  constexpr int kBytes = kStages<kPanels> * kStageBytes<kPanels>;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(grouped_wgmma_kernel<T, kPanels>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  static_cast<void>(allowed);  // a refusal shows as a failed launch
  grouped_wgmma_kernel<T, kPanels><<<static_cast<unsigned>(sm_count), kThreads, kBytes, stream>>>(product);
}

}  // namespace

void launch_grouped_wgmma(const GroupedProduct& product, int sm_count, cudaStream_t stream) {
  // Wide tiles read x half as often, where there are rows enough to fill tiles with.
  const bool wide = product.n % 256 == 0 && product.rows >= 64 * product.experts;
  if (product.dtype == DType::kBF16) {
    wide ? launch<bf16, 2>(product, sm_count, stream) : launch<bf16, 1>(product, sm_count, stream);
  } else {
    wide ? launch<e4m3, 2>(product, sm_count, stream) : launch<e4m3, 1>(product, sm_count, stream);
  }
}

}  // namespace octet::cuda
