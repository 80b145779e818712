// Causal attention in tiles with an online softmax: for a block of queries of one head, keys are visited block by
// block, scores live in a tile, and the running maximum, sum and output row are rescaled as the maximum grows. Tasks
// are (segment, head, query block); no memory grows with the square of the length.
#include <atomic>

#include "base/threads.h"
#include "kernels/cpu/attention/problem.h"

namespace octet::cpu {
namespace {

using simd::Floats;
using simd::Ints;
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

// One row of a tile of scores becomes probabilities of keys [low, high) relative to the running maximum, zero up to
// `width`. Returns the factor for what was summed before.
struct RowState {
  float maximum = -INFINITY, sum = 0;
};
float softmax_row(float* scores, int64_t low, int64_t high, int64_t width, float scale, RowState& state) {
  const Floats lowest = simd::broadcast(-INFINITY);
  Floats top = lowest;
  for (int64_t c = 0; c < width; c += kLanes) {
    const Ints index = lane_indices(c);
    const Floats score = simd::load(scores + c, simd::Full{}) * scale;
    const Floats seen = (index >= static_cast<int32_t>(low)) & (index < static_cast<int32_t>(high)) ? score : lowest;
    simd::store(scores + c, seen, simd::Full{});
    top = simd::maximum(top, seen);
  }
  const float before = state.maximum, now = std::max(before, simd::largest(top));
  if (now == -INFINITY) {  // nothing seen so far (or scores that are all -infinity)
    std::fill_n(scores, width, 0.0f);
    return 1;
  }
  Floats sum{};
  for (int64_t c = 0; c < width; c += kLanes) {
    Floats probability = simd::exp(simd::load(scores + c, simd::Full{}) - now);
    probability = probability < 0x1p-126f ? Floats{} : probability;  // no denormals: they slow products down
    sum += probability;
    simd::store(scores + c, probability, simd::Full{});
  }
  const float factor = before == -INFINITY ? 0.0f : std::exp(before - now);
  state.maximum = now;
  state.sum = state.sum * factor + simd::sum(sum);
  return factor;
}

template <typename T>
void query_block(const AttentionProblem& p, const KernelArgs& args, const Inputs& inputs, const Buffers& b,
                 int64_t head, int64_t start, int64_t first_query, int64_t last_query) {
  const int64_t queries = last_query - first_query, kv_head = head / p.group();
  const T* k = args.in[1].as<const T>() + kv_head * p.dim;
  const T* v = args.in[2].as<const T>() + kv_head * p.dim;
  const tiles::Matrix q =
      tiles::rows_of(args.in[0].as<const T>() + first_query * p.q_row() + head * p.dim, p.q_row(), queries, p.dim, b.q);
  RowState state[kBlock];
  std::fill_n(b.out, queries * p.padded_dim, 0.0f);
  const int64_t first_seen = p.first_key(first_query, start);
  for (int64_t key = start + (first_seen - start) / kBlock * kBlock; key < last_query; key += kBlock) {
    const int64_t keys = std::min(kBlock, last_query - key);
    tiles::pack_transposed(k + key * p.kv_row(), p.kv_row(), keys, p.dim, b.keys, kBlock);
    const tiles::Matrix values = tiles::rows_of(v + key * p.kv_row(), p.kv_row(), keys, p.dim, b.values);
    for (int64_t row = 0; row < queries; row += tiles::kRows) {
      const int64_t rows = std::min<int64_t>(tiles::kRows, queries - row);
      const int64_t reach = std::min(keys, first_query + row + rows - key);  // keys the band's last row sees
      if (reach <= 0 || p.first_key(first_query + row, start) >= key + keys) continue;
      const int64_t width = tiles::round_up_lanes(reach);
      float* scores = b.scores + row * kBlock;
      float* out = b.out + row * p.padded_dim;
      tiles::product(rows, width, p.dim, {q.data + row * q.row, q.row, 1}, b.keys, kBlock, scores, kBlock, false);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t query = first_query + row + r;
        const int64_t low = std::max<int64_t>(0, p.first_key(query, start) - key);
        const int64_t high = std::clamp<int64_t>(query + 1 - key, 0, keys);
        const float factor = softmax_row(scores + r * kBlock, low, high, width, p.scale, state[row + r]);
        if (factor != 1.0f) {
          simd::for_lanes(p.padded_dim, [&](int64_t i, auto lanes) {
            float* at = out + r * p.padded_dim + i;
            simd::store(at, simd::load(at, lanes) * factor, lanes);
          });
        }
        if (inputs.stream != nullptr) {
          drop_probabilities(p, *inputs.stream, head, query, key - start, width, scores + r * kBlock, b.words);
        }
      }
      tiles::product(rows, p.padded_dim, reach, {scores, kBlock, 1}, values.data, values.row, out, p.padded_dim, true);
    }
  }
  for (int64_t row = 0; row < queries; ++row) {
    if (inputs.lse != nullptr) {
      inputs.lse[(first_query + row) * p.heads + head] = state[row].maximum + std::log(state[row].sum);
    }
    if (args.out[0].data == nullptr) continue;
    const float factor = 1.0f / state[row].sum;
    T* result = args.out[0].as<T>() + (first_query + row) * p.q_row() + head * p.dim;
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
      query_block<T>(p, args, inputs, buffers, head, start, first, std::min(end, first + kBlock));
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
