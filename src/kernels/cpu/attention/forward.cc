// Attention in tiles with an online softmax: for a block of queries of one head, loops over key blocks,
// keeps scores in a tile, and rescales the running maximum, sum and output row as the maximum grows. Tasks are
// (segment, head, query block); memory does not grow with the square of the length.
#include "kernels/cpu/attention/amx_tiles.h"
#include "kernels/cpu/attention/problem.h"
#include "kernels/cpu/matmul/gemm.h"

namespace octet::cpu {
namespace {

using tiles::kLanes;

constexpr int64_t kBlock = kAttentionBlock;

// One block of queries of one head: positions [first, first + q.count) of the segment of `length` whose keys begin at
// k.
template <typename T>
struct Queries {
  tiles::Rows<T> q;
  const T *k, *v;
  int64_t head, first, length;
};

// Scratch of one thread, in float32 vectors. run() leaves the rows of `out` not yet divided by the sums of `state`.
template <typename T>
struct VectorBlock {
  int64_t out_row;
  float *q, *keys, *values, *scores, *out;  // [block][dim] [dim][block] [block][dim] [block][block] [block][dim]
  uint32_t* words;
  VectorBlock(const AttentionProblem& p, Scratch& scratch)
      : out_row(p.padded_dim),
        q(scratch.take(kBlock * p.padded_dim)),
        keys(scratch.take(p.padded_dim * kBlock)),
        values(scratch.take(kBlock * p.padded_dim)),
        scores(scratch.take(kBlock * kBlock)),
        out(scratch.take(kBlock * p.padded_dim)),
        words(scratch.take<uint32_t>(drop_buffer_words())) {}

  template <typename Drop>
  void run(const AttentionProblem& p, const Queries<T>& at, SoftmaxRow* state, const Drop& drop) const {
    const auto rows = [&](const T* from, int64_t key, int64_t count) {
      return tiles::Rows<T>{from + key * p.kv_row(), p.kv_row(), count, p.dim};
    };
    run_query_block(
        {p, tiles::rows_of(at.q, q), at.first, at.q.count, keys, scores, out, p.bias(at.head), at.length}, state,
        [&](int64_t key, int64_t count) { tiles::pack_transposed(rows(at.k, key, count), keys, kBlock); },
        [&](int64_t key, int64_t count) { return tiles::rows_of(rows(at.v, key, count), values); }, drop);
  }
};

#ifdef OCTET_AMX
// The same on AMX tiles: scores are exact products of bf16, probabilities are split into two bf16 parts.
struct AmxBlock {
  int64_t out_row;           // padded head dim
  uint16_t *q, *high, *low;  // [block][width], [block][block]
  uint32_t *keys, *values;   // pairs: [width / 2][block], [block / 2][width]
  float *scores, *out;       // [block][block], [block][width]
  uint32_t* words;
  AmxBlock(const AttentionProblem& p, Scratch& scratch)
      : out_row(amx::round_up_step(p.dim)),
        q(scratch.take<uint16_t>(kBlock * out_row)),
        high(scratch.take<uint16_t>(kBlock * kBlock)),
        low(scratch.take<uint16_t>(kBlock * kBlock)),
        keys(scratch.take<uint32_t>(kBlock * out_row / 2)),
        values(scratch.take<uint32_t>(kBlock * out_row / 2)),
        scores(scratch.take(kBlock * kBlock)),
        out(scratch.take(kBlock * out_row)),
        words(scratch.take<uint32_t>(drop_buffer_words())) {}

  template <typename Drop>
  void run(const AttentionProblem& p, const Queries<BF16>& at, SoftmaxRow* state, const Drop& drop) const {
    const amx::Tiles configured;
    const int64_t queries = at.q.count, width = out_row, rows = amx::round_up_step(queries),
                  end = std::min(at.length, p.end_key(at.first + queries - 1));
    amx::pack_rows(at.q, width, q);
    std::fill_n(out, rows * width, 0.0f);
    for (int64_t key = p.first_key(at.first) / kBlock * kBlock; key < end; key += kBlock) {
      const int64_t count = std::min(kBlock, end - key), cols = amx::round_up_step(count);
      amx::pack_transposed_pairs({at.k + key * p.kv_row(), p.kv_row(), count, p.dim}, width, keys);
      amx::pack_pairs({at.v + key * p.kv_row(), p.kv_row(), count, p.dim}, width, values);
      amx::product(rows, cols, width, {{q, keys}}, width, kBlock, scores, kBlock, false);
      for (int64_t band = 0; band < queries; band += kLanes) {
        const int64_t band_rows = std::min<int64_t>(kLanes, queries - band), first = at.first + band;
        const int64_t reach =
            tiles::round_up_lanes(std::clamp<int64_t>(p.end_key(first + band_rows - 1) - key, 0, count));
        softmax_band(
            p, state + band, band_rows, key, count, reach, scores + band * kBlock, out + band * width, width,
            [&](int64_t r) { return std::pair(first + r, p.bias(at.head)); },
            [&](int64_t r, float* probabilities) {
              drop(band + r, key, reach, probabilities);
              std::fill_n(probabilities + reach, cols - reach, 0.0f);
              for (int64_t c = 0; c < cols; c += kLanes) {
                const amx::Split parts = amx::split(simd::load(probabilities + c, simd::Full{}));
                amx::store_upper_halves(high + (band + r) * kBlock + c, parts.high);
                amx::store_upper_halves(low + (band + r) * kBlock + c, parts.low);
              }
            });
      }
      amx::product(rows, width, cols, {{high, values}, {low, values}}, kBlock, width, out, width, true);
    }
  }
};
#endif

// Queries [first, last) of the segment [start, end).
template <typename T, typename Block>
void run_block(const AttentionProblem& p, const KernelArgs& args, const AttentionInputs& inputs, const Block& block,
               int64_t head, int64_t start, int64_t end, int64_t first, int64_t last) {
  const int64_t q_offset = first * p.q_row() + head * p.dim, kv_offset = start * p.kv_row() + head / p.group() * p.dim;
  const Queries<T> queries{{args.in[0].as<const T>() + q_offset, p.q_row(), last - first, p.dim},
                           args.in[1].as<const T>() + kv_offset,
                           args.in[2].as<const T>() + kv_offset,
                           head,
                           first - start,
                           end - start};
  SoftmaxRow state[kBlock];
  block.run(p, queries, state, [&](int64_t row, int64_t key, int64_t width, float* probabilities) {
    if (!inputs.stream) return;
    drop_probabilities(p, *inputs.stream, head, first + row, start, key, width, probabilities, block.words);
  });
  float* lse = args.out[1].as<float>();
  for (int64_t row = 0; row < last - first; ++row) {
    if (lse != nullptr) lse[(first + row) * p.heads + head] = state[row].lse();
    if (args.out[0].data == nullptr) continue;
    const float factor = 1.0f / state[row].sum;
    T* to = args.out[0].as<T>() + q_offset + row * p.q_row();
    simd::for_lanes(p.dim, [&](int64_t i, auto lanes) {
      simd::store(to + i, simd::load(block.out + row * block.out_row + i, lanes) * factor, lanes);
    });
  }
}

template <typename T, typename Block>
void attention(const AttentionProblem& p, const KernelArgs& args) {
  const AttentionInputs inputs(p, args, 4);
  for (int i : {0, 1}) clear_outside(args.out[i], inputs.starts[0], inputs.starts[inputs.segments]);
  // In a segment query blocks with the longest rows first, then heads.
  const auto tasks_of = [&](int64_t segment) { return inputs.blocks(segment) * p.heads; };
  const int64_t threads = threads_with_room("attention", std::ssize(args.workspace), scratch_bytes<Block>(p));
  for_each_task(inputs.segments, threads, tasks_of, [&](int64_t thread, int64_t segment, int64_t task) {
    const int64_t start = inputs.starts[segment], end = inputs.starts[segment + 1];
    const int64_t first = start + (inputs.blocks(segment) - 1 - task / p.heads) * kBlock;
    Scratch scratch(args.workspace, thread, threads);
    const Block block(p, scratch);
    run_block<T>(p, args, inputs, block, task % p.heads, start, end, first, std::min(end, first + kBlock));
  });
}

BoundKernel bind_tiled(const Graph& graph, const Node& node) {
  return bind_attention(graph, node, {0, 1, 2}, [](const AttentionProblem& problem, const KernelArgs& args) {
    with_float_type(args.in[0].dtype(), [&]<typename T>(T) { attention<T, VectorBlock<T>>(problem, args); });
  });
}

BoundKernel bind_amx(const Graph& graph, const Node& node) {
#ifdef OCTET_AMX
  if (node.results[0].dtype == DType::kBF16 && amx_engine() != nullptr) {
    return bind_attention(graph, node, {0, 1, 2}, attention<BF16, AmxBlock>);
  }
#endif
  return nullptr;
}

}  // namespace

std::vector<KernelEntry> attention_kernels() {
  return {{Op::kAttention, "attention_amx", bind_amx}, {Op::kAttention, "attention_tiled", bind_tiled}};
}

}  // namespace octet::cpu
