#include "dist/cuda/peer_group.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/shape/shape.h"

namespace octet {

using cuda::check_cuda;

PeerGroup::PeerGroup(std::unique_ptr<cuda::RankGroup> others, PeerMemory& memory, std::vector<int32_t> members,
                     bool alike)
    : RankGroup(others->size(), others->own()),
      others_(std::move(others)),
      memory_(memory),
      members_(std::move(members)),
      alike_(alike) {
  const int64_t bytes = cuda::peer_memory_bytes(static_cast<int>(size()));
  pad_ = memory.allocate(members_, bytes, "boxes of peers", [&](std::byte* pad) {
    check_cuda(cudaMemset(pad, 0, static_cast<size_t>(bytes)), "boxes of peers");
  });
  pads_ = {.size = static_cast<int>(size()), .own = static_cast<int>(own()), .aborted = memory.aborted()};
  for (size_t i = 0; i < members_.size(); ++i) {
    pads_.pads[i] = reinterpret_cast<cuda::PeerPad*>(pad_->at[i]);
    pads_.boxes[i] = pad_->at[i] + cuda::kPeerPadBytes;
  }
  int least = 0, greatest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "reading priorities");
  check_cuda(cudaStreamCreateWithPriority(&beside_, cudaStreamNonBlocking, greatest), "making a stream");
  for (cudaEvent_t* event : {&begun_, &copied_})
    check_cuda(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "making an event");
}

PeerGroup::~PeerGroup() {
  for (cudaEvent_t event : {begun_, copied_})
    if (event != nullptr) cudaEventDestroy(event);
  if (beside_ != nullptr) cudaStreamDestroy(beside_);
}

void PeerGroup::all_reduce(const void* x, void* y, int64_t count, DType dtype, Stream stream) {
  add({Kind::kAllReduce, x, y, count * dtype_bytes(dtype), dtype, stream});
}
void PeerGroup::reduce_scatter(const void* x, void* y, int64_t count, DType dtype, Stream stream) {
  add({Kind::kReduceScatter, x, y, count * dtype_bytes(dtype), dtype, stream});
}
void PeerGroup::all_gather(const void* x, void* y, int64_t bytes, Stream stream) {
  add({Kind::kAllGather, x, y, bytes, DType::kU8, stream});
}
void PeerGroup::all_to_all(const void* x, void* y, int64_t bytes, Stream stream) {
  add({Kind::kAllToAll, x, y, bytes, DType::kU8, stream});
}

std::vector<PeerGroup::Call> PeerGroup::collect(FunctionRef<void()> calls) {
  collecting_ = true;
  calls_.clear();
  try {
    calls();
  } catch (...) {
    collecting_ = false;
    throw;
  }
  collecting_ = false;
  return std::exchange(calls_, {});
}

void PeerGroup::coalesce(FunctionRef<void()> calls, std::span<std::byte> scratch) { run(collect(calls), scratch); }

void PeerGroup::coalesce_overlapped(FunctionRef<void()> work, FunctionRef<void()> calls, std::span<std::byte> scratch) {
  const std::vector<Call> all = collect(calls);
  if (!all.empty() && run_large(all, scratch, &work)) return;
  work();
  run(all, scratch);
}

int64_t PeerGroup::scratch_bytes(int64_t bytes) const { return alike_ ? (size() - 1) * cuda::aligned(bytes) : 0; }

void PeerGroup::add(const Call& call) {
  calls_.push_back(call);
  if (collecting_) return;
  const Call one = calls_.back();
  calls_.clear();
  run({&one, 1});
}

const cuda::PeerPads* PeerGroup::pads(int64_t bytes) const {
  check_running();
  return fits_boxes(bytes) ? &pads_ : nullptr;
}

void PeerGroup::check_running() const {
  check(*static_cast<const volatile int*>(pads_.aborted) == 0, ErrorCode::kIo, "the exchanges of a rank were aborted");
}

void PeerGroup::run(std::span<const Call> calls, std::span<std::byte> scratch) {
  check_running();
  if (calls.empty() || run_small(calls) || run_large(calls, scratch)) return;
  run_others(calls);
}

bool PeerGroup::run_small(std::span<const Call> calls) {
  int64_t box = 0;
  for (const Call& call : calls) {
    box += cuda::peer_box_bytes(call.bytes);
    if (call.sums() && !cuda::peer_sums(call.dtype)) return false;
  }
  if (!fits_boxes(box)) return false;
  // One launch for all of one type that follow each other.
  for (size_t begin = 0, end = 0; begin < calls.size(); begin = end) {
    std::vector<cuda::PeerTensor> tensors;
    const Call& first = calls[begin];
    for (; end < calls.size() && calls[end].sums() == first.sums() && calls[end].dtype == first.dtype; ++end)
      tensors.push_back({calls[end].x, calls[end].y, calls[end].bytes, calls[end].stride()});
    if (first.sums()) {
      cuda::launch_peer_sum_small(pads_, first.dtype, tensors, first.stream);
    } else {
      cuda::launch_peer_rows_small(pads_, tensors, first.stream);
    }
  }
  return true;
}

std::vector<const void*> PeerGroup::sources(const Call& call) const {
  std::vector<const void*> from;
  for (const int32_t rank : members_) {
    const std::byte* there = memory_.there(call.x, rank);
    if (there == nullptr) return {};
    from.push_back(there + own() * call.stride());
  }
  return from;
}

// Operands are read where they lie, after a barrier; before the next one nothing may overwrite them. Gathers go by the
// copy engines, and beside kernels parts of sums do too, which are then added up here: no SM waits for them. `work`
// runs on the calls' stream while barriers and copies do so on another, whose blocks go first.
bool PeerGroup::run_large(std::span<const Call> calls, std::span<std::byte> scratch, Work work) {
  if (!alike_) return false;
  check_running();
  std::vector<std::vector<const void*>> all;
  int64_t wanted = 0;
  for (const Call& call : calls) {
    const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
    if (call.sums() && (!cuda::peer_sums(call.dtype) || call.bytes % 16 != 0 || !aligned(call.x) || !aligned(call.y)))
      return false;
    if (call.kind == Kind::kAllReduce && size() > 2) return false;  // reads all of every rank: more than a ring's bytes
    all.push_back(sources(call));
    if (all.back().empty()) return false;
    if (call.sums()) wanted += scratch_bytes(call.bytes);
  }
  const bool beside = wanted > 0 && wanted <= std::ssize(scratch);
  if (work != nullptr && wanted > 0 && !beside) return false;
  const bool gathers = std::ranges::any_of(calls, [](const Call& call) { return !call.sums(); });
  const Stream stream = calls.front().stream, travels = work != nullptr ? beside_ : stream;
  if (gathers || work != nullptr) {
    check_cuda(cudaEventRecord(begun_, stream), "recording an event");
    check_cuda(cudaStreamWaitEvent(beside_, begun_, 0), "ordering two streams");
  }
  for (size_t i = 0; i < calls.size(); ++i) {  // a kernel beside the barrier copies the own part
    const int64_t bytes = calls[i].bytes;
    std::byte* to = static_cast<std::byte*>(calls[i].y) + own() * bytes;
    if (!calls[i].sums())
      cuda::launch_copy_block(all[i][static_cast<size_t>(own())], bytes, to, bytes, 1, bytes, beside_);
  }
  cuda::launch_peer_barrier(pads_, travels);
  std::byte* at = scratch.data();
  for (size_t i = 0; i < calls.size(); ++i) {
    std::vector<const void*>& from = all[i];
    if (!calls[i].sums()) {
      copy_others(calls[i], from, travels);
    } else if (!beside) {
      cuda::launch_peer_sum(calls[i].dtype, from, calls[i].y, calls[i].bytes, false, stream);
    } else {
      for (int64_t hop = 1; hop < size(); ++hop) {
        const void*& part = from[static_cast<size_t>((own() + hop) % size())];
        check_cuda(cudaMemcpyAsync(at, part, static_cast<size_t>(calls[i].bytes), cudaMemcpyDefault, travels),
                   "copying from a peer");
        part = at;
        at += cuda::aligned(calls[i].bytes);
      }
    }
  }
  if (work != nullptr) (*work)();
  cuda::launch_peer_barrier(pads_, travels);
  if (gathers || work != nullptr) {
    check_cuda(cudaEventRecord(copied_, beside_), "recording an event");
    check_cuda(cudaStreamWaitEvent(stream, copied_, 0), "ordering two streams");
  }
  for (size_t i = 0; beside && i < calls.size(); ++i)
    if (calls[i].sums()) cuda::launch_peer_sum(calls[i].dtype, all[i], calls[i].y, calls[i].bytes, true, stream);
  return true;
}

void PeerGroup::copy_others(const Call& call, const std::vector<const void*>& from, Stream stream) {
  for (int64_t hop = 1; hop < size(); ++hop) {
    const int64_t rank = (own() + hop) % size();
    check_cuda(cudaMemcpyAsync(static_cast<std::byte*>(call.y) + rank * call.bytes, from[static_cast<size_t>(rank)],
                               static_cast<size_t>(call.bytes), cudaMemcpyDefault, stream),
               "copying from a peer");
  }
}

void PeerGroup::run_others(std::span<const Call> calls) {
  others_->coalesce([&] {
    for (const Call& call : calls) {
      const int64_t count = call.bytes / dtype_bytes(call.dtype);
      switch (call.kind) {
        case Kind::kAllReduce: others_->all_reduce(call.x, call.y, count, call.dtype, call.stream); break;
        case Kind::kReduceScatter: others_->reduce_scatter(call.x, call.y, count, call.dtype, call.stream); break;
        case Kind::kAllGather: others_->all_gather(call.x, call.y, call.bytes, call.stream); break;
        case Kind::kAllToAll: others_->all_to_all(call.x, call.y, call.bytes, call.stream); break;
      }
    }
  });
}

}  // namespace octet
