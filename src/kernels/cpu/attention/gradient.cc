// The gradient of attention in tiles. Probabilities are recomputed from the saved log-sum-exp; with P = exp(S - lse), K
// the dropout factors, dP = (dout v^T) K, delta = dout . out:
//   dv += (P K)^T dout;  dS = scale P (dP - delta);  dq += dS k;  dk += dS^T q.
//
// A task loops over key blocks and, for each, the query blocks that see it. If the accumulators of all queries of a
// segment fit the scratch and there are enough tasks for the threads, one task per (segment, kv head) computes all
// three gradients; else one per query block computes dq and one per key block dk and dv, which costs two more GEMMs.
// Sums run over the same blocks in the same order either way, so the result does not depend on the number of threads.
#include <atomic>

#include "base/threads.h"
#include "kernels/cpu/attention/amx_gradient.h"
#include "kernels/cpu/matmul/gemm_engine.h"

namespace octet::cpu {
namespace {

using simd::Floats;
using simd::Ints;
using tiles::kLanes;
using tiles::Matrix;

constexpr int64_t kBlock = kAttentionBlock;

// The inner loop of one thread in float32 vectors.
template <typename T>
struct VectorGradient {
  float *q, *dout, *keys, *keys_t, *values_t, *probabilities, *ds, *dk, *dv, *dq;
  uint32_t* words;
  VectorGradient(const AttentionProblem& p, int64_t dq_rows, Scratch scratch)
      : q(scratch.floats(kBlock * p.padded_dim)),
        dout(scratch.floats(kBlock * p.padded_dim)),
        keys(scratch.floats(kBlock * p.padded_dim)),
        keys_t(scratch.floats(kBlock * p.padded_dim)),
        values_t(scratch.floats(kBlock * p.padded_dim)),
        probabilities(scratch.floats(kBlock * kBlock)),
        ds(scratch.floats(kBlock * kBlock)),
        dk(scratch.floats(kBlock * p.padded_dim)),
        dv(scratch.floats(kBlock * p.padded_dim)),
        dq(scratch.floats(dq_rows * p.padded_dim)),
        words(reinterpret_cast<uint32_t*>(scratch.floats(random_buffer_words(kBlock) + kLanes))) {}
  void run(const AttentionProblem& p, const KernelArgs& args, const GradientInputs& inputs,
           const GradientTask& task) const;
  static int64_t bytes(const AttentionProblem& p, int64_t dq_rows) {
    return 4 * (p.padded_dim * (7 * kBlock + dq_rows) + 2 * kBlock * kBlock + random_buffer_words(kBlock) + kLanes) +
           11 * 64;
  }
};

// Replaces scores in `probabilities` by probabilities times dropout, and dP in `ds` by dS, for the rows of `from`.
void grad_row(const AttentionProblem& p, const GradientInputs& inputs, int64_t head, int64_t query, int64_t offset,
              int64_t low, int64_t high, int64_t width, float* scores, float* dp, float* keep, uint32_t* words) {
  const float lse = inputs.lse[query * p.heads + head], delta = inputs.delta[query * p.heads + head];
  if (inputs.stream != nullptr) {
    std::fill_n(keep, width, 1.0f);
    drop_probabilities(p, *inputs.stream, head, query, offset, width, keep, words);
  }
  for (int64_t c = 0; c < width; c += kLanes) {
    const Ints index = lane_indices(c);
    const auto seen = (index >= static_cast<int32_t>(low)) & (index < static_cast<int32_t>(high));
    const Slopes slopes = slopes_of(simd::load(scores + c, simd::Full{}), simd::load(dp + c, simd::Full{}), seen,
                                    inputs.stream != nullptr ? keep + c : nullptr, p.scale, lse, delta);
    simd::store(scores + c, slopes.kept, simd::Full{});
    simd::store(dp + c, slopes.ds, simd::Full{});
  }
}

template <typename T>
void VectorGradient<T>::run(const AttentionProblem& p, const KernelArgs& args, const GradientInputs& inputs,
                            const GradientTask& task) const {
  const VectorGradient& b = *this;
  const int64_t kv_offset = task.kv_head * p.dim, dq_rows = task.last_query - task.first_query;
  if (task.want_dq) std::fill_n(b.dq, (task.last_head - task.first_head) * dq_rows * p.padded_dim, 0.0f);
  for (int64_t key = task.first_key; key < task.last_key; key += kBlock) {
    const int64_t keys = std::min(kBlock, task.last_key - key);
    const T* k = args.in[1].as<const T>() + key * p.kv_row() + kv_offset;
    const T* v = args.in[2].as<const T>() + key * p.kv_row() + kv_offset;
    tiles::pack_transposed(k, p.kv_row(), keys, p.dim, b.keys_t, kBlock);
    tiles::pack_transposed(v, p.kv_row(), keys, p.dim, b.values_t, kBlock);
    const Matrix key_rows = tiles::rows_of(k, p.kv_row(), keys, p.dim, b.keys);
    if (task.want_dkv) {
      std::fill_n(b.dk, keys * p.padded_dim, 0.0f);
      std::fill_n(b.dv, keys * p.padded_dim, 0.0f);
    }
    const int64_t last_seeing = p.window > 0 ? std::min(task.last_query, key + keys + p.window - 1) : task.last_query;
    for (int64_t head = task.first_head; head < task.last_head; ++head) {
      for (int64_t query = std::max(task.first_query, key); query < last_seeing; query += kBlock) {
        const int64_t queries = std::min(kBlock, task.last_query - query);
        const Matrix q =
            tiles::rows_of(args.in[0].as<const T>() + query * p.q_row() + head * p.dim, p.q_row(), queries, p.dim, b.q);
        const Matrix dout = tiles::rows_of(args.in[6].as<const T>() + query * p.q_row() + head * p.dim, p.q_row(),
                                           queries, p.dim, b.dout);
        float* dq = b.dq + ((head - task.first_head) * dq_rows + query - task.first_query) * p.padded_dim;
        for (int64_t row = 0; row < queries; row += tiles::kRows) {
          const int64_t rows = std::min<int64_t>(tiles::kRows, queries - row);
          const int64_t reach = std::min(keys, query + row + rows - key);  // >= 1: query >= key
          const int64_t width = tiles::round_up_lanes(reach);
          float *scores = b.probabilities + row * kBlock, *dp = b.ds + row * kBlock;
          tiles::product(rows, width, p.dim, {q.data + row * q.row, q.row, 1}, b.keys_t, kBlock, scores, kBlock, false);
          tiles::product(rows, width, p.dim, {dout.data + row * dout.row, dout.row, 1}, b.values_t, kBlock, dp, kBlock,
                         false);
          alignas(64) float keep[kBlock];
          for (int64_t r = 0; r < rows; ++r) {
            const int64_t t = query + row + r;
            if (p.bias(head) != 0) add_bias(scores + r * kBlock, width, p.bias(head), key - t);
            grad_row(p, inputs, head, t, key - task.start, std::max<int64_t>(0, p.first_key(t, task.start) - key),
                     std::min(keys, t + 1 - key), width, scores + r * kBlock, dp + r * kBlock, keep, b.words);
          }
          if (task.want_dq) {
            tiles::product(rows, p.padded_dim, reach, {dp, kBlock, 1}, key_rows.data, key_rows.row,
                           dq + row * p.padded_dim, p.padded_dim, true);
          }
        }
        if (!task.want_dkv) continue;
        for (int64_t j = 0; j < keys; j += tiles::kRows) {
          const int64_t rows = std::min<int64_t>(tiles::kRows, keys - j);
          // Queries before key j do not see it; earlier bands wrote no column j.
          const int64_t from = std::clamp<int64_t>((key + j - query) / tiles::kRows * tiles::kRows, 0, queries);
          tiles::product(rows, p.padded_dim, queries - from, {b.probabilities + from * kBlock + j, 1, kBlock},
                         dout.data + from * dout.row, dout.row, b.dv + j * p.padded_dim, p.padded_dim, true);
          tiles::product(rows, p.padded_dim, queries - from, {b.ds + from * kBlock + j, 1, kBlock},
                         q.data + from * q.row, q.row, b.dk + j * p.padded_dim, p.padded_dim, true);
        }
      }
    }
    if (task.want_dkv) {
      if (args.out[1].data != nullptr) {
        store_rows(b.dk, p.padded_dim, keys, p.dim, args.out[1].as<T>() + key * p.kv_row() + kv_offset, p.kv_row());
      }
      if (args.out[2].data != nullptr) {
        store_rows(b.dv, p.padded_dim, keys, p.dim, args.out[2].as<T>() + key * p.kv_row() + kv_offset, p.kv_row());
      }
    }
  }
  if (!task.want_dq || args.out[0].data == nullptr) return;
  for (int64_t head = task.first_head; head < task.last_head; ++head) {
    store_rows(b.dq + (head - task.first_head) * dq_rows * p.padded_dim, p.padded_dim, dq_rows, p.dim,
               args.out[0].as<T>() + task.first_query * p.q_row() + head * p.dim, p.q_row());
  }
}

template <typename T>
void make_delta(const AttentionProblem& p, const KernelArgs& args, float* delta) {
  const T *out = args.in[4].as<const T>(), *dout = args.in[6].as<const T>();
  parallel_for(p.tokens * p.heads, 256, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Floats sum{};
      simd::for_lanes(p.dim, [&](int64_t d, auto lanes) {
        sum = simd::fma(simd::load(out + i * p.dim + d, lanes), simd::load(dout + i * p.dim + d, lanes), sum);
      });
      delta[i] = simd::sum(sum);
    }
  });
}

template <typename T>
void clear_outside(const AttentionProblem& p, const KernelArgs& args, int64_t begin, int64_t end) {
  for (int i = 0; i < 3; ++i) {
    if (args.out[i].data == nullptr) continue;
    const int64_t row = i == 0 ? p.q_row() : p.kv_row();
    std::fill(args.out[i].as<T>() + begin * row, args.out[i].as<T>() + end * row, T{});
  }
}

// Calls make(segment start, end, number within the segment) for the task of this number; per_segment counts tasks.
template <typename PerSegment, typename Make>
void run_tasks(const GradientInputs& inputs, int64_t threads, const PerSegment& per_segment, const Make& make) {
  std::atomic<int64_t> next{0};
  const auto work = [&](int64_t thread) {
    int64_t segment = 0, before = 0;
    for (int64_t task = next++;; task = next++) {
      while (segment < inputs.segments && task - before >= per_segment(segment)) before += per_segment(segment++);
      if (segment == inputs.segments) return;
      make(thread, inputs.starts[segment], inputs.starts[segment + 1], task - before);
    }
  };
  if (threads == 1) return work(0);
  parallel_threads([&](int thread, int) {
    if (thread < threads) work(thread);
  });
}

template <typename T, typename Walk>
void attention_grad(const AttentionProblem& p, const KernelArgs& args) {
  GradientInputs inputs{args.in[3].as<const int32_t>(), args.in[3].elements() - 1, nullptr,
                        args.in[5].as<const float>(), reinterpret_cast<float*>(args.workspace.data())};
  const int64_t end = p.check_segments(inputs.starts, inputs.segments);
  RandomStream stream;
  if (p.dropout > 0) {
    stream = RandomStream::of(args.in[7].as<const int64_t>(), p.key);
    inputs.stream = &stream;
  }
  clear_outside<T>(p, args, 0, inputs.starts[0]);
  clear_outside<T>(p, args, end, p.tokens);
  const int64_t delta_bytes = (p.tokens * p.heads * 4 + 63) / 64 * 64;
  const int64_t left = static_cast<int64_t>(args.workspace.size()) - delta_bytes;
  check(left >= Walk::bytes(p, kBlock), ErrorCode::kInternal,
        "attention_grad needs {} bytes of scratch, the workspace has {}", delta_bytes + Walk::bytes(p, kBlock),
        args.workspace.size());
  make_delta<T>(p, args, inputs.delta);

  int64_t longest = 0, segments_used = 0;
  for (int64_t s = 0; s < inputs.segments; ++s) {
    const int64_t length = inputs.starts[s + 1] - inputs.starts[s];
    longest = std::max(longest, length), segments_used += length > 0;
  }
  if (longest == 0) return;
  const int64_t whole_tasks = segments_used * p.kv_heads, whole_rows = longest * p.group();
  int64_t threads = std::min<int64_t>(thread_count(), left / Walk::bytes(p, kBlock));
  const bool whole = threads * Walk::bytes(p, whole_rows) <= left && whole_tasks >= threads;
  if (whole) threads = std::min(threads, whole_tasks);
  const int64_t share = left / threads / 64 * 64;
  const auto run = [&](int64_t thread, const GradientTask& task) {
    const int64_t dq_rows =
        task.want_dq ? (task.last_query - task.first_query) * (task.last_head - task.first_head) : 0;
    const Walk walk(p, dq_rows, Scratch(args.workspace.data() + delta_bytes + thread * share, share));
    walk.run(p, args, inputs, task);
  };
  const auto length_of = [&](int64_t s) { return int64_t{inputs.starts[s + 1]} - inputs.starts[s]; };
  if (whole) {
    run_tasks(
        inputs, threads, [&](int64_t s) { return length_of(s) > 0 ? p.kv_heads : 0; },
        [&](int64_t thread, int64_t first, int64_t last, int64_t kv) {
          run(thread, {first, last, kv, kv * p.group(), (kv + 1) * p.group(), first, last, first, last, true, true});
        });
    return;
  }
  const auto blocks_of = [&](int64_t s) { return (length_of(s) + kBlock - 1) / kBlock; };
  if (args.out[0].data != nullptr) {
    run_tasks(
        inputs, threads, [&](int64_t s) { return blocks_of(s) * p.heads; },
        [&](int64_t thread, int64_t first, int64_t last, int64_t task) {
          const int64_t head = task % p.heads, query = first + task / p.heads * kBlock;
          const int64_t query_end = std::min(last, query + kBlock);
          const int64_t seen = first + (p.first_key(query, first) - first) / kBlock * kBlock;
          run(thread, {first, last, head / p.group(), head, head + 1, seen, query_end, query, query_end, true, false});
        });
  }
  run_tasks(
      inputs, threads, [&](int64_t s) { return blocks_of(s) * p.kv_heads; },
      [&](int64_t thread, int64_t first, int64_t last, int64_t task) {
        const int64_t kv = task % p.kv_heads, key = first + task / p.kv_heads * kBlock;
        run(thread, {first, last, kv, kv * p.group(), (kv + 1) * p.group(), key, std::min(last, key + kBlock), key,
                     last, false, true});
      });
}

bool accepts(const Graph& graph, const Node& node) { return accepts_attention(graph, node, {0, 1, 2, 4, 6}); }

BoundKernel bind(const Graph& graph, const Node& node) {
  const AttentionProblem problem(graph, node);
  const bool bf16 = node.results[0].dtype == DType::kBF16;
  return [problem, bf16](const KernelArgs& args) {
    bf16 ? attention_grad<BF16, VectorGradient<BF16>>(problem, args)
         : attention_grad<float, VectorGradient<float>>(problem, args);
  };
}

#ifdef OCTET_AMX_ATTENTION
bool accepts_amx(const Graph& graph, const Node& node) {
  return accepts(graph, node) && node.results[0].dtype == DType::kBF16 && amx_engine() != nullptr;
}

BoundKernel bind_amx(const Graph& graph, const Node& node) {
  const AttentionProblem problem(graph, node);
  return [problem](const KernelArgs& args) { attention_grad<BF16, AmxGradient>(problem, args); };
}
#endif

}  // namespace

std::span<const KernelEntry> attention_grad_kernels() {
  static const KernelEntry kernels[] = {
#ifdef OCTET_AMX_ATTENTION
      {Op::kAttentionGrad, "attention_grad_amx", accepts_amx, bind_amx},
#endif
      {Op::kAttentionGrad, "attention_grad_tiled", accepts, bind}};
  return kernels;
}

}  // namespace octet::cpu
