#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/inference/inference.h"

namespace octet::cuda {
namespace {

// Block x of the grid takes a share of pair y; a thread moves a piece of kBytes at a time.
template <int kBytes>
__global__ void copy_blocks_kernel(std::byte* cache, int64_t block_bytes, int64_t blocks, const int32_t* pairs) {
  const int64_t from = pairs[2 * blockIdx.y], to = pairs[2 * blockIdx.y + 1];
  if (from < 0 || to < 0 || from >= blocks || to >= blocks) return;
  using Piece = Vec<uint8_t, kBytes>;
  const auto* source = reinterpret_cast<const Piece*>(cache + from * block_bytes);
  auto* target = reinterpret_cast<Piece*>(cache + to * block_bytes);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < block_bytes / kBytes; i += stride) {
    target[i] = source[i];
  }
}

}  // namespace

void launch_copy_blocks(void* cache, int64_t block_bytes, int64_t blocks, const int32_t* pairs, int count,
                        cudaStream_t stream) {
  constexpr int kThreads = 256, kMaxPairs = 65535;
  const auto launch = [&](auto kernel, int64_t pieces) {
    const auto width = static_cast<unsigned>(std::min<int64_t>((pieces + 4 * kThreads - 1) / (4 * kThreads), 64));
    for (int first = 0; first < count; first += kMaxPairs) {
      kernel<<<dim3(width, static_cast<unsigned>(std::min(count - first, kMaxPairs))), kThreads, 0, stream>>>(
          static_cast<std::byte*>(cache), block_bytes, blocks, pairs + 2 * first);
    }
  };
  if (block_bytes % 16 == 0) {
    launch(copy_blocks_kernel<16>, block_bytes / 16);
  } else {
    launch(copy_blocks_kernel<1>, block_bytes);
  }
}

}  // namespace octet::cuda
