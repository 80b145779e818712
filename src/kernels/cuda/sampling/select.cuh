// Finding the last token kept when likelier ones come first and masses add up to a target: histograms of integer
// masses in shared memory, no sort, the same result whatever the order of arrival.
//
// A token's place is an integer, larger for likelier ones: its logit's order above its id's complement, so that ties
// go to the lower id. One reading of the row makes a histogram by the distance from the largest logit, a second one
// lists the tokens of the bin where the target is reached, and further histograms over the list narrow the bin to one
// place. A bin with more tokens than the list holds (all logits equal) is narrowed by readings of the row.
#pragma once

#include "kernels/cuda/sampling/row_team.cuh"

namespace octet::cuda {

inline constexpr int kSelectBins = 2048;
inline constexpr int kListed = 2048;

using Place = unsigned long long;

// Places of a row's tokens.
struct Places {
  int id_bits, shift;  // bits of a token's id; bits of a logit's order that its type never sets

  template <typename T>
  __device__ static Places of(int vocab) {
    return {32 - __clz(vocab), sizeof(T) == 4 ? 0 : 16};
  }
  __device__ __forceinline__ Place of(float logit, int token) const {
    const uint32_t complement = (1u << id_bits) - 1 - static_cast<uint32_t>(token);
    return static_cast<Place>(ordered(logit) >> shift) << id_bits | complement;
  }
  template <typename T>
  __device__ float logit(Place place) const {
    const uint32_t order = static_cast<uint32_t>(place >> id_bits) << shift;
    return unordered(order >> 31 ? order : order | ((1u << shift) - 1));
  }
  __device__ int token(Place place) const {
    return static_cast<int>((1u << id_bits) - 1 - static_cast<uint32_t>(place & ((1u << id_bits) - 1)));
  }
};

// What a token adds up: 1, or its probability in units of 2^-31 of the row's sum.
struct Mass {
  float factor, scale;  // scale 0: counts
  __device__ __forceinline__ uint32_t operator()(float logit, float largest) const {
    return scale == 0 ? 1u : __float2uint_rn(exp2_fast((logit - largest) * factor) * scale);
  }
};

struct SelectScratch {
  alignas(16) uint32_t bins[kSelectBins];
  Place list[kListed], gathered[kListed];
  Place low, high;
  uint32_t warp_totals[kTeamWarps];
  uint32_t found, before, listed;
};

// Bins by the distance from the largest logit, 256 to every doubling of 1 + distance; the last one takes the rest.
__device__ __forceinline__ int distance_bin(float logit, float largest) {
  return static_cast<int>(
      min((__float_as_uint(largest - logit + 1.0f) - 0x3f800000u) >> 15, static_cast<uint32_t>(kSelectBins - 1)));
}

struct FoundBin {
  uint32_t bin, before;  // bin kSelectBins: the target lies beyond the total
};
// The bin where the masses reach target(total), and the mass of those before it. All threads; bins of the whole team
// added up where `merge`, which then needs a team.sync() before and after.
template <typename Target>
__device__ FoundBin find_bin(const Team& team, SelectScratch& s, bool merge, const Target& target) {
  static_assert(kSelectBins == 4 * kTeamThreads);
  const int first = static_cast<int>(threadIdx.x) * 4;
  uint4 mine = *reinterpret_cast<const uint4*>(s.bins + first);
  for (int i = 1; merge && i < team.blocks; ++i) {
    const uint4 other = *reinterpret_cast<const uint4*>(team.of(s.bins, (team.rank + i) % team.blocks) + first);
    mine.x += other.x, mine.y += other.y, mine.z += other.z, mine.w += other.w;
  }
  const uint32_t masses[4] = {mine.x, mine.y, mine.z, mine.w};
  const uint32_t sum = mine.x + mine.y + mine.z + mine.w;
  uint32_t upto = sum;
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const uint32_t other = __shfl_up_sync(kWholeWarp, upto, lanes);
    if (team.lane >= lanes) upto += other;
  }
  if (team.lane == 31) s.warp_totals[team.warp] = upto;
  if (threadIdx.x == 0) s.found = kSelectBins, s.before = 0;
  __syncthreads();
  uint32_t before = upto - sum, total = 0;
  unroll<kTeamWarps>([&](int warp) {
    if (warp < team.warp) before += s.warp_totals[warp];
    total += s.warp_totals[warp];
  });
  const uint32_t wanted = target(total);
  unroll<4>([&](int i) {
    if (before < wanted && wanted <= before + masses[i]) s.found = static_cast<uint32_t>(first + i), s.before = before;
    before += masses[i];
  });
  __syncthreads();
  return {s.found, s.before};
}

__device__ __forceinline__ void clear_bins(SelectScratch& s) {
  *reinterpret_cast<uint4*>(s.bins + threadIdx.x * 4) = uint4{0, 0, 0, 0};
  __syncthreads();
}

// Which tokens take part: places from floor to ceiling, and only finite ones where `finite`.
struct Contenders {
  Place floor = 0, ceiling = ~Place{0};
  bool finite = true;
  __device__ __forceinline__ bool bounded() const { return floor != 0 || ceiling != ~Place{0}; }
  __device__ __forceinline__ bool has(Place place) const { return place >= floor && place <= ceiling; }
};

// Puts the candidates' places that `wanted` picks into s.list of each block; returns how many the team found, all of
// them in s.gathered of every block if they fit, in no order. s.low and s.high: the smallest and largest place.
template <typename T, bool kAligned, typename Wanted>
__device__ uint32_t list_places(const Team& team, const T* row, int vocab, const Places& places, SelectScratch& s,
                                const Wanted& wanted) {
  if (threadIdx.x == 0) s.listed = 0, s.low = ~Place{0}, s.high = 0;
  __syncthreads();
  Place low = ~Place{0}, high = 0;
  for_eights<T, kAligned>(team, row, vocab, [&](int first, const float(&x)[8]) {
    unroll<8>([&](int i) {
      if (first + i >= vocab || !wanted(x[i], first + i)) return;
      const Place place = places.of(x[i], first + i);
      low = min(low, place), high = max(high, place);
      const uint32_t at = atomicAdd(&s.listed, 1u);
      if (at < kListed) s.list[at] = place;
    });
  });
  if (high != 0) atomicMin(&s.low, low), atomicMax(&s.high, high);
  team.sync();
  uint32_t count = 0;
  low = ~Place{0}, high = 0;
  for (int i = 0; i < team.blocks; ++i) {
    const uint32_t theirs = *team.of(&s.listed, i);
    if (count + theirs <= kListed) {
      const Place* list = team.of(s.list, i);
      for (uint32_t at = threadIdx.x; at < theirs; at += kTeamThreads) s.gathered[count + at] = list[at];
    }
    count += theirs;
    low = min(low, *team.of(&s.low, i)), high = max(high, *team.of(&s.high, i));
  }
  team.sync();
  if (threadIdx.x == 0) s.low = low, s.high = high;
  __syncthreads();
  return count;
}

// The place of the last contender needed for the masses of it and all likelier ones to reach target(their total);
// candidates.floor where they do not.
template <typename T, bool kAligned, typename Target>
__device__ Place select_place(const Team& team, const T* row, int vocab, const Places& places, float largest,
                              const Mass& mass, const Contenders& candidates, SelectScratch& s, const Target& target) {
  const auto contends = [&](float logit, int token) {
    return token < vocab && !(candidates.finite && logit == never()) &&
           (!candidates.bounded() || candidates.has(places.of(logit, token)));
  };
  clear_bins(s);
  for_eights<T, kAligned>(team, row, vocab, [&](int first, const float(&x)[8]) {
    unroll<8>([&](int i) {
      if (!contends(x[i], first + i)) return;
      const uint32_t amount = mass(x[i], largest);
      if (amount != 0) atomicAdd(s.bins + distance_bin(x[i], largest), amount);
    });
  });
  team.sync();
  uint32_t wanted = 0;
  const FoundBin outer = find_bin(team, s, true, [&](uint32_t total) { return wanted = target(total); });
  team.sync();
  if (outer.bin == kSelectBins) return candidates.floor;
  const uint32_t count = list_places<T, kAligned>(team, row, vocab, places, s, [&](float logit, int token) {
    return distance_bin(logit, largest) == static_cast<int>(outer.bin) && contends(logit, token);
  });
  Place low = s.low, high = s.high;
  uint32_t before = outer.before;
  const bool listed = count <= kListed;
  while (low < high) {
    const int shift = max(0, 64 - __clzll(static_cast<long long>(high - low)) - 11);
    clear_bins(s);
    if (listed) {
      for (uint32_t at = threadIdx.x; at < count; at += kTeamThreads) {
        const Place place = s.gathered[at];
        if (place < low || place > high) continue;
        atomicAdd(s.bins + ((high - place) >> shift), mass(places.template logit<T>(place), largest));
      }
      __syncthreads();
    } else {
      for_eights<T, kAligned>(team, row, vocab, [&](int first, const float(&x)[8]) {
        unroll<8>([&](int i) {
          if (!contends(x[i], first + i)) return;
          const Place place = places.of(x[i], first + i);
          if (place < low || place > high) return;
          atomicAdd(s.bins + ((high - place) >> shift), mass(x[i], largest));
        });
      });
      team.sync();
    }
    const FoundBin inner = find_bin(team, s, !listed, [&](uint32_t) { return wanted - before; });
    if (!listed) team.sync();
    before += inner.before;
    const Place top = high - (static_cast<Place>(inner.bin) << shift);
    const Place bottom = top - min(top - low, (Place{1} << shift) - 1);
    high = top, low = bottom;
  }
  return low;
}

}  // namespace octet::cuda
