#include <algorithm>

#include "kernels/cuda/collective/peer.cuh"
#include "kernels/cuda/common/overlap.cuh"

namespace octet::cuda {
namespace {

constexpr int kThreads = 256, kMaxTensors = 64;

__device__ __forceinline__ void store_release(uint32_t* to, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t load_acquire(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

__global__ void __launch_bounds__(32) peer_barrier_kernel(PeerPads pads) {
  griddep_wait();
  griddep_launch_dependents();
  PeerPad& own = *pads.pads[pads.own];
  const auto rank = static_cast<int>(threadIdx.x);
  const uint32_t barrier = own.barriers + 1;
  if (rank < pads.size && rank != pads.own) {
    __threadfence_system();
    store_release(&pads.pads[rank]->arrived[pads.own], barrier);
    for (int spins = 0; static_cast<int32_t>(load_acquire(&own.arrived[rank]) - barrier) < 0; ++spins)
      if (!waits(pads.aborted, spins)) break;
  }
  __syncwarp();
  if (rank == 0) own.barriers = barrier;
}

// Eight bytes of a tensor; what is behind its end reads as 0 and is not written.
__device__ __forceinline__ uint2 load_unit(const std::byte* x, int64_t bytes, int64_t unit) {
  const int64_t at = 8 * unit;
  if (at + 8 <= bytes && reinterpret_cast<uintptr_t>(x) % 8 == 0) return *reinterpret_cast<const uint2*>(x + at);
  uint64_t value = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (at + i < bytes) value |= static_cast<uint64_t>(x[at + i]) << (8 * i);
  return {static_cast<uint32_t>(value), static_cast<uint32_t>(value >> 32)};
}
__device__ __forceinline__ void store_unit(std::byte* y, int64_t bytes, int64_t unit, uint2 value) {
  const int64_t at = 8 * unit;
  if (at + 8 <= bytes && reinterpret_cast<uintptr_t>(y) % 8 == 0) {
    *reinterpret_cast<uint2*>(y + at) = value;
    return;
  }
  const uint64_t all = value.x | static_cast<uint64_t>(value.y) << 32;
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (at + i < bytes) y[at + i] = static_cast<std::byte>(all >> (8 * i));
}

struct SmallTensors {
  struct One {
    const std::byte* x;
    std::byte* y;
    int64_t bytes, stride, box;
  };
  One at[kMaxTensors];
};

// T: of the sum; std::byte: rows.
template <typename T>
__global__ void __launch_bounds__(kThreads) peer_small_kernel(PeerPads pads, SmallTensors tensors) {
  griddep_wait();
  griddep_launch_dependents();
  const PushCall call(pads);
  const SmallTensors::One tensor = tensors.at[blockIdx.y];
  const auto theirs = [&](int rank, int64_t unit) {
    uint2 taken[1];
    call.take(call.box(pads.own, rank, tensor.box + 8 * unit), taken);
    return taken[0];
  };
  const int64_t units = (tensor.bytes + 7) / 8, step = static_cast<int64_t>(gridDim.x) * kThreads,
                begin = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (int64_t unit = begin; unit < units; unit += step)
    for (int hop = 1; hop < pads.size; ++hop) {
      const int rank = pads.own + hop < pads.size ? pads.own + hop : pads.own + hop - pads.size;
      const uint2 pushed[] = {load_unit(tensor.x + rank * tensor.stride, tensor.bytes, unit)};
      call.push(call.box(rank, pads.own, tensor.box + 8 * unit), pushed);
    }
  for (int64_t unit = begin; unit < units; unit += step) {
    const uint2 mine = load_unit(tensor.x + pads.own * tensor.stride, tensor.bytes, unit);
    if constexpr (std::is_same_v<T, std::byte>) {
      for (int rank = 0; rank < pads.size; ++rank)
        store_unit(tensor.y + rank * tensor.bytes, tensor.bytes, unit, rank == pads.own ? mine : theirs(rank, unit));
    } else {
      Added<T, uint2> added;
      for (int rank = 0; rank < pads.size; ++rank) added.add(rank == pads.own ? mine : theirs(rank, unit), rank == 0);
      store_unit(tensor.y, tensor.bytes, unit, added.rounded());
    }
  }
  const uint32_t blocks = gridDim.x * gridDim.y;
  call.end(call.arrive(blocks), blocks);
}

template <typename T>
void launch_small(const PeerPads& pads, std::span<const PeerTensor> all, cudaStream_t stream) {
  constexpr int64_t kMaxBlocks = 256;  // of all tensors: about as many as run at once
  for (size_t first = 0; first < all.size(); first += kMaxTensors) {
    const std::span<const PeerTensor> some = all.subspan(first, std::min<size_t>(kMaxTensors, all.size() - first));
    SmallTensors tensors = {};
    int64_t box = 0, largest = 0;
    for (size_t i = 0; i < some.size(); ++i) {
      tensors.at[i] = {.x = static_cast<const std::byte*>(some[i].x),
                       .y = static_cast<std::byte*>(some[i].y),
                       .bytes = some[i].bytes,
                       .stride = some[i].stride,
                       .box = box};
      box += peer_box_bytes(some[i].bytes);
      largest = std::max(largest, some[i].bytes);
    }
    const int64_t wanted = (largest + 8 * kThreads - 1) / (8 * kThreads);
    const int64_t blocks = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(kMaxBlocks / std::ssize(some), 1));
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(some.size()));
    launch_overlapped(peer_small_kernel<T>, {grid, kThreads}, stream, pads, tensors);
  }
}

struct Sources {
  const uint4* x[kMaxPeers];
};

// As many blocks as peers' memory needs, and one's own. kInFlight: vectors of a thread and rank.
constexpr int kSumThreads = 512, kPeerSumBlocks = 32, kOwnSumBlocks = 264, kInFlight = 4;

template <typename T>
__global__ void __launch_bounds__(kSumThreads) peer_sum_kernel(Sources sources, int ranks, uint4* y, int64_t vectors) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kSumThreads;
  for (int64_t begin = static_cast<int64_t>(blockIdx.x) * kSumThreads + threadIdx.x; begin < vectors;
       begin += kInFlight * step) {
    Added<T, uint4> added[kInFlight];
    for (int rank = 0; rank < ranks; ++rank) {
      uint4 words[kInFlight];
      unroll<kInFlight>([&](int i) {
        if (begin + i * step < vectors) words[i] = __ldcs(sources.x[rank] + begin + i * step);
      });
      unroll<kInFlight>([&](int i) { added[i].add(words[i], rank == 0); });
    }
    unroll<kInFlight>([&](int i) {
      if (begin + i * step < vectors) y[begin + i * step] = added[i].rounded();
    });
  }
}

template <typename Launch>
void of_sum(DType dtype, const Launch& launch) {
  switch (dtype) {
    case DType::kBF16: return launch(bf16{});
    case DType::kF16: return launch(f16{});
    case DType::kF64: return launch(double{});
    case DType::kI32: return launch(int32_t{});
    default: return launch(float{});
  }
}

}  // namespace

bool peer_sums(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF64 ||
         dtype == DType::kI32;
}

void launch_peer_barrier(const PeerPads& pads, cudaStream_t stream) {
  launch_overlapped(peer_barrier_kernel, {1, 32}, stream, pads);
}

void launch_peer_sum_small(const PeerPads& pads, DType dtype, std::span<const PeerTensor> all, cudaStream_t stream) {
  of_sum(dtype, [&](auto type) { launch_small<decltype(type)>(pads, all, stream); });
}

void launch_peer_rows_small(const PeerPads& pads, std::span<const PeerTensor> all, cudaStream_t stream) {
  launch_small<std::byte>(pads, all, stream);
}

void launch_peer_sum(DType dtype, std::span<const void* const> x, void* y, int64_t bytes, bool own,
                     cudaStream_t stream) {
  Sources sources = {};
  for (size_t i = 0; i < x.size(); ++i) sources.x[i] = static_cast<const uint4*>(x[i]);
  const int64_t vectors = bytes / 16, wanted = (vectors + kSumThreads - 1) / kSumThreads;
  const auto blocks = static_cast<unsigned>(std::clamp<int64_t>(wanted, 1, own ? kOwnSumBlocks : kPeerSumBlocks));
  of_sum(dtype, [&](auto type) {
    peer_sum_kernel<decltype(type)>
        <<<blocks, kSumThreads, 0, stream>>>(sources, static_cast<int>(x.size()), static_cast<uint4*>(y), vectors);
  });
}

}  // namespace octet::cuda
