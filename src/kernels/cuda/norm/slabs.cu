// The instances of norm_slabs_kernel, and how many clusters stay.
#include "kernels/cuda/norm/slabs.cuh"

#include <algorithm>
#include <atomic>

namespace octet::cuda {
namespace {

using SlabsKernel = void (*)(NormForward, int, bool);

// Clusters of `blocks` that run at once, asked for once a device, as the kernel's attributes are set; 0: none fits.
template <SlabsKernel kKernel>
int most_clusters(unsigned blocks) {
  constexpr int kDevices = 64;  // beyond that many it is asked for each time
  static std::atomic<int> all_known[kDevices + 1][kMostChunks / kSlabChunks + 1];  // and 1
  int device = 0;
  cudaGetDevice(&device);
  std::atomic<int>& known = all_known[std::min(device, kDevices)][blocks];
  if (const int seen = known; seen != 0 && device < kDevices) return seen - 1;
  allow_shared(kKernel, kSlabBytes);
  if (blocks > 8) cudaFuncSetAttribute(kKernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {blocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = {blocks}, config.blockDim = {kSlabThreads}, config.dynamicSmemBytes = kSlabBytes;
  config.attrs = &attribute, config.numAttrs = 1;
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, kKernel, &config) != cudaSuccess) {
    cudaGetLastError();
    clusters = 0;
  }
  known = clusters + 1;
  return clusters;
}

}  // namespace

// Where rows and then their codes take longer (docs/results_gpu.md): not where few slabs leave clusters without one,
// nor with an addend in clusters of more than eight blocks, of which fewer run at once. Up to 512 columns a warp has a
// row, and sums in another order (row_access.cuh).
bool launch_norm_slabs(const NormForward& call, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((call.cols + kSlabCols - 1) / kSlabCols);
  const int64_t slabs = (call.rows + kSlabRows - 1) / kSlabRows;
  if (call.dtype != DType::kBF16 || call.cols <= 512 || (call.addend != nullptr && blocks > 8)) return false;
  const bool vector = call.rows % 16 == 0 && reinterpret_cast<uintptr_t>(call.quantize.codes_t) % 16 == 0;
  bool launched = false;
  const auto launch = [&]<SlabsKernel kKernel>() {
    const int most = most_clusters<kKernel>(blocks);
    launched = most > 0 && slabs >= most;
    if (!launched) return;
    launch_overlapped(kKernel, {most * blocks, kSlabThreads, kSlabBytes, {blocks}}, stream, call,
                      static_cast<int>(blocks), vector);
  };
  with_fp8_type(call.quantize.format, [&]<typename Code>(Code) {
    if (call.addend == nullptr) {
      call.layer ? launch.template operator()<norm_slabs_kernel<Code, true, false>>()
                 : launch.template operator()<norm_slabs_kernel<Code, false, false>>();
    } else {
      call.layer ? launch.template operator()<norm_slabs_kernel<Code, true, true>>()
                 : launch.template operator()<norm_slabs_kernel<Code, false, true>>();
    }
  });
  return launched;
}

}  // namespace octet::cuda
