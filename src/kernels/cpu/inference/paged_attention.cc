// Attention of new queries over a paged cache. Prefill runs the tiles of attention with keys gathered through the block
// table; decode (few queries) is memory bound: all heads of a kv head share one pass over its keys.
#include <atomic>

#include "base/threads.h"
#include "kernels/cpu/attention/problem.h"

namespace octet::cpu {
namespace {

using simd::Floats;

// Codes of an FP8 cache: k_scale_inv is applied with the scores' scale, v_scale_inv to the result.
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

struct PagedProblem {
  int64_t heads, kv_heads, dim, padded_dim, window, block_size, slots, blocks, tokens, sequences;
  float scale, key_scale, value_scale;  // of scores; of a cache's codes
  std::vector<float> biases = {};       // of each head, over the scale attribute; empty without ALiBi
  int64_t group() const { return heads / kv_heads; }
  float bias(int64_t head) const { return biases.empty() ? 0.0f : biases[static_cast<size_t>(head)] / key_scale; }
  int64_t kv_row() const { return kv_heads * dim; }
};

struct Sequence {
  int64_t begin, queries, length;  // first query token; keys including the queries' own
  const int32_t* table;
};

struct Buffers {
  float *q, *rows, *keys_t, *scores, *out;
  explicit Buffers(const PagedProblem& p, Scratch scratch)
      : q(scratch.floats(kBlock * p.padded_dim)),
        rows(scratch.floats(kBlock * p.padded_dim)),
        keys_t(scratch.floats(kBlock * p.padded_dim)),
        scores(scratch.floats(kBlock * kBlock)),
        out(scratch.floats(kBlock * p.padded_dim)) {}
};

// Address of the row of one position of a kv head.
template <typename C>
const C* cached_row(const PagedProblem& p, const Sequence& s, const C* cache, int64_t kv_head, int64_t position) {
  const int64_t slot = s.table[position / p.block_size] * p.block_size + position % p.block_size;
  return cache + slot * p.kv_row() + kv_head * p.dim;
}

// Rows of keys or values [key, key + count) of a kv head as float32, padded to whole vectors. Adjacent rows are about
// a page apart, beyond hardware prefetching: prefetches the rows of `next` at `distance`.
template <typename C>
tiles::Matrix gather(const PagedProblem& p, const Sequence& s, const C* cache, int64_t kv_head, int64_t key,
                     int64_t count, float* to, const C* next = nullptr, int64_t distance = 0) {
  for (int64_t i = 0; i < count; ++i) {
    if (next != nullptr && key + i + distance < s.length) {
      const C* row = cached_row(p, s, next, kv_head, key + i + distance);
      for (int64_t d = 0; d < p.dim; d += 64 / static_cast<int64_t>(sizeof(C))) __builtin_prefetch(row + d, 0, 2);
    }
    const C* from = cached_row(p, s, cache, kv_head, key + i);
    widen_row(from, to + i * p.padded_dim, p.dim, p.padded_dim);
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
  const int64_t kv_head = head / p.group(), token = s.begin + first, row = p.heads * p.dim;
  const QueryBlock block{tiles::rows_of(args.in[0].as<const T>() + token * row + head * p.dim, row, count, p.dim, b.q),
                         s.length - s.queries + first,
                         count,
                         p.dim,
                         p.padded_dim,
                         p.window,
                         p.scale,
                         b.keys_t,
                         b.scores,
                         b.out,
                         p.bias(head)};
  // Keys before the window may be in freed blocks: starts at the first key any query sees.
  const int64_t oldest = block.first_key(block.first);
  const auto load = [&](const C* cache, int64_t key, int64_t keys) {
    const int64_t skip = std::max<int64_t>(0, oldest - key);
    std::fill_n(b.rows, skip * p.padded_dim, 0.0f);
    gather(p, s, cache, kv_head, key + skip, keys - skip, b.rows + skip * p.padded_dim);
  };
  SoftmaxRow state[kBlock];
  run_query_block(
      block, state,
      [&](int64_t key, int64_t keys) {
        load(args.in[1].as<const C>(), key, keys);
        tiles::pack_transposed(b.rows, p.padded_dim, keys, p.dim, b.keys_t, kBlock);
      },
      [&](int64_t key, int64_t keys) {
        load(args.in[2].as<const C>(), key, keys);
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
  const auto first_key = [&](int64_t at) { return p.window > 0 ? std::max<int64_t>(0, at - p.window + 1) : 0; };
  SoftmaxRow state[kMaxRows];
  std::fill_n(b.out, rows * p.padded_dim, 0.0f);
  for (int64_t key = first_key(position); key < s.length; key += kBlock) {
    const int64_t keys = std::min(kBlock, s.length - key), width = tiles::round_up_lanes(keys);
    const C *key_cache = args.in[1].as<const C>(), *value_cache = args.in[2].as<const C>();
    const tiles::Matrix k = gather(p, s, key_cache, kv_head, key, keys, b.rows, value_cache, 0);
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
      int32_t low[simd::kLanes], high[simd::kLanes];
      float factors[simd::kLanes];
      for (int64_t r = 0; r < band_rows; ++r) {
        const int64_t at = position + (band + r) / group;
        low[r] = static_cast<int32_t>(std::max<int64_t>(0, first_key(at) - key));
        high[r] = static_cast<int32_t>(std::clamp<int64_t>(at + 1 - key, 0, keys));
        const float bias = p.bias(kv_head * group + (band + r) % group);
        if (bias != 0) add_bias(b.scores + (band + r) * kBlock, width, bias, key - at);
      }
      softmax_rows(state + band, band_rows, b.scores + band * kBlock, kBlock, low, high, width, p.scale, factors);
      for (int64_t r = 0; r < band_rows; ++r) {
        if (factors[r] != 1.0f) scale_row(b.out + (band + r) * p.padded_dim, p.padded_dim, factors[r]);
      }
    }
    const tiles::Matrix v = gather(p, s, value_cache, kv_head, key, keys, b.rows, key_cache, kBlock);
    tiles::product(rows, p.padded_dim, keys, {b.scores, kBlock, 1}, v.data, v.row, b.out, p.padded_dim, true);
  }
  for (int64_t r = 0; r < rows; ++r) {
    store_row<T>(p, args, s.begin + r / group, kv_head * group + r % group, b.out + r * p.padded_dim, state[r]);
  }
}

Sequence checked_sequence(const PagedProblem& p, const KernelArgs& args, int64_t index) {
  const int32_t* starts = args.in[3].as<const int32_t>();
  const int64_t begin = starts[index], end = starts[index + 1], length = args.in[4].as<const int32_t>()[index];
  const Sequence s{begin, end - begin, length, args.in[5].as<const int32_t>() + index * p.blocks};
  if (begin == end) return s;
  check(begin >= 0 && begin <= end && end <= p.tokens && length >= end - begin && length <= p.blocks * p.block_size,
        ErrorCode::kInvalidArgument,
        "paged_attention: sequence {} has queries [{}, {}) of {} and {} keys in {} blocks of {}", index, begin, end,
        p.tokens, length, p.blocks, p.block_size);
  const int64_t first = p.window > 0 ? std::max<int64_t>(0, length - s.queries - p.window + 1) : 0;
  for (int64_t block = first / p.block_size; block * p.block_size < length; ++block) {
    check(s.table[block] >= 0 && s.table[block] < p.slots / p.block_size, ErrorCode::kInvalidArgument,
          "paged_attention: sequence {} has block {} of a cache of {} blocks", index, s.table[block],
          p.slots / p.block_size);
  }
  return s;
}

bool decodes(const PagedProblem& p, const Sequence& s) {
  return s.queries <= kFewQueries && s.queries * p.group() <= kMaxRows;
}
int64_t tasks_of(const PagedProblem& p, const Sequence& s) {
  if (s.queries == 0) return 0;
  return decodes(p, s) ? p.kv_heads : p.heads * ((s.queries + kBlock - 1) / kBlock);
}

template <typename T, typename C>
void paged_attention(const PagedProblem& p, const KernelArgs& args) {
  const int32_t* starts = args.in[3].as<const int32_t>();
  T* out = args.out[0].as<T>();
  const int64_t row = p.heads * p.dim;
  std::fill(out, out + std::clamp<int64_t>(starts[0], 0, p.tokens) * row, T{});
  std::fill(out + std::clamp<int64_t>(starts[p.sequences], 0, p.tokens) * row, out + p.tokens * row, T{});
  int64_t tasks = 0;
  for (int64_t i = 0; i < p.sequences; ++i) tasks += tasks_of(p, checked_sequence(p, args, i));
  std::atomic<int64_t> next{0};
  const auto work = [&](int64_t thread, int64_t threads) {
    const int64_t share = static_cast<int64_t>(args.workspace.size()) / threads / 64 * 64;
    const Buffers buffers(p, Scratch(args.workspace.data() + thread * share, share));
    int64_t before = 0, index = 0;
    Sequence s = p.sequences > 0 ? checked_sequence(p, args, 0) : Sequence{};
    for (int64_t task = next++; task < tasks; task = next++) {
      while (task - before >= tasks_of(p, s)) {
        before += tasks_of(p, s);
        s = checked_sequence(p, args, ++index);
      }
      if (decodes(p, s)) {
        decode<T, C>(p, args, s, buffers, task - before);
      } else {
        const int64_t first = (task - before) / p.heads * kBlock;
        prefill_block<T, C>(p, args, s, buffers, (task - before) % p.heads, first, std::min(kBlock, s.queries - first));
      }
    }
  };
  if (tasks <= 1) {
    work(0, 1);
  } else {
    parallel_threads([&](int thread, int threads) { work(thread, threads); });
  }
}

bool accepts(const Graph& graph, const Node& node) {
  const DType cache = graph.dtype(node.inputs[1]);
  return is_f32_or_bf16(node.results[0].dtype) && (is_f32_or_bf16(cache) || is_fp8(cache)) &&
         graph.dtype(node.inputs[2]) == cache && node.attr<int64_t>("heads") % node.attr<int64_t>("kv_heads") == 0 &&
         node.attr<double>("scale") > 0;
}

BoundKernel bind(const Graph& graph, const Node& node) {
  PagedProblem p{.heads = node.attr<int64_t>("heads"), .kv_heads = node.attr<int64_t>("kv_heads")};
  p.dim = node.attr<int64_t>("head_dim");
  p.padded_dim = tiles::round_up_lanes(p.dim);
  p.window = node.attr<int64_t>("window");
  p.block_size = node.attr<int64_t>("block_size");
  p.slots = graph.shape(node.inputs[1]).rows();
  p.blocks = graph.shape(node.inputs[5]).cols();
  p.tokens = node.results[0].shape.rows();
  p.sequences = graph.shape(node.inputs[5]).rows();
  const auto scale = static_cast<float>(node.attr<double>("scale"));
  p.biases = biases_before_scale(node);
  BoundKernel kernel;
  with_float_type(node.results[0].dtype, [&]<typename T>(T) {
    const auto with_cache = [&]<typename C>(C) {
      kernel = [p, scale](const KernelArgs& args) mutable {
        const auto given = [&](size_t i) { return args.in.size() > i && args.in[i].data != nullptr; };
        p.key_scale = given(6) ? *args.in[6].as<float>() : 1.0f;
        p.value_scale = given(7) ? *args.in[7].as<float>() : 1.0f;
        p.scale = scale * p.key_scale;
        paged_attention<T, C>(p, args);
      };
    };
    switch (graph.dtype(node.inputs[1])) {
      case DType::kE4M3: return with_cache(Code<DType::kE4M3>{});
      case DType::kE5M2: return with_cache(Code<DType::kE5M2>{});
      default: return with_float_type(graph.dtype(node.inputs[1]), with_cache);
    }
  });
  return kernel;
}

}  // namespace

std::span<const KernelEntry> paged_attention_kernels() {
  static const KernelEntry kernels[] = {{Op::kPagedAttention, "paged_attention_tiled", accepts, bind}};
  return kernels;
}

}  // namespace octet::cpu
