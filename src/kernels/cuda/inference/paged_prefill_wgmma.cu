// Prefill over the paged cache on Hopper's tensor cores: queries of bf16, a cache of bf16, FP8 codes (exact in f16) or
// int8 codes (times their scales, rounded to bf16).
//
// An item of work is 128 queries of one head: two warp groups multiply, 64 queries each, and a third copies tiles of
// keys and values through the block table into two stages of each. While a group waits for the scores of one tile, the
// values of the tile before are multiplied; the other group's softmax overlaps with both. Persistent CTAs, one per SM,
// with a dynamic tile scheduler: how many items there are is known on the device only.
#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/inference/paged.cuh"

namespace octet::cuda {
namespace prefill {
namespace {

// --- the work: tiles of queries of all prefilled sequences, listed on the device by a kernel of its own, since lengths
// are known there only. Without the list every block of the largest possible grid would look through all sequences for
// its tile
constexpr int kTileQueries = 128;

// Queries first_query .. first_query + kTileQueries - 1 of a sequence, as many as there are.
struct QueryTile {
  int sequence, first_query;
  int begin, queries, length;  // of the sequence: as PagedSequence
};

struct PrefillWork {
  int tiles;  // in the list
  int taken;  // the tile scheduler's atomic counter: items taken beyond the first of each block
  QueryTile tile[1];
};

int max_prefill_tiles(const PagedProblem& p) {
  const int full = (p.tokens + kTileQueries - 1) / kTileQueries;
  return full + (p.sequences < p.tokens / (kDecodeQueries + 1) ? p.sequences : p.tokens / (kDecodeQueries + 1));
}

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

// --- the kernel
constexpr int kGroups = 2, kGroupThreads = 128, kThreads = (kGroups + 1) * kGroupThreads;
constexpr int kStages = 2;

template <int kDim>
struct Shape {
  static constexpr int kKeys = kDim <= 128 ? 128 : 64, kPanels = kDim / 64, kPanelBytes = kKeys * 128;
  static constexpr int kQueryPanelBytes = 64 * 128, kGroupBytes = kPanels * kQueryPanelBytes;
  static constexpr int kTileBytes = kPanels * kPanelBytes;
  static constexpr int kBytes = kGroups * kGroupBytes + 2 * kStages * kTileBytes;
};

struct Barriers {
  Mbarrier full_keys[kStages], full_values[kStages], empty_keys[kStages], empty_values[kStages];

  __device__ void init() {
    unroll<kStages>([&](int stage) {
      full_keys[stage].init(kGroupThreads), full_values[stage].init(kGroupThreads);
      empty_keys[stage].init(4 * kGroups), empty_values[stage].init(4 * kGroups);
    });
    publish_barriers();
  }
};

struct Work {
  PagedSequence sequence;
  int first_query, head, kv_head, oldest, newest, first_tile, tiles;  // keys [oldest, newest) in tiles of `keys`

  __device__ Work(const PagedProblem& p, const PagedOperands& x, const QueryTile& tile, int of_head, int keys)
      : sequence{tile.begin, tile.queries, tile.length, x.table + static_cast<int64_t>(tile.sequence) * p.blocks},
        first_query(tile.first_query),
        head(of_head),
        kv_head(of_head / p.group),
        oldest(sequence.first_key(p, first_query)),
        newest(sequence.position(min(first_query + kTileQueries, sequence.queries) - 1) + 1),
        first_tile(oldest / keys),
        tiles((newest + keys - 1) / keys - first_tile) {}
};

// Two int8 codes in the low half of `codes` times `factor`, as bf16. 128 + code becomes a float by its bits:
// conversions have a quarter of the rate.
__device__ __forceinline__ uint32_t scaled_codes(uint32_t codes, float factor) {
  constexpr uint32_t kBase = 0x4b000000;  // 2^23
  constexpr float kOffset = 8388608 + 128;
  const uint32_t raised = codes ^ 0x8080;
  const auto value = [&](uint32_t select) {
    return (__uint_as_float(__byte_perm(raised, kBase, select)) - kOffset) * factor;
  };
  return mma::pack(value(0x7440), value(0x7441));
}

// The copying warp group. Warp w of it looks up the slots of its share of a tile's rows, a tile ahead. `before`: tiles
// that the block has gone through; stages and phases of the barriers go on from there.
template <typename T, int kDim>
__device__ __forceinline__ void copy_tiles(const PagedProblem& p, const PagedOperands& x, const Work& work,
                                           uint32_t before, uint32_t keys, uint32_t values, Barriers& barriers) {
  using S = Shape<kDim>;
  constexpr int kRows = S::kKeys / 4;                               // of a warp
  constexpr int kPieces = kDim * static_cast<int>(sizeof(T)) / 16;  // of 16 bytes, of a row
  constexpr int kAtOnce = 32 / kPieces > 0 ? 32 / kPieces : 1, kSteps = kRows / kAtOnce;
  constexpr bool kScales = std::is_same_v<T, int8_t>;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int piece = lane % kPieces, sub = lane / kPieces;
  const bool within = piece * 16 < p.dim * static_cast<int>(sizeof(T));
  const int64_t row_bytes = static_cast<int64_t>(p.kv_heads) * p.dim * static_cast<int64_t>(sizeof(T));
  const int64_t head_bytes = static_cast<int64_t>(work.kv_head) * p.dim * static_cast<int64_t>(sizeof(T)) + piece * 16;
  const auto look_up = [&](int tile) {
    const int key = (work.first_tile + tile) * S::kKeys + warp * kRows + lane;
    return lane < kRows && tile < work.tiles && key >= work.oldest && key < work.newest ? work.sequence.slot(p, key)
                                                                                        : -1;
  };
  const auto copy = [&](uint32_t to, const Operand& from, const float* scales, int slots, Mbarrier& full,
                        Mbarrier& empty, int phase) {
    if constexpr (sizeof(T) == 2) {
      empty.wait(phase);
      unroll<kSteps>([&](int n) {
        const int row = n * kAtOnce + sub, slot = __shfl_sync(kWholeWarp, slots, row);
        const bool exists = within && slot >= 0;
        const int64_t at = exists ? slot * row_bytes + head_bytes : 0;
        mma::copy16_async(to + piece / 8 * S::kPanelBytes + wgmma::panel_offset(warp * kRows + row, piece % 8),
                          static_cast<const char*>(from.data) + at, exists);
      });
      full.arrive_after_copies();
    } else {
      uint4 codes[kSteps];
      float factors[kSteps];
      unroll<kSteps>([&](int n) {
        const int slot = __shfl_sync(kWholeWarp, slots, n * kAtOnce + sub);
        codes[n] = {0, 0, 0, 0}, factors[n] = 0;
        if (within && slot >= 0) {
          if constexpr (kScales) factors[n] = row_factor(scales, p, slot, work.kv_head);
          codes[n] =
              *reinterpret_cast<const uint4*>(static_cast<const char*>(from.data) + slot * row_bytes + head_bytes);
        }
      });
      empty.wait(phase);
      unroll<kSteps>([&](int n) {
        const int row = warp * kRows + n * kAtOnce + sub;
        const uint32_t four[4] = {codes[n].x, codes[n].y, codes[n].z, codes[n].w};
        unroll<2>([&](int half) {
          uint32_t h[4];
          unroll<4>([&](int i) {
            const uint32_t two = four[2 * half + i / 2] >> (i % 2 * 16);
            h[i] = kScales ? scaled_codes(two, factors[n]) : mma::halves<T>(two);
          });
          const uint32_t address = to + piece / 4 * S::kPanelBytes + wgmma::panel_offset(row, piece % 4 * 2 + half);
          asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};\n" ::"r"(address), "r"(h[0]), "r"(h[1]), "r"(h[2]),
                       "r"(h[3])
                       : "memory");
        });
      });
      wgmma::fence_shared();
      full.arrive();
    }
  };
  int slots = look_up(0);
#pragma unroll 1
  for (int tile = 0; tile < work.tiles; ++tile) {
    const uint32_t turn = before + static_cast<uint32_t>(tile), stage = turn % kStages;
    const int next = look_up(tile + 1), phase = static_cast<int>(turn / kStages % 2 ^ 1);
    copy(keys + stage * S::kTileBytes, x.k, x.k_scales, slots, barriers.full_keys[stage], barriers.empty_keys[stage],
         phase);
    copy(values + stage * S::kTileBytes, x.v, x.v_scales, slots, barriers.full_values[stage],
         barriers.empty_values[stage], phase);
    slots = next;
  }
  if constexpr (sizeof(T) == 2) mma::wait_copies<0>();
}

// One of the multiplying warp groups: 64 queries from `first` of the sequence on.
template <typename T, int kDim>
__device__ __forceinline__ void attend(const PagedProblem& p, const PagedOperands& x, const Work& work, int first,
                                       uint32_t before, uint32_t queries, uint32_t keys, uint32_t values,
                                       Barriers& barriers) {
  using S = Shape<kDim>;
  using Number = mma::Factor<T>;
  constexpr int kScores = S::kKeys / 2;
  const int i = static_cast<int>(threadIdx.x) % kGroupThreads, lane = i % 32, warp = i / 32, g = lane / 4, c = lane % 4;
  const int64_t width = static_cast<int64_t>(p.heads) * p.dim;
  const bf16* q = static_cast<const bf16*>(x.q.data) + work.sequence.begin * width + work.head * p.dim;
#pragma unroll 4
  for (int n = i; n < 64 * kDim / 8; n += kGroupThreads) {
    const int row = n / (kDim / 8), piece = n % (kDim / 8);
    uint4 eight = {0, 0, 0, 0};
    if (first + row < work.sequence.queries && piece * 8 < p.dim) {
      eight = *reinterpret_cast<const uint4*>(q + (first + row) * width + piece * 8);
    }
    if constexpr (sizeof(T) == 1) {
      eight = {mma::halves_of_bf16<T>(eight.x), mma::halves_of_bf16<T>(eight.y), mma::halves_of_bf16<T>(eight.z),
               mma::halves_of_bf16<T>(eight.w)};
    }
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};\n" ::"r"(queries + piece / 8 * S::kQueryPanelBytes +
                                                                 wgmma::panel_offset(row, piece % 8)),
                 "r"(eight.x), "r"(eight.y), "r"(eight.z), "r"(eight.w)
                 : "memory");
  }
  wgmma::fence_shared();
  asm volatile("bar.sync %0, 128;\n" ::"r"(1 + static_cast<int>(threadIdx.x) / kGroupThreads) : "memory");

  const float scale = p.scale * factor(x.k_scale), steps = scale * kLog2E;
  const float bias = p.alibi != 0 ? alibi_bias(p, work.head) / scale : 0.0f;
  const int own = first + warp * 16 + g;                   // this lane's queries: own and own + 8
  const int high = work.sequence.position(own);            // its last key; 8 more of the other's
  const int low = p.window > 0 ? high - p.window + 1 : 0;  // its first; the same
  const int low_of_next = p.window > 0 ? low + 8 : 0;
  float scores[kScores], sums[S::kPanels][32] = {}, largest[2] = {-INFINITY, -INFINITY}, denominator[2] = {0, 0};
  uint32_t weights[S::kKeys / 16][4];

  const auto stage_of = [&](int tile) { return (before + static_cast<uint32_t>(tile)) % kStages; };
  const auto phase_of = [&](int tile) {
    return static_cast<int>((before + static_cast<uint32_t>(tile)) / kStages % 2);
  };
  const auto start_scores = [&](int tile) {
    const uint32_t stage = stage_of(tile);
    barriers.full_keys[stage].wait(phase_of(tile));
    wgmma::fence_shared();
    wgmma::pin(scores);
    wgmma::fence();
    unroll<kDim / 16>([&](int k) {
      wgmma::multiply_rows<Number>(
          scores, wgmma::descriptor(queries + k / 4 * S::kQueryPanelBytes + k % 4 * 32),
          wgmma::descriptor(keys + stage * S::kTileBytes + k / 4 * S::kPanelBytes + k % 4 * 32), k > 0 ? 1 : 0);
    });
    wgmma::commit();
  };
  const auto start_values = [&](int tile) {
    const uint32_t stage = stage_of(tile);
    barriers.full_values[stage].wait(phase_of(tile));
    wgmma::fence_shared();
    unroll<S::kPanels>([&](int n) { wgmma::pin(sums[n]); });
    wgmma::fence();
    unroll<S::kKeys / 16, S::kPanels>([&](int k, int n) {
      wgmma::multiply_columns<Number>(
          sums[n], weights[k],
          wgmma::descriptor(values + stage * S::kTileBytes + n * S::kPanelBytes + k * 2048, S::kPanelBytes));
    });
    wgmma::commit();
  };
  const auto release = [&](Mbarrier& empty) {
    __syncwarp();
    if (lane == 0) empty.arrive();
  };
  // Scores of a tile become weights; how much the sums so far shrink.
  float shrink[2];
  const auto weigh = [&](int tile) {
    const int key = (work.first_tile + tile) * S::kKeys;
    if (p.alibi != 0) {
      unroll<kScores>([&](int n) {
        const int distance = key + n / 4 * 8 + 2 * c + n % 2 - high - n % 4 / 2 * 8;
        scores[n] = fmaf(bias, static_cast<float>(distance), scores[n]);
      });
    }
    const bool whole = key >= (p.window > 0 ? low_of_next : 0) && key + S::kKeys <= high + 1;
    if (!__all_sync(kWholeWarp, whole)) {
      unroll<kScores>([&](int n) {
        const int at = key + n / 4 * 8 + 2 * c + n % 2, last = high + n % 4 / 2 * 8;
        if (at > last || at < (n % 4 < 2 ? low : low_of_next)) scores[n] = -INFINITY;
      });
    }
    unroll<2>([&](int r) {
      float top = largest[r];
      unroll<kScores / 4>([&](int n) { top = fmaxf(top, fmaxf(scores[4 * n + 2 * r], scores[4 * n + 2 * r + 1])); });
      top = mma::quad_max(top);
      const float anchor = top == -INFINITY ? 0.0f : top * steps;
      shrink[r] = exp2_fast(fmaf(largest[r], steps, -anchor));
      largest[r] = top;
      float added = 0;
      unroll<kScores / 4>([&](int n) {
#pragma unroll
        for (int e = 4 * n + 2 * r; e < 4 * n + 2 * r + 2; ++e) {
          scores[e] = exp2_fast(fmaf(scores[e], steps, -anchor));
          added += scores[e];
        }
      });
      denominator[r] = fmaf(denominator[r], shrink[r], added);
    });
  };
  const auto pack_weights = [&] {
    unroll<S::kKeys / 16, 4>(
        [&](int k, int e) { weights[k][e] = mma::pack<Number>(scores[8 * k + 2 * e], scores[8 * k + 2 * e + 1]); });
  };

  start_scores(0);
  wgmma::wait<0>();
  wgmma::pin(scores);
  release(barriers.empty_keys[stage_of(0)]);
  weigh(0);
  pack_weights();
#pragma unroll 1
  for (int tile = 1; tile < work.tiles; ++tile) {
    start_scores(tile);
    start_values(tile - 1);
    wgmma::wait<1>();
    wgmma::pin(scores);
    release(barriers.empty_keys[stage_of(tile)]);
    weigh(tile);
    wgmma::wait<0>();
    unroll<S::kPanels>([&](int n) { wgmma::pin(sums[n]); });
    release(barriers.empty_values[stage_of(tile - 1)]);
    unroll<S::kPanels, 32>([&](int n, int e) { sums[n][e] *= shrink[e % 4 / 2]; });
    pack_weights();
  }
  start_values(work.tiles - 1);
  wgmma::wait<0>();
  unroll<S::kPanels>([&](int n) { wgmma::pin(sums[n]); });
  release(barriers.empty_values[stage_of(work.tiles - 1)]);

  const float v_scale = factor(x.v_scale);
  unroll<2>([&](int r) {
    const float inverse = v_scale / mma::quad_sum(denominator[r]);
    const int query = own + 8 * r;
    if (query >= work.sequence.queries) return;
    bf16* to = static_cast<bf16*>(x.out.data) + (work.sequence.begin + query) * width + work.head * p.dim;
    unroll<kDim / 8>([&](int n) {
      const int d = 8 * n + 2 * c;
      if (d >= p.dim) return;
      *reinterpret_cast<uint32_t*>(to + d) =
          mma::pack(sums[n / 8][n % 8 * 4 + 2 * r] * inverse, sums[n / 8][n % 8 * 4 + 2 * r + 1] * inverse);
    });
  });
}

template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads, 1)
    paged_prefill_wgmma_kernel(PagedProblem p, PagedOperands x, PrefillWork* list) {
  using S = Shape<kDim>;
  extern __shared__ __align__(1024) uint8_t shared_tiles[];
  __shared__ Barriers barriers;
  __shared__ QueryTile tile;
  __shared__ int head;  // negative: nothing is left
  const uint32_t queries = shared_address(shared_tiles), keys = queries + kGroups * S::kGroupBytes;
  const uint32_t values = keys + kStages * S::kTileBytes;
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  griddep_wait();
  griddep_launch_dependents();
  // Copying and multiplying threads meet at one barrier from two places of the code, which __syncthreads does not
  // allow.
  const auto meet = [] { asm volatile("bar.sync 8, %0;\n" ::"n"(kThreads) : "memory"); };
  // All threads take the same items. The first of the copying ones asks for an item while the one before is worked on.
  const auto each_item = [&](const auto& work_on) {
    const bool leads = threadIdx.x == kGroups * kGroupThreads;
    int item = static_cast<int>(blockIdx.x);
    if (leads) barriers.init();
    for (uint32_t before = 0;;) {
      if (leads) {
        const bool exists = item < list->tiles * p.heads;
        head = exists ? item % p.heads : -1;
        if (exists) tile = list->tile[item / p.heads];
        item = static_cast<int>(gridDim.x) + atomicAdd(&list->taken, 1);
      }
      meet();
      if (head < 0) return;
      const Work work(p, x, tile, head, S::kKeys);
      work_on(work, before);
      before += static_cast<uint32_t>(work.tiles);
      meet();
    }
  };
  if (group == kGroups) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 88;\n");
    each_item(
        [&](const Work& work, uint32_t before) { copy_tiles<T, kDim>(p, x, work, before, keys, values, barriers); });
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 208;\n");
    each_item([&](const Work& work, uint32_t before) {
      attend<T, kDim>(p, x, work, work.first_query + 64 * group, before,
                      queries + static_cast<uint32_t>(group * S::kGroupBytes), keys, values, barriers);
    });
  }
}

template <typename T, int kDim>
void launch(const PagedProblem& p, const PagedOperands& x, PrefillWork* list, int sm_count, cudaStream_t stream) {
  constexpr size_t kBytes = Shape<kDim>::kBytes;
  const int grid = min(sm_count, max_prefill_tiles(p) * p.heads);
  launch_overlapped(paged_prefill_wgmma_kernel<T, kDim>, {static_cast<unsigned>(grid), kThreads, kBytes}, stream, p, x,
                    list);
}
template <typename T>
void launch_dim(const PagedProblem& p, const PagedOperands& x, PrefillWork* list, int sm_count, cudaStream_t stream) {
  if (p.dim <= 64) return launch<T, 64>(p, x, list, sm_count, stream);
  if (p.dim <= 128) return launch<T, 128>(p, x, list, sm_count, stream);
  launch<T, 256>(p, x, list, sm_count, stream);
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
  const auto launch = [&]<typename T>(T) { prefill::launch_dim<T>(p, x, list, sm_count, stream); };
  if (!with_code_type(x.k.dtype, launch)) launch(bf16{});
}

}  // namespace octet::cuda
