// sample: one kernel, a team of blocks a row. Greedy rows and rows without a filter are read once; top_k and top_p read
// the row twice more each (select.cuh), and a filtered row once more to draw.
//
// A token's score, logit / temperature + g, is exact (float64) where it matters and not made elsewhere: the best score
// so far bounds from below the random word that could beat it, so that nearly all tokens cost an integer comparison of
// their word, and tokens whose logit cannot win under any word not even the word.
#include "kernels/cuda/common/philox.cuh"
#include "kernels/cuda/sampling/sampling.h"
#include "kernels/cuda/sampling/select.cuh"

namespace octet::cuda {
namespace {

constexpr float kLargestGumbel = 17.33f;  // of the largest word: 25 log 2
constexpr float kUnit = 2147483648.0f;    // of probabilities: 2^-31

__device__ __noinline__ double exact_score(float logit, double temperature, uint32_t word) {
  const double u = (static_cast<double>(word >> 8) + 0.5) * 0x1p-24;
  return static_cast<double>(logit) / temperature - log(-log(u));
}
// g to a few units in the last place: 1 - u is exact in float32 where u is not.
__device__ __noinline__ float quick_gumbel(uint32_t word) {
  const float rest = (static_cast<float>(~word >> 8) + 0.5f) * 0x1p-24f;
  return -logf(-log1pf(-rest));
}

struct Pick {
  double score;
  int token;
  __device__ __forceinline__ void take(double other, int id) {
    if (other > score || (other == score && static_cast<unsigned>(id) < static_cast<unsigned>(token))) {
      score = other, token = id;
    }
  }
};

// The best of the tokens a warp has seen.
struct Draw {
  RandomStream stream;
  double temperature;
  float inverse;
  float bound = never();  // the same in a warp: some token scores at least this
  Pick pick{-INFINITY, -1};

  __device__ __forceinline__ float slack(float tempered) const { return 1e-4f + 1e-6f * fminf(fabsf(tempered), 1e30f); }
  // Tokens first .. first + 7; what may not be drawn is -infinity. By whole warps.
  __device__ __forceinline__ void consider(int first, const float (&x)[8]) {
    float largest = x[0];
#pragma unroll
    for (int i = 1; i < 8; ++i) largest = fmaxf(largest, x[i]);
    const float tempered = largest * inverse, needed = bound - tempered - slack(tempered);
    const bool may_win = largest != never() && !(needed >= kLargestGumbel);
    bool better = false;
    if (may_win) {
      const uint64_t block = static_cast<uint64_t>(first) / 4;
      const uint4 low = stream.words(block), high = stream.words(block + 1);
      const uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      // g >= needed takes -log u <= e^-needed, hence 1 - u <= e^-needed.
      const float rest = __expf(-needed) * 1.001f;
      const uint32_t limit = rest < 0.99f ? static_cast<uint32_t>(rest * 4294967296.0f) + 512u : 0xffffffffu;
      const bool nothing_yet = bound == never();
      unroll<8>([&](int i) {
        if (~words[i] > limit || x[i] == never()) return;
        const float own = x[i] * inverse, score = own + quick_gumbel(words[i]);
        if (nothing_yet ? score > bound : score >= bound - slack(own)) {
          pick.take(exact_score(x[i], temperature, words[i]), first + i);
          if (!(score - slack(own) <= bound)) bound = score - slack(own), better = true;
        }
      });
    }
    if (__any_sync(kWholeWarp, better)) bound = warp_largest(bound);
  }
};

struct SampleShared {
  SelectScratch select;
  RowSums raw_sums, sums;
  Pick picks[kMaxBlocks * kTeamWarps];
  // the strips' sums follow
};

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kTeamThreads, 2) sample_kernel(SampleCall call) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  griddep_wait();
  griddep_launch_dependents();
  auto& shared = *reinterpret_cast<SampleShared*>(shared_bytes);
  const int vocab = call.vocab, count = strips_of(vocab);
  auto* const floats = reinterpret_cast<float*>(shared_bytes + sizeof(SampleShared));
  const StripSums strips{floats, floats + count, floats + 2 * count};
  const Team team;
  const int64_t at = blockIdx.x / static_cast<unsigned>(team.blocks);
  const T* const row = static_cast<const T*>(call.logits.data) + at * vocab;
  const float temperature = call.params[3 * at], top_p = call.params[3 * at + 1], min_p = call.params[3 * at + 2];
  const int top_k = call.top_k[at];
  const bool greedy = !(temperature > 0) || top_k == 1;
  const bool cut_k = top_k > 0 && top_k < vocab, cut_p = top_p < 1;
  const bool filters = !greedy && (cut_k || cut_p || min_p > 0);
  const float inverse = greedy ? 0.0f : 1.0f / temperature, summed = cut_p ? inverse : 0.0f;
  team.sync();  // no block writes into the DSMEM of one that has not begun

  const bool apart = call.raw.data != nullptr && call.logprobs != nullptr;
  if (apart) {
    const auto sum = [&]<typename R, bool kRawAligned>(const R* raw) {
      for_strips<R, kRawAligned>(team, raw, vocab, [&](int strip, const Eight<R, kRawAligned>(&pieces)[kStripSteps]) {
        sum_strip(team, strip, pieces, 0.0f, strips);
      });
      team.sync();
      join_strips<R, kRawAligned>(team, raw, vocab, 0.0f, strips, &shared.raw_sums);
      team.sync();
    };
    if (call.raw.dtype == DType::kF32) {
      sum.template operator()<float, false>(static_cast<const float*>(call.raw.data) + at * vocab);
    } else if (vocab % 8 == 0) {
      sum.template operator()<bf16, true>(static_cast<const bf16*>(call.raw.data) + at * vocab);
    } else {
      sum.template operator()<bf16, false>(static_cast<const bf16*>(call.raw.data) + at * vocab);
    }
  }

  const int64_t* seeds = call.seeds + 3 * at;
  const uint64_t key = static_cast<uint64_t>(seeds[0]) ^ RandomStream::mix64(static_cast<uint64_t>(seeds[2]));
  Draw draw{
      .stream = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), 0, static_cast<uint32_t>(seeds[1])},
      .temperature = static_cast<double>(temperature),
      .inverse = inverse};
  for_strips<T, kAligned>(team, row, vocab, [&](int strip, const Eight<T, kAligned>(&pieces)[kStripSteps]) {
    sum_strip(team, strip, pieces, filters ? summed : 0.0f, strips);
    if (greedy || filters) return;
#pragma unroll 1
    for (int step = 0; step < kStripSteps; ++step) {
      float x[8];
      Eight<T, kAligned> piece = pieces[0];
#pragma unroll
      for (int i = 1; i < kStripSteps; ++i)
        if (i == step) piece = pieces[i];
      piece.ranks(x);
      draw.consider(strip * kStrip + step * 256 + team.lane * 8, x);
    }
  });
  team.sync();
  const RowSums sums = join_strips<T, kAligned>(team, row, vocab, filters ? summed : 0.0f, strips, &shared.sums);

  if (filters && sums.token >= 0) {
    const Places places = Places::of<T>(vocab);
    Contenders kept;
    if (cut_k) {
      kept.floor = select_place<T, kAligned>(team, row, vocab, places, sums.largest, Mass{0, 0}, kept, shared.select,
                                             [&](uint32_t) { return static_cast<uint32_t>(top_k); });
    }
    if (cut_p) {
      const Mass probability{inverse * kLog2E, kUnit / sums.tempered};
      const auto target = [&](uint32_t total) {
        const double reached = ceil(static_cast<double>(top_p) * static_cast<double>(total));
        return reached < 1 ? 1u : static_cast<uint32_t>(reached);
      };
      kept.floor =
          select_place<T, kAligned>(team, row, vocab, places, sums.largest, probability, kept, shared.select, target);
    }
    float least = never();  // the smallest logit that min_p keeps
    if (min_p > 0) {
      const double distance = log(static_cast<double>(fminf(min_p, 1.0f))) * draw.temperature;
      least = __double2float_ru(static_cast<double>(sums.largest) + distance);
    }
    const float floor_logit = kept.floor == 0 ? never() : places.template logit<T>(kept.floor);
    for_strips<T, kAligned>(team, row, vocab, [&](int strip, const Eight<T, kAligned>(&pieces)[kStripSteps]) {
#pragma unroll 1
      for (int step = 0; step < kStripSteps; ++step) {
        float x[8];
        Eight<T, kAligned> piece = pieces[0];
#pragma unroll
        for (int i = 1; i < kStripSteps; ++i)
          if (i == step) piece = pieces[i];
        piece.ranks(x);
        const int first = strip * kStrip + step * 256 + team.lane * 8;
        unroll<8>([&](int i) {
          const bool in = x[i] > floor_logit || (x[i] == floor_logit && kept.has(places.of(x[i], first + i)));
          if (!in || x[i] < least) x[i] = never();
        });
        draw.consider(first, x);
      }
    });
  }

  if (!greedy) {
    Pick best = draw.pick;
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      const double score = __shfl_xor_sync(kWholeWarp, best.score, lanes);
      best.take(score, __shfl_xor_sync(kWholeWarp, best.token, lanes));
    }
    if (team.lane == 0) team.of(shared.picks, 0)[team.rank * kTeamWarps + team.warp] = best;
    team.sync();
  }
  if (team.rank != 0 || threadIdx.x != 0) return;
  int token = sums.token;
  if (!greedy && token >= 0) {
    Pick best = shared.picks[0];
    for (int i = 1; i < team.blocks * kTeamWarps; ++i) best.take(shared.picks[i].score, shared.picks[i].token);
    token = best.token;
  }
  if (call.ids != nullptr) call.ids[at] = token;
  if (call.logprobs == nullptr) return;
  const RowSums& of = apart ? shared.raw_sums : sums;
  float logit = never();
  if (token >= 0) {
    const int64_t element = at * vocab + token;
    logit = apart && call.raw.dtype == DType::kF32 ? static_cast<const float*>(call.raw.data)[element]
            : apart                                ? to_float(static_cast<const bf16*>(call.raw.data)[element])
                                                   : to_float(row[token]);
    logit = rank_of(logit);
  }
  call.logprobs[at] = logit == never() ? never() : logit - of.largest - logf(of.sum);
}

}  // namespace

void launch_sample(const SampleCall& call, cudaStream_t stream) {
  if (call.rows == 0) return;
  const size_t shared = sizeof(SampleShared) + sizeof(float) * 3 * static_cast<size_t>(strips_of(call.vocab));
  const auto launch = [&](auto kernel) { launch_teams(kernel, call.rows, call.blocks_per_row, shared, stream, call); };
  if (call.logits.dtype == DType::kF32) {
    launch(call.vocab % 4 == 0 ? sample_kernel<float, true> : sample_kernel<float, false>);
  } else {
    launch(call.vocab % 8 == 0 ? sample_kernel<bf16, true> : sample_kernel<bf16, false>);
  }
}

}  // namespace octet::cuda
