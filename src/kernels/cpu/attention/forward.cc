// Causal attention in tiles with an online softmax: for a block of queries of one head, keys are visited block by
// block, scores live in a tile, and the running maximum, sum and output row are rescaled as the maximum grows. Tasks
// are (segment, head, query block); no memory grows with the square of the length.
#include <atomic>

#include "base/threads.h"
#include "kernels/cpu/attention/problem.h"

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

// The scratch of one thread, [rows][cols]
struct Buffers {
  float *q, *keys, *values, *scores, *out;  // [block][dim] [dim][block] [block][dim] [block][block] [block][dim]
  uint32_t* words;
  Buffers(const AttentionProblem& p, Scratch scratch)
      : q(scratch.floats(kBlock * p.padded_dim)),
        keys(scratch.floats(p.padded_dim * kBlock)),
        values(scratch.floats(kBlock * p.padded_dim)),
        scores(scratch.floats(kBlock * kBlock)),
        out(scratch.floats(kBlock * p.padded_dim)),
        words(reinterpret_cast<uint32_t*>(scratch.floats(random_buffer_words(kBlock) + kLanes))) {}
};

// Queries [first, last) of the segment at `start`.
template <typename T>
void run_block(const AttentionProblem& p, const KernelArgs& args, const Inputs& inputs, const Buffers& b, int64_t head,
               int64_t start, int64_t first, int64_t last) {
  const int64_t kv_offset = start * p.kv_row() + head / p.group() * p.dim;
  const T *k = args.in[1].as<const T>() + kv_offset, *v = args.in[2].as<const T>() + kv_offset;
  const T* q = args.in[0].as<const T>() + first * p.q_row() + head * p.dim;
  const QueryBlock block{tiles::rows_of(q, p.q_row(), last - first, p.dim, b.q),
                         first - start,
                         last - first,
                         p.dim,
                         p.padded_dim,
                         p.window,
                         p.scale,
                         b.keys,
                         b.scores,
                         b.out};
  SoftmaxRow state[kBlock];
  run_query_block(
      block, state,
      [&](int64_t key, int64_t count) {
        tiles::pack_transposed(k + key * p.kv_row(), p.kv_row(), count, p.dim, b.keys, kBlock);
      },
      [&](int64_t key, int64_t count) {
        return tiles::rows_of(v + key * p.kv_row(), p.kv_row(), count, p.dim, b.values);
      },
      [&](int64_t row, int64_t key, int64_t width, float* probabilities) {
        if (inputs.stream == nullptr) return;
        drop_probabilities(p, *inputs.stream, head, first + row, key, width, probabilities, b.words);
      });
  for (int64_t row = 0; row < last - first; ++row) {
    if (inputs.lse != nullptr) inputs.lse[(first + row) * p.heads + head] = state[row].lse();
    if (args.out[0].data == nullptr) continue;
    const float factor = 1.0f / state[row].sum;
    T* result = args.out[0].as<T>() + (first + row) * p.q_row() + head * p.dim;
    simd::for_lanes(p.dim, [&](int64_t i, auto lanes) {
      simd::store(result + i, simd::load(b.out + row * p.padded_dim + i, lanes) * factor, lanes);
    });
  }
}

// Tokens in front of the first and behind the last segment.
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

template <typename T>
void attention(const AttentionProblem& p, const KernelArgs& args) {
  Inputs inputs{args.in[3].as<const int32_t>(), args.in[3].elements() - 1, 0, nullptr, args.out[1].as<float>()};
  inputs.end = p.check_segments(inputs.starts, inputs.segments);
  RandomStream stream;
  if (p.dropout > 0) {
    stream = RandomStream::of(args.in[4].as<const int64_t>(), p.key);
    inputs.stream = &stream;
  }
  clear_outside<T>(p, args, inputs);
  // Tasks in order: segments; in each, query blocks from the longest rows down; heads.
  int64_t tasks = 0;
  const auto blocks_of = [&](int64_t s) { return (inputs.starts[s + 1] - inputs.starts[s] + kBlock - 1) / kBlock; };
  for (int64_t s = 0; s < inputs.segments; ++s) tasks += blocks_of(s) * p.heads;
  std::atomic<int64_t> next{0};
  const auto work = [&](int64_t thread, int64_t threads) {
    const int64_t share = static_cast<int64_t>(args.workspace.size()) / threads / 64 * 64;
    const Buffers buffers(p, Scratch(args.workspace.data() + thread * share, share));
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
    bf16 ? attention<BF16>(problem, args) : attention<float>(problem, args);
  };
}

}  // namespace

std::span<const KernelRow> attention_rows() {
  static const KernelRow rows[] = {{Op::kAttention, "attention_tiled", accepts, bind}};
  return rows;
}

}  // namespace octet::cpu
