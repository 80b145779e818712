// top_logprobs: the k-th place by select.cuh, the tokens up to it listed and ranked against each other. More than 1024
// are found 1024 at a time.
#include "kernels/cuda/sampling/sampling.h"
#include "kernels/cuda/sampling/select.cuh"

namespace octet::cuda {
namespace {

constexpr int kAtOnce = 1024;

struct TopShared {
  SelectScratch select;
  RowSums sums;
  // the strips' sums follow
};

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kTeamThreads, 2) top_logprobs_kernel(TopLogprobsCall call) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  griddep_wait();
  griddep_launch_dependents();
  auto& shared = *reinterpret_cast<TopShared*>(shared_bytes);
  const int vocab = call.vocab, count = strips_of(vocab);
  auto* const floats = reinterpret_cast<float*>(shared_bytes + sizeof(TopShared));
  const StripSums strips{floats, floats + count, nullptr};
  const Team team;
  const int64_t at = blockIdx.x / static_cast<unsigned>(team.blocks);
  const T* const row = static_cast<const T*>(call.logits.data) + at * vocab;
  team.sync();  // no block writes into the DSMEM of one that has not begun
  for_strips<T, kAligned>(team, row, vocab, [&](int strip, const Eight<T, kAligned>(&pieces)[kStripSteps]) {
    sum_strip(team, strip, pieces, 0.0f, strips);
  });
  team.sync();
  const RowSums sums = join_strips<T, kAligned>(team, row, vocab, 0.0f, strips, &shared.sums);
  const float log_sum = logf(sums.sum);
  const Places places = Places::of<T>(vocab);
  Contenders left{.finite = false};
  for (int done = 0; done < call.k; done += kAtOnce) {
    const int wanted = min(kAtOnce, call.k - done);
    left.floor = 0;
    left.floor = select_place<T, kAligned>(team, row, vocab, places, sums.largest, Mass{0, 0}, left, shared.select,
                                           [&](uint32_t) { return static_cast<uint32_t>(wanted); });
    list_places<T, kAligned>(team, row, vocab, places, shared.select,
                             [&](float logit, int token) { return left.has(places.of(logit, token)); });
    for (int i = static_cast<int>(threadIdx.x); team.rank == 0 && i < wanted; i += kTeamThreads) {
      const Place place = shared.select.gathered[i];
      int likelier = 0;
      for (int other = 0; other < wanted; ++other) likelier += shared.select.gathered[other] > place;
      const float logit = places.template logit<T>(place);
      const int64_t to = at * call.k + done + likelier;
      if (call.logprobs != nullptr) call.logprobs[to] = logit == never() ? never() : logit - sums.largest - log_sum;
      if (call.ids != nullptr) call.ids[to] = places.token(place);
    }
    left.ceiling = left.floor - 1;
    team.sync();
  }
}

}  // namespace

void launch_top_logprobs(const TopLogprobsCall& call, cudaStream_t stream) {
  if (call.rows == 0) return;
  const size_t shared = sizeof(TopShared) + sizeof(float) * 2 * static_cast<size_t>(strips_of(call.vocab));
  const auto launch = [&](auto kernel) { launch_teams(kernel, call.rows, call.blocks_per_row, shared, stream, call); };
  if (call.logits.dtype == DType::kF32) {
    launch(call.vocab % 4 == 0 ? top_logprobs_kernel<float, true> : top_logprobs_kernel<float, false>);
  } else {
    launch(call.vocab % 8 == 0 ? top_logprobs_kernel<bf16, true> : top_logprobs_kernel<bf16, false>);
  }
}

}  // namespace octet::cuda
