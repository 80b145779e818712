// Causal attention in tiles with an online softmax: for a block of queries of one head, loops over key blocks,
// keeps scores in a tile, and rescales the running maximum, sum and output row as the maximum grows. Tasks are
// (segment, head, query block); memory does not grow with the square of the length.
#include <atomic>

#include "base/threads.h"
#include "kernels/cpu/attention/amx_tiles.h"
#include "kernels/cpu/attention/problem.h"
#include "kernels/cpu/matmul/gemm_engine.h"

namespace octet::cpu {
namespace {

using tiles::kLanes;

constexpr int64_t kBlock = kAttentionBlock;

struct Inputs {
  const int32_t* starts;
  int64_t segments, end;  // end: of the last segment
  const RandomStream* stream;
  float* lse;
};

// Accumulators of one block of queries of one head: rows of `out`, not yet divided by the sums in `state`.
struct BlockResult {
  const float* out;
  int64_t out_row;
  SoftmaxRow state[kBlock];
};

// Scratch of one thread, in float32 vectors.
template <typename T>
struct VectorBlock {
  float *q, *keys, *values, *scores, *out;  // [block][dim] [dim][block] [block][dim] [block][block] [block][dim]
  uint32_t* words;
  VectorBlock(const AttentionProblem& p, Scratch scratch)
      : q(scratch.floats(kBlock * p.padded_dim)),
        keys(scratch.floats(p.padded_dim * kBlock)),
        values(scratch.floats(kBlock * p.padded_dim)),
        scores(scratch.floats(kBlock * kBlock)),
        out(scratch.floats(kBlock * p.padded_dim)),
        words(reinterpret_cast<uint32_t*>(scratch.floats(random_buffer_words(kBlock) + kLanes))) {}

  template <typename Drop>
  void run(const AttentionProblem& p, int64_t head, const T* from, const T* k, const T* v, int64_t first,
           int64_t queries, BlockResult& result, const Drop& drop) const {
    const QueryBlock block{tiles::rows_of(from, p.q_row(), queries, p.dim, q),
                           first,
                           queries,
                           p.dim,
                           p.padded_dim,
                           p.window,
                           p.scale,
                           keys,
                           scores,
                           out,
                           p.bias(head)};
    run_query_block(
        block, result.state,
        [&](int64_t key, int64_t count) {
          tiles::pack_transposed(k + key * p.kv_row(), p.kv_row(), count, p.dim, keys, kBlock);
        },
        [&](int64_t key, int64_t count) {
          return tiles::rows_of(v + key * p.kv_row(), p.kv_row(), count, p.dim, values);
        },
        drop);
    result.out = out, result.out_row = p.padded_dim;
  }
};

#ifdef OCTET_AMX_ATTENTION
// The same on AMX tiles: scores are exact products of bf16, probabilities are split into two bf16 parts.
struct AmxBlock {
  int64_t width;             // padded head dim
  uint16_t *q, *high, *low;  // [block][width], [block][block]
  uint32_t *keys, *values;   // pairs: [width / 2][block], [block / 2][width]
  float *scores, *out;       // [block][block], [block][width]
  uint32_t* words;
  AmxBlock(const AttentionProblem& p, Scratch scratch) : width(amx::round_up_step(p.dim)) {
    q = reinterpret_cast<uint16_t*>(scratch.floats(kBlock * width / 2));
    high = reinterpret_cast<uint16_t*>(scratch.floats(kBlock * kBlock / 2));
    low = reinterpret_cast<uint16_t*>(scratch.floats(kBlock * kBlock / 2));
    keys = reinterpret_cast<uint32_t*>(scratch.floats(kBlock * width / 2));
    values = reinterpret_cast<uint32_t*>(scratch.floats(kBlock * width / 2));
    scores = scratch.floats(kBlock * kBlock);
    out = scratch.floats(kBlock * width);
    words = reinterpret_cast<uint32_t*>(scratch.floats(random_buffer_words(kBlock) + kLanes));
  }

  template <typename Drop>
  void run(const AttentionProblem& p, int64_t head, const BF16* from, const BF16* k, const BF16* v, int64_t first,
           int64_t queries, BlockResult& result, const Drop& drop) const {
    const amx::Tiles tiles;
    const int64_t rows = amx::round_up_step(queries), end = first + queries;
    amx::pack_rows({from, p.q_row(), queries, p.dim}, width, q);
    std::fill_n(out, rows * width, 0.0f);
    for (int64_t key = p.first_key(first, 0) / kBlock * kBlock; key < end; key += kBlock) {
      const int64_t count = std::min(kBlock, end - key), cols = amx::round_up_step(count);
      amx::pack_transposed_pairs({k + key * p.kv_row(), p.kv_row(), count, p.dim}, width, keys);
      amx::pack_pairs({v + key * p.kv_row(), p.kv_row(), count, p.dim}, width, values);
      amx::product(rows, cols, width, {{q, keys}}, width, kBlock, scores, kBlock, false);
      for (int64_t band = 0; band < queries; band += kLanes) {
        const int64_t band_rows = std::min<int64_t>(kLanes, queries - band);
        softmax_band(p, p.bias(head), first, key, band, band_rows, count, result.state + band, drop);
      }
      amx::product(rows, width, cols, {{high, values}, {low, values}}, kBlock, width, out, width, true);
    }
    result.out = out, result.out_row = width;
  }

  // Converts rows [band, band + rows) of scores of `count` keys to the two parts of their probabilities.
  template <typename Drop>
  void softmax_band(const AttentionProblem& p, float bias, int64_t first, int64_t key, int64_t band, int64_t rows,
                    int64_t count, SoftmaxRow* state, const Drop& drop) const {
    int32_t first_seen[kLanes], last_seen[kLanes];
    float factors[kLanes];
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t position = first + band + r;
      first_seen[r] = static_cast<int32_t>(std::max<int64_t>(0, p.first_key(position, 0) - key));
      last_seen[r] = static_cast<int32_t>(std::clamp<int64_t>(position + 1 - key, 0, count));
    }
    const int64_t reach = tiles::round_up_lanes(last_seen[rows - 1]), cols = amx::round_up_step(count);
    for (int64_t r = 0; r < rows && bias != 0; ++r)
      add_bias(scores + (band + r) * kBlock, reach, bias, key - (first + band + r));
    softmax_rows(state, rows, scores + band * kBlock, kBlock, first_seen, last_seen, reach, p.scale, factors);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = (band + r) * kBlock;
      if (factors[r] != 1.0f) scale_row(out + (band + r) * width, width, factors[r]);
      drop(band + r, key, reach, scores + at);
      std::fill_n(scores + at + reach, cols - reach, 0.0f);
      for (int64_t c = 0; c < cols; c += kLanes) {
        const amx::Split parts = amx::split(simd::load(scores + at + c, simd::Full{}));
        amx::store_upper_halves(high + at + c, parts.high);
        amx::store_upper_halves(low + at + c, parts.low);
      }
    }
  }
};
#endif

// Queries [first, last) of the segment at `start`.
template <typename T, typename Block>
void run_block(const AttentionProblem& p, const KernelArgs& args, const Inputs& inputs, const Block& block,
               int64_t head, int64_t start, int64_t first, int64_t last) {
  const int64_t kv_offset = start * p.kv_row() + head / p.group() * p.dim;
  const T* q = args.in[0].as<const T>() + first * p.q_row() + head * p.dim;
  BlockResult result;
  block.run(p, head, q, args.in[1].as<const T>() + kv_offset, args.in[2].as<const T>() + kv_offset, first - start,
            last - first, result, [&](int64_t row, int64_t key, int64_t width, float* probabilities) {
              if (inputs.stream == nullptr) return;
              drop_probabilities(p, *inputs.stream, head, first + row, key, width, probabilities, block.words);
            });
  for (int64_t row = 0; row < last - first; ++row) {
    if (inputs.lse != nullptr) inputs.lse[(first + row) * p.heads + head] = result.state[row].lse();
    if (args.out[0].data == nullptr) continue;
    const float factor = 1.0f / result.state[row].sum;
    T* to = args.out[0].as<T>() + (first + row) * p.q_row() + head * p.dim;
    simd::for_lanes(p.dim, [&](int64_t i, auto lanes) {
      simd::store(to + i, simd::load(result.out + row * result.out_row + i, lanes) * factor, lanes);
    });
  }
}

// Tokens before the first and after the last segment.
template <typename T>
void clear_outside(const AttentionProblem& p, const KernelArgs& args, const Inputs& inputs) {
  const auto clear = [&](int64_t begin, int64_t end) {
    if (args.out[0].data != nullptr) {
      T* out = args.out[0].as<T>();
      std::fill(out + begin * p.q_row(), out + end * p.q_row(), T{});
    }
    if (inputs.lse != nullptr) std::fill(inputs.lse + begin * p.heads, inputs.lse + end * p.heads, 0.0f);
  };
  clear(0, inputs.starts[0]);
  clear(inputs.end, p.tokens);
}

template <typename T, typename Block>
void attention(const AttentionProblem& p, const KernelArgs& args) {
  Inputs inputs{args.in[3].as<const int32_t>(), args.in[3].elements() - 1, 0, nullptr, args.out[1].as<float>()};
  inputs.end = p.check_segments(inputs.starts, inputs.segments);
  RandomStream stream;
  if (p.dropout > 0) {
    stream = RandomStream::of(args.in[4].as<const int64_t>(), p.key);
    inputs.stream = &stream;
  }
  clear_outside<T>(p, args, inputs);
  // Task order: segments; in each, query blocks with the longest rows first; heads.
  int64_t tasks = 0;
  const auto blocks_of = [&](int64_t s) { return (inputs.starts[s + 1] - inputs.starts[s] + kBlock - 1) / kBlock; };
  for (int64_t s = 0; s < inputs.segments; ++s) tasks += blocks_of(s) * p.heads;
  std::atomic<int64_t> next{0};
  const auto work = [&](int64_t thread, int64_t threads) {
    const int64_t share = static_cast<int64_t>(args.workspace.size()) / threads / 64 * 64;
    const Block buffers(p, Scratch(args.workspace.data() + thread * share, share));
    int64_t segment = 0, before = 0;  // tasks of the segments before
    for (int64_t task = next++; task < tasks; task = next++) {
      while (task - before >= blocks_of(segment) * p.heads) before += blocks_of(segment++) * p.heads;
      const int64_t start = inputs.starts[segment], end = inputs.starts[segment + 1];
      const int64_t block = blocks_of(segment) - 1 - (task - before) / p.heads, head = (task - before) % p.heads;
      const int64_t first = start + block * kBlock;
      run_block<T>(p, args, inputs, buffers, head, start, first, std::min(end, first + kBlock));
    }
  };
  if (tasks == 1) {
    work(0, 1);
  } else {
    parallel_threads([&](int thread, int threads) { work(thread, threads); });
  }
}

bool accepts(const Graph& graph, const Node& node) { return accepts_attention(graph, node, {0, 1, 2}); }

BoundKernel bind(const Graph& graph, const Node& node) {
  const AttentionProblem problem(graph, node);
  const bool bf16 = node.results[0].dtype == DType::kBF16;
  return [problem, bf16](const KernelArgs& args) {
    bf16 ? attention<BF16, VectorBlock<BF16>>(problem, args) : attention<float, VectorBlock<float>>(problem, args);
  };
}

#ifdef OCTET_AMX_ATTENTION
bool accepts_amx(const Graph& graph, const Node& node) {
  return accepts(graph, node) && node.results[0].dtype == DType::kBF16 && amx_engine() != nullptr;
}

BoundKernel bind_amx(const Graph& graph, const Node& node) {
  const AttentionProblem problem(graph, node);
  return [problem](const KernelArgs& args) { attention<BF16, AmxBlock>(problem, args); };
}
#endif

}  // namespace

std::span<const KernelEntry> attention_kernels() {
  static const KernelEntry kernels[] = {
#ifdef OCTET_AMX_ATTENTION
      {Op::kAttention, "attention_amx", accepts_amx, bind_amx},
#endif
      {Op::kAttention, "attention_tiled", accepts, bind}};
  return kernels;
}

}  // namespace octet::cpu
