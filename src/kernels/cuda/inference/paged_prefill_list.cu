// Tensor-core prefill: the list of its work, and which kernel runs over it.
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/inference/paged_prefill_wgmma.cuh"

namespace octet::cuda {
namespace prefill {
namespace {

constexpr int kListThreads = 1024;

// One block. The last queries of a sequence see most keys: their tiles come first.
__global__ void __launch_bounds__(kListThreads)
    list_prefill_tiles_kernel(PagedProblem p, PagedOperands x, PrefillWork* list) {
  __shared__ int warp_sums[32];
  griddep_wait();
  griddep_launch_dependents();
  const int i = static_cast<int>(threadIdx.x), lane = i % 32, warp = i / 32;
  int listed = 0;
  for (int base = 0; base < p.sequences; base += kListThreads) {
    const int s = base + i;
    const PagedSequence sequence = s < p.sequences ? PagedSequence::of(p, x, s) : PagedSequence{};
    const int tiles = sequence.queries > kDecodeQueries ? (sequence.queries + kTileQueries - 1) / kTileQueries : 0;
    int until = tiles;  // tiles up to and with this thread's sequence
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes <<= 1) {
      const int before = __shfl_up_sync(kWholeWarp, until, lanes);
      if (lane >= lanes) until += before;
    }
    if (lane == 31) warp_sums[warp] = until;
    __syncthreads();
    int all = 0;
    for (int w = 0; w < 32; ++w) {
      if (w < warp) until += warp_sums[w];
      all += warp_sums[w];
    }
    for (int n = 0; n < tiles; ++n) {
      list->tile[listed + until - tiles + n] = {s, (tiles - 1 - n) * kTileQueries, sequence.begin, sequence.queries,
                                                sequence.length};
    }
    listed += all;
    __syncthreads();
  }
  if (i == 0) list->tiles = listed, list->taken = 0;
}

}  // namespace
}  // namespace prefill

int64_t prefill_scratch_bytes(const PagedProblem& p) {
  return static_cast<int64_t>(sizeof(prefill::PrefillWork)) +
         prefill::max_prefill_tiles(p) * static_cast<int64_t>(sizeof(prefill::QueryTile));
}

void launch_paged_prefill_wgmma(const PagedProblem& p, const PagedOperands& x, void* scratch, int sm_count,
                                cudaStream_t stream) {
  auto* list = static_cast<prefill::PrefillWork*>(scratch);
  launch_overlapped(prefill::list_prefill_tiles_kernel, {1, prefill::kListThreads}, stream, p, x, list);
  switch (x.k.dtype) {
    case DType::kE4M3: return prefill::launch_e4m3(p, x, list, sm_count, stream);
    case DType::kE5M2: return prefill::launch_e5m2(p, x, list, sm_count, stream);
    default: return prefill::launch_bf16(p, x, list, sm_count, stream);
  }
}

}  // namespace octet::cuda
