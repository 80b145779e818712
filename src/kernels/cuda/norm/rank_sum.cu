// Norms of few rows that are summed up over ranks first: the exchange in the norm's own kernel saves a launch and a
// trip of the rows through memory.
#include "kernels/cuda/collective/peer.cuh"
#include "kernels/cuda/norm/forward.cuh"

namespace octet::cuda {
namespace {

template <bool kLayer, int kGroups, Epilogue kEpilogue>
__global__ void __launch_bounds__(1024)
    norm_rank_sum_kernel(const __grid_constant__ NormForward p, const __grid_constant__ PeerPads pads) {
  using Row = NormRow<bf16, kLayer, kGroups, BlockReduce<false>, kEpilogue>;
  __shared__ float scratch[kTeamScratch];
  BlockReduce<false> team{scratch};
  Row part{p, team, {}};
  std::conditional_t<kGroups == 1, HeldChannels<kLayer, 1>, CachedChannels<kLayer>> channels;
  if (blockIdx.x == 0 && part.has(0)) prefetch_channels<kLayer>(p, part.column(0));
  griddep_wait();
  griddep_launch_dependents();
  const PushCall call(pads);
  const int64_t row = blockIdx.x;
  Packed<bf16, kGroup> x[kGroups], addend[kGroups];
  unroll<kGroups>([&](int g) {
    if (!part.has(g)) return;
    const int64_t at = row * p.cols + part.column(g);
    x[g] = load_packed<kGroup>(static_cast<const bf16*>(p.x) + at);
    const uint2 units[] = {{x[g].words[0], x[g].words[1]}, {x[g].words[2], x[g].words[3]}};
    for (int hop = 1; hop < pads.size; ++hop) {
      const int rank = pads.own + hop < pads.size ? pads.own + hop : pads.own + hop - pads.size;
      call.push(call.box(rank, pads.own, 2 * at), units);
    }
    if (p.addend != nullptr) addend[g] = load_packed<kGroup>(static_cast<const bf16*>(p.addend) + at);
    channels.fetch(p, g, part.column(g));
  });
  unroll<kGroups>([&](int g) {
    if (!part.has(g)) return;
    Added<bf16, uint4> added;
    for (int rank = 0; rank < pads.size; ++rank) {
      uint2 units[] = {{x[g].words[0], x[g].words[1]}, {x[g].words[2], x[g].words[3]}};
      if (rank != pads.own) call.take(call.box(pads.own, rank, 2 * (row * p.cols + part.column(g))), units);
      added.add({units[0].x, units[0].y, units[1].x, units[1].y}, rank == 0);
    }
    const uint4 words = added.rounded();
    const Packed<bf16, kGroup> sum{{words.x, words.y, words.z, words.w}};
    if (p.addend == nullptr) {
      part.take(g, sum);
    } else {
      part.take(row, g, sum, addend[g]);
    }
  });
  const uint32_t arrived = call.arrive(gridDim.x);
  float mean, rstd;
  part.statistics(row, mean, rstd, [] {});
  part.finish(row, rstd, channels);
  call.end(arrived, gridDim.x);
}

}  // namespace

void launch_norm_rank_sum(const NormForward& call, const NormPlan& plan, const PeerPads& pads, cudaStream_t stream) {
  const auto launch = [&]<bool kLayer, int kGroups, Epilogue kEpilogue>() {
    launch_overlapped(norm_rank_sum_kernel<kLayer, kGroups, kEpilogue>,
                      {static_cast<unsigned>(plan.grid), static_cast<unsigned>(plan.threads)}, stream, call, pads);
  };
  const auto with_groups = [&]<bool kLayer, Epilogue kEpilogue>() {
    plan.groups == 1 ? launch.template operator()<kLayer, 1, kEpilogue>()
                     : launch.template operator()<kLayer, 2, kEpilogue>();
  };
  const auto with_codes = [&]<bool kLayer>() {
    const bool codes = call.quantize.codes != nullptr || call.quantize.scale_inv != nullptr;
    codes ? with_groups.template operator()<kLayer, Epilogue::kRowCodes>()
          : with_groups.template operator()<kLayer, Epilogue::kPlain>();
  };
  call.layer ? with_codes.template operator()<true>() : with_codes.template operator()<false>();
}

}  // namespace octet::cuda
