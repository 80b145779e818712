// Attention of new queries over a paged cache. Prefill runs the tiles of attention with keys gathered through the block
// table; decode (few queries) is memory bound: all heads of a kv head share one pass over its keys.
#include "kernels/cpu/attention/problem.h"

namespace octet::cpu {
namespace {

using simd::Floats;

// Codes of a cache. Of FP8 k_scale_inv is applied with the scores' scale, v_scale_inv to the result; of int8, whose
// slots and heads have scales of their own, to the rows as they are gathered.
template <DType kType>
struct Code {
  uint8_t bits;
};
template <DType kType>
void widen_row(const Code<kType>* from, float* to, int64_t dim, int64_t padded) {
  convert(kType, from, DType::kF32, to, dim);
  std::fill(to + dim, to + padded, 0.0f);
}
template <typename C>
void widen_row(const C* from, float* to, int64_t dim, int64_t) {
  simd::for_lanes(dim, [&](int64_t i, auto lanes) { simd::store(to + i, simd::load(from + i, lanes), simd::Full{}); });
}

constexpr int64_t kBlock = kAttentionBlock;
constexpr int64_t kFewQueries = 4;  // up to this many queries the decode path runs
constexpr int64_t kMaxRows = 64;    // for decode: queries x heads of a kv head

struct PagedProblem : AttentionHeads {
  int64_t block_size, slots, blocks, tokens, sequences;
  float key_scale = 1, value_scale = 1;                        // of an FP8 cache
  const float *key_scales = nullptr, *value_scales = nullptr;  // of an int8 cache, [slots, kv_heads]

  PagedProblem(const Graph& graph, const Node& node)
      : AttentionHeads(node),
        block_size(node.attr<int64_t>("block_size")),
        slots(graph.shape(node.inputs[1]).rows()),
        blocks(graph.shape(node.inputs[5]).cols()),
        tokens(node.results[0].shape.rows()),
        sequences(graph.shape(node.inputs[5]).rows()) {}
  float bias(int64_t head) const { return AttentionHeads::bias(head) / key_scale; }
};

struct Sequence {
  int64_t begin, queries, length;  // first query token; keys including the queries' own
  const int32_t* table;
};

struct Buffers {
  float *q, *rows, *keys_t, *scores, *out;
  Buffers(const PagedProblem& p, Scratch& scratch)
      : q(scratch.take(kBlock * p.padded_dim)),
        rows(scratch.take(kBlock * p.padded_dim)),
        keys_t(scratch.take(kBlock * p.padded_dim)),
        scores(scratch.take(kBlock * kBlock)),
        out(scratch.take(kBlock * p.padded_dim)) {}
};

// The row of one position of a kv head, among those of all slots and heads.
int64_t cached_row(const PagedProblem& p, const Sequence& s, int64_t kv_head, int64_t position) {
  const int64_t slot = s.table[position / p.block_size] * p.block_size + position % p.block_size;
  return slot * p.kv_heads + kv_head;
}

// Rows of keys or values [key, key + count) of a kv head as float32, padded to whole vectors. Adjacent rows are about
// a page apart, beyond hardware prefetching: prefetches the rows of `next` at `distance`.
template <typename C>
tiles::Matrix gather(const PagedProblem& p, const Sequence& s, const C* cache, const float* scales, int64_t kv_head,
                     int64_t key, int64_t count, float* to, const C* next = nullptr, int64_t distance = 0) {
  for (int64_t i = 0; i < count; ++i) {
    if (next != nullptr && key + i + distance < s.length) {
      const C* row = next + cached_row(p, s, kv_head, key + i + distance) * p.dim;
      for (int64_t d = 0; d < p.dim; d += 64 / static_cast<int64_t>(sizeof(C))) __builtin_prefetch(row + d, 0, 2);
    }
    const int64_t at = cached_row(p, s, kv_head, key + i);
    float* row = to + i * p.padded_dim;
    widen_row(cache + at * p.dim, row, p.dim, p.padded_dim);
    for (int64_t d = 0; scales != nullptr && d < p.padded_dim; d += simd::kLanes) {
      simd::store(row + d, simd::load(row + d, simd::Full{}) * scales[at], simd::Full{});
    }
  }
  return {to, p.padded_dim, 1};
}

template <typename T>
void store_row(const PagedProblem& p, const KernelArgs& args, int64_t token, int64_t head, const float* out,
               const SoftmaxRow& state) {
  T* result = args.out[0].as<T>() + (token * p.heads + head) * p.dim;
  const float factor = p.value_scale / state.sum;
  simd::for_lanes(p.dim,
                  [&](int64_t i, auto lanes) { simd::store(result + i, simd::load(out + i, lanes) * factor, lanes); });
}

// Queries [first, first + count) of one head.
template <typename T, typename C>
void prefill_block(const PagedProblem& p, const KernelArgs& args, const Sequence& s, const Buffers& b, int64_t head,
                   int64_t first, int64_t count) {
  const int64_t kv_head = head / p.group(), token = s.begin + first;
  const T* q = args.in[0].as<const T>() + token * p.q_row() + head * p.dim;
  const QueryBlock block{p,
                         tiles::rows_of(tiles::Rows<T>{q, p.q_row(), count, p.dim}, b.q),
                         s.length - s.queries + first,
                         count,
                         b.keys_t,
                         b.scores,
                         b.out,
                         p.bias(head)};
  // Keys before the window may be in freed blocks: starts at the first key any query sees.
  const int64_t oldest = p.first_key(block.first);
  const auto load = [&](const C* cache, const float* scales, int64_t key, int64_t keys) {
    const int64_t skip = std::max<int64_t>(0, oldest - key);
    std::fill_n(b.rows, skip * p.padded_dim, 0.0f);
    gather(p, s, cache, scales, kv_head, key + skip, keys - skip, b.rows + skip * p.padded_dim);
  };
  SoftmaxRow state[kBlock];
  run_query_block(
      block, state,
      [&](int64_t key, int64_t keys) {
        load(args.in[1].as<const C>(), p.key_scales, key, keys);
        tiles::pack_transposed(tiles::Rows<float>{b.rows, p.padded_dim, keys, p.dim}, b.keys_t, kBlock);
      },
      [&](int64_t key, int64_t keys) {
        load(args.in[2].as<const C>(), p.value_scales, key, keys);
        return tiles::Matrix{b.rows, p.padded_dim, 1};
      },
      [](int64_t, int64_t, int64_t, float*) {});
  for (int64_t i = 0; i < count; ++i) store_row<T>(p, args, token + i, head, b.out + i * p.padded_dim, state[i]);
}

// All queries of all heads of one kv head: row = query x group + head of the group.
template <typename T, typename C>
void decode(const PagedProblem& p, const KernelArgs& args, const Sequence& s, const Buffers& b, int64_t kv_head) {
  const int64_t group = p.group(), rows = s.queries * group, position = s.length - s.queries;
  for (int64_t query = 0; query < s.queries; ++query) {
    const T* q = args.in[0].as<const T>() + ((s.begin + query) * p.heads + kv_head * group) * p.dim;
    for (int64_t h = 0; h < group; ++h) {
      simd::for_lanes(p.dim, [&](int64_t i, auto lanes) {
        simd::store(b.q + (query * group + h) * p.padded_dim + i, simd::load(q + h * p.dim + i, lanes), simd::Full{});
      });
    }
  }
  SoftmaxRow state[kMaxRows];
  std::fill_n(b.out, rows * p.padded_dim, 0.0f);
  for (int64_t key = p.first_key(position); key < s.length; key += kBlock) {
    const int64_t keys = std::min(kBlock, s.length - key), width = tiles::round_up_lanes(keys);
    const C *key_cache = args.in[1].as<const C>(), *value_cache = args.in[2].as<const C>();
    const tiles::Matrix k = gather(p, s, key_cache, p.key_scales, kv_head, key, keys, b.rows, value_cache, 0);
    for (int64_t j = 0; j < keys; ++j) {
      for (int64_t r = 0; r < rows; ++r) {
        const float *a = b.q + r * p.padded_dim, *c = k.data + j * k.row;
        Floats even{}, odd{};
        int64_t i = 0;
        for (; i + 2 * simd::kLanes <= p.padded_dim; i += 2 * simd::kLanes) {
          even = simd::fma(simd::load(a + i, simd::Full{}), simd::load(c + i, simd::Full{}), even);
          odd = simd::fma(simd::load(a + i + simd::kLanes, simd::Full{}),
                          simd::load(c + i + simd::kLanes, simd::Full{}), odd);
        }
        if (i < p.padded_dim) even = simd::fma(simd::load(a + i, simd::Full{}), simd::load(c + i, simd::Full{}), even);
        b.scores[r * kBlock + j] = simd::sum(even + odd);
      }
    }
    for (int64_t band = 0; band < rows; band += simd::kLanes) {
      const int64_t band_rows = std::min<int64_t>(simd::kLanes, rows - band);
      softmax_band(
          p, state + band, band_rows, key, keys, width, b.scores + band * kBlock, b.out + band * p.padded_dim,
          p.padded_dim,
          [&](int64_t r) {
            return std::pair(position + (band + r) / group, p.bias(kv_head * group + (band + r) % group));
          },
          [](int64_t, float*) {});
    }
    const tiles::Matrix v = gather(p, s, value_cache, p.value_scales, kv_head, key, keys, b.rows, key_cache, kBlock);
    tiles::product(rows, p.padded_dim, keys, {b.scores, kBlock, 1}, v.data, v.row, b.out, p.padded_dim, true);
  }
  for (int64_t r = 0; r < rows; ++r) {
    store_row<T>(p, args, s.begin + r / group, kv_head * group + r % group, b.out + r * p.padded_dim, state[r]);
  }
}

Sequence sequence_of(const PagedProblem& p, const KernelArgs& args, int64_t index) {
  const int32_t* starts = args.in[3].as<const int32_t>();
  return {starts[index], starts[index + 1] - starts[index], args.in[4].as<const int32_t>()[index],
          args.in[5].as<const int32_t>() + index * p.blocks};
}

void check_sequence(const PagedProblem& p, const Sequence& s, int64_t index) {
  if (s.queries == 0) return;
  check(s.begin >= 0 && s.queries >= 0 && s.begin + s.queries <= p.tokens && s.length >= s.queries &&
            s.length <= p.blocks * p.block_size,
        ErrorCode::kInvalidArgument,
        "paged_attention: sequence {} has queries [{}, {}) of {} and {} keys in {} blocks of {}", index, s.begin,
        s.begin + s.queries, p.tokens, s.length, p.blocks, p.block_size);
  for (int64_t block = p.first_key(s.length - s.queries) / p.block_size; block * p.block_size < s.length; ++block) {
    check(s.table[block] >= 0 && s.table[block] < p.slots / p.block_size, ErrorCode::kInvalidArgument,
          "paged_attention: sequence {} has block {} of a cache of {} blocks", index, s.table[block],
          p.slots / p.block_size);
  }
}

bool decodes(const PagedProblem& p, const Sequence& s) {
  return s.queries <= kFewQueries && s.queries * p.group() <= kMaxRows;
}

template <typename T, typename C>
void paged_attention(const PagedProblem& p, const KernelArgs& args) {
  const int32_t* starts = args.in[3].as<const int32_t>();
  clear_outside(args.out[0], std::clamp<int64_t>(starts[0], 0, p.tokens),
                std::clamp<int64_t>(starts[p.sequences], 0, p.tokens));
  for (int64_t i = 0; i < p.sequences; ++i) check_sequence(p, sequence_of(p, args, i), i);
  const auto tasks_of = [&](int64_t index) {
    const Sequence s = sequence_of(p, args, index);
    return s.queries == 0 ? 0 : decodes(p, s) ? p.kv_heads : p.heads * ((s.queries + kBlock - 1) / kBlock);
  };
  const int64_t threads = threads_with_room("paged_attention", std::ssize(args.workspace), scratch_bytes<Buffers>(p));
  for_each_task(p.sequences, threads, tasks_of, [&](int64_t thread, int64_t index, int64_t task) {
    const Sequence s = sequence_of(p, args, index);
    Scratch scratch(args.workspace, thread, threads);
    const Buffers buffers(p, scratch);
    if (decodes(p, s)) return decode<T, C>(p, args, s, buffers, task);
    const int64_t first = task / p.heads * kBlock;
    prefill_block<T, C>(p, args, s, buffers, task % p.heads, first, std::min(kBlock, s.queries - first));
  });
}

BoundKernel bind(const Graph& graph, const Node& node) {
  const DType type = node.results[0].dtype, cache = graph.dtype(node.inputs[1]);
  const bool row_scales = cache == DType::kI8;
  if (!is_f32_or_bf16(type) || !(is_f32_or_bf16(cache) || is_fp8(cache) || row_scales) ||
      graph.dtype(node.inputs[2]) != cache || node.attr<double>("scale") <= 0) {
    return nullptr;
  }
  return with_float_type(type, [&]<typename T>(T) {
    const auto with_cache = [&]<typename C>(C) -> BoundKernel {
      return [p = PagedProblem(graph, node), row_scales,
              scale = node.attr<double>("scale")](const KernelArgs& args) mutable {
        const auto given = [&](size_t i) { return args.in.size() > i ? args.in[i].as<const float>() : nullptr; };
        if (row_scales) {
          p.key_scales = given(6), p.value_scales = given(7);
        } else {
          p.key_scale = given(6) != nullptr ? *given(6) : 1.0f;
          p.value_scale = given(7) != nullptr ? *given(7) : 1.0f;
        }
        p.scale = static_cast<float>(scale) * p.key_scale;
        paged_attention<T, C>(p, args);
      };
    };
    if (cache == DType::kE4M3) return with_cache(Code<DType::kE4M3>{});
    if (cache == DType::kE5M2) return with_cache(Code<DType::kE5M2>{});
    if (row_scales) return with_cache(Code<DType::kI8>{});
    return with_float_type(cache, with_cache);
  });
}

}  // namespace

std::vector<KernelEntry> paged_attention_kernels() { return {{Op::kPagedAttention, "paged_attention_tiled", bind}}; }

}  // namespace octet::cpu
