// Rows scattered into a cache, blocks of a cache copied.
#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/operand.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/scale_formula.cuh"
#include "kernels/cuda/inference/inference.h"

namespace octet::cuda {
namespace {

// A thread moves kEach neighbouring elements.
template <int kEach>
__global__ void scatter_rows_kernel(Operand cache, int64_t cache_rows, Operand rows, const int32_t* slots,
                                    const float* scale, int tokens, int width) {
  griddep_wait();
  griddep_launch_dependents();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int pieces = width / kEach;
  const int64_t token = i / pieces;
  if (token >= tokens) return;
  const int64_t slot = slots[token], at = i % pieces * kEach;
  if (slot < 0 || slot >= cache_rows) return;
  float values[kEach];
  load<kEach>(rows, token * width + at, values);
  if (scale != nullptr) {
    unroll<kEach>([&](int e) { values[e] *= *scale; });
  }
  store<kEach>(cache, slot * width + at, values);
}

// A warp takes a group of a row.
__global__ void scatter_codes_kernel(int8_t* codes, float* scale_inv, int64_t cache_rows, Operand rows,
                                     const int32_t* slots, int tokens, int groups, int width) {
  griddep_wait();
  griddep_launch_dependents();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t group = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32, token = group / groups;
  if (token >= tokens) return;
  const int64_t slot = slots[token], to = slot * groups + group % groups;
  if (slot < 0 || slot >= cache_rows) return;
  uint32_t amax = 0;
  for (int i = lane; i < width; i += 32) amax = max(amax, __float_as_uint(fabsf(load(rows, group * width + i))));
  const float scale = int8_scale_of(__reduce_max_sync(0xffffffffu, amax));
  for (int i = lane; i < width && codes != nullptr; i += 32) {
    codes[to * width + i] = from_float<int8_t>(load(rows, group * width + i) * scale);
  }
  if (lane == 0 && scale_inv != nullptr) scale_inv[to] = __fdiv_rn(1.0f, scale);
}

// A thread copies a word; a row is `words` of them.
template <typename Word>
__global__ void scatter_copy_kernel(Word* table, int64_t table_rows, const Word* rows, const int32_t* slots, int tokens,
                                    int64_t words) {
  griddep_wait();
  griddep_launch_dependents();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t token = i / words;
  if (token >= tokens) return;
  const int64_t slot = slots[token];
  if (slot >= 0 && slot < table_rows) table[slot * words + i % words] = rows[i];
}

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

void launch_scatter_copy(void* table, int64_t table_rows, const void* rows, const int32_t* slots, int tokens,
                         int64_t row_bytes, cudaStream_t stream) {
  const auto launch = [&]<typename Word>(Word) {
    const int64_t words = row_bytes / static_cast<int64_t>(sizeof(Word)), threads = tokens * words;
    launch_overlapped(scatter_copy_kernel<Word>, {static_cast<unsigned>((threads + 255) / 256), 256}, stream,
                      static_cast<Word*>(table), table_rows, static_cast<const Word*>(rows), slots, tokens, words);
  };
  if (row_bytes % 16 == 0) {
    launch(uint4{});
  } else if (row_bytes % 4 == 0) {
    launch(uint32_t{});
  } else {
    launch(uint8_t{});
  }
}

void launch_scatter_rows(const Operand& cache, int64_t cache_rows, const Operand& rows, const int32_t* slots,
                         const float* scale, int tokens, int width, cudaStream_t stream) {
  const auto launch = [&](auto kernel, int each) {
    const int64_t threads = static_cast<int64_t>(tokens) * (width / each);
    launch_overlapped(kernel, {static_cast<unsigned>((threads + 255) / 256), 256}, stream, cache, cache_rows, rows,
                      slots, scale, tokens, width);
  };
  if (width % 8 == 0) {
    launch(scatter_rows_kernel<8>, 8);
  } else {
    launch(scatter_rows_kernel<1>, 1);
  }
}

void launch_scatter_codes(int8_t* codes, float* scale_inv, int64_t cache_rows, const Operand& rows,
                          const int32_t* slots, int tokens, int groups, int width, cudaStream_t stream) {
  const int64_t threads = static_cast<int64_t>(tokens) * groups * 32;
  launch_overlapped(scatter_codes_kernel, {static_cast<unsigned>((threads + 255) / 256), 256}, stream, codes, scale_inv,
                    cache_rows, rows, slots, tokens, groups, width);
}

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
