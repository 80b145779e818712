// The gradient of attention in tiles. Probabilities are recomputed from the saved log-sum-exp; with P = exp(S - lse), K
// the dropout factors, dP = (dout v^T) K, delta = dout . out:
//   dv += (P K)^T dout;  dS = scale P (dP - delta);  dq += dS k;  dk += dS^T q.
//
// A task loops over key blocks and, for each, the query blocks that see it. If the accumulators of all queries of a
// segment fit the scratch and there are enough tasks for the threads, one task per (segment, kv head) computes all
// three gradients; else one per query block computes dq and one per key block dk and dv, which costs two more GEMMs.
// Sums run over the same blocks in the same order either way, so the result does not depend on the number of threads.
#include "kernels/cpu/attention/amx_gradient.h"
#include "kernels/cpu/matmul/gemm.h"

namespace octet::cpu {
namespace {

constexpr int64_t kBlock = kAttentionBlock;

// Scratch of dq: a block more than the rows of all heads, for rows beyond the last query.
float* take_dq(Scratch& scratch, int64_t rows, int64_t width) { return scratch.take((rows + kBlock) * width); }

template <typename Loop>
int64_t task_bytes(const AttentionProblem& p, int64_t dq_rows) {
  Scratch scratch;
  const Loop loop(p, scratch);
  take_dq(scratch, dq_rows, loop.width);
  return scratch.used();
}

// Copies rows of `from`, from_row apart, to rows of a result.
template <typename T>
void store_rows(const float* from, int64_t from_row, int64_t rows, int64_t dim, T* to, int64_t to_row) {
  for (int64_t r = 0; r < rows; ++r) {
    simd::for_lanes(dim, [&](int64_t i, auto lanes) {
      simd::store(to + r * to_row + i, simd::load(from + r * from_row + i, lanes), lanes);
    });
  }
}

template <typename T, typename Loop>
void run_task(const AttentionProblem& p, const KernelArgs& args, const GradientInputs& inputs, const GradientTask& task,
              Scratch scratch) {
  Loop loop(p, scratch);
  const int64_t queries = task.last_query - task.first_query, heads = task.last_head - task.first_head;
  const int64_t dq_rows = task.want_dq ? queries * heads : 0, kv_offset = task.kv_head * p.dim;
  float* dq = take_dq(scratch, dq_rows, loop.width);
  if (task.want_dq) std::fill_n(dq, (dq_rows + kBlock) * loop.width, 0.0f);
  const auto q_rows = [&](size_t input, int64_t token, int64_t count, int64_t head) -> tiles::Rows<T> {
    return {args.in[input].as<const T>() + token * p.q_row() + head * p.dim, p.q_row(), count, p.dim};
  };
  const auto kv_rows = [&](size_t input, int64_t token, int64_t count) -> tiles::Rows<T> {
    return {args.in[input].as<const T>() + token * p.kv_row() + kv_offset, p.kv_row(), count, p.dim};
  };
  for (int64_t key = task.first_key; key < task.last_key; key += kBlock) {
    const int64_t keys = std::min(kBlock, task.last_key - key);
    loop.load_keys(kv_rows(1, key, keys), kv_rows(2, key, keys));
    for (float* sums : {loop.dk, loop.dv}) {
      if (task.want_dkv) std::fill_n(sums, kBlock * loop.width, 0.0f);
    }
    const int64_t last_seeing = p.window > 0 ? std::min(task.last_query, key + keys + p.window - 1) : task.last_query;
    const int64_t before = p.first_query(key, task.start) - task.start,
                  first_seeing = task.start + before / kBlock * kBlock;
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t query = std::max(task.first_query, first_seeing); query < last_seeing; query += kBlock) {
        const int64_t count = std::min(kBlock, task.last_query - query), of = task.first_head + head;
        loop.add(p, inputs, task,
                 {of, query, key, keys, q_rows(0, query, count, of), q_rows(4, query, count, of),
                  q_rows(6, query, count, of)},
                 dq + (task.want_dq ? head * queries + query - task.first_query : 0) * loop.width);
      }
    }
    for (int i : {1, 2}) {
      if (!task.want_dkv || args.out[i].data == nullptr) continue;
      store_rows(loop.rows_of(i == 1 ? loop.dk : loop.dv, keys), loop.width, keys, p.dim,
                 args.out[i].as<T>() + key * p.kv_row() + kv_offset, p.kv_row());
    }
  }
  if (!task.want_dq || args.out[0].data == nullptr) return;
  for (int64_t head = 0; head < heads; ++head) {
    store_rows(dq + head * queries * loop.width, loop.width, queries, p.dim,
               args.out[0].as<T>() + task.first_query * p.q_row() + (task.first_head + head) * p.dim, p.q_row());
  }
}

template <typename T>
void make_delta(const AttentionProblem& p, const KernelArgs& args, float* delta) {
  const T *out = args.in[4].as<const T>(), *dout = args.in[6].as<const T>();
  parallel_for(p.tokens * p.heads, 256, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) delta[i] = delta_of(out + i * p.dim, dout + i * p.dim, p.dim);
  });
}

template <typename T, typename Loop>
void attention_grad(const AttentionProblem& p, const KernelArgs& args) {
  // Without room for the deltas of all rows beside scratch for all threads, blocks of queries make their own.
  const int64_t all_deltas = (p.tokens * p.heads * 4 + 63) / 64 * 64, least = task_bytes<Loop>(p, kBlock);
  const int64_t delta_bytes = all_deltas + thread_count() * least <= std::ssize(args.workspace) ? all_deltas : 0;
  const GradientInputs inputs{AttentionInputs(p, args, 7), args.in[5].as<const float>(),
                              delta_bytes > 0 ? reinterpret_cast<float*>(args.workspace.data()) : nullptr};
  const int32_t* starts = inputs.starts;
  for (int i : {0, 1, 2}) clear_outside(args.out[i], starts[0], starts[inputs.segments]);
  if (delta_bytes > 0) make_delta<T>(p, args, inputs.delta);

  int64_t longest = 0, segments_used = 0;
  for (int64_t s = 0; s < inputs.segments; ++s) {
    longest = std::max(longest, inputs.length(s)), segments_used += inputs.length(s) > 0;
  }
  const int64_t whole_tasks = segments_used * p.kv_heads;
  const int64_t left = std::ssize(args.workspace) - delta_bytes;
  int64_t threads = threads_with_room("attention_grad", left, least);
  const bool whole = threads * task_bytes<Loop>(p, longest * p.group()) <= left && whole_tasks >= threads;
  if (whole) threads = std::clamp<int64_t>(whole_tasks, 1, threads);
  const auto scratch = [&](int64_t thread) {
    return Scratch(args.workspace.subspan(static_cast<size_t>(delta_bytes)), thread, threads);
  };
  if (whole) {
    for_each_task(
        inputs.segments, threads, [&](int64_t s) { return inputs.length(s) > 0 ? p.kv_heads : 0; },
        [&](int64_t thread, int64_t s, int64_t kv) {
          const int64_t first = starts[s], last = starts[s + 1], head = kv * p.group();
          run_task<T, Loop>(p, args, inputs, {first, kv, head, head + p.group(), first, last, first, last, true, true},
                            scratch(thread));
        });
    return;
  }
  if (args.out[0].data != nullptr) {
    for_each_task(
        inputs.segments, threads, [&](int64_t s) { return inputs.blocks(s) * p.heads; },
        [&](int64_t thread, int64_t s, int64_t task) {
          const int64_t first = starts[s], head = task % p.heads, query = first + task / p.heads * kBlock;
          const int64_t query_end = std::min<int64_t>(starts[s + 1], query + kBlock);
          const int64_t seen = first + (p.first_key(query, first) - first) / kBlock * kBlock;
          const int64_t last = std::min<int64_t>(starts[s + 1], p.end_key(query_end - 1));
          run_task<T, Loop>(p, args, inputs,
                            {first, head / p.group(), head, head + 1, seen, last, query, query_end, true, false},
                            scratch(thread));
        });
  }
  for_each_task(
      inputs.segments, threads, [&](int64_t s) { return inputs.blocks(s) * p.kv_heads; },
      [&](int64_t thread, int64_t s, int64_t task) {
        const int64_t first = starts[s], last = starts[s + 1], kv = task % p.kv_heads, head = kv * p.group();
        const int64_t key = first + task / p.kv_heads * kBlock, key_end = std::min(last, key + kBlock);
        run_task<T, Loop>(p, args, inputs,
                          {first, kv, head, head + p.group(), key, key_end, p.causal ? key : first, last, false, true},
                          scratch(thread));
      });
}

BoundKernel bind_tiled(const Graph& graph, const Node& node) {
  return bind_attention(graph, node, {0, 1, 2, 4, 6}, [](const AttentionProblem& problem, const KernelArgs& args) {
    with_float_type(args.in[0].dtype(), [&]<typename T>(T) { attention_grad<T, VectorGradient<T>>(problem, args); });
  });
}

BoundKernel bind_amx(const Graph& graph, const Node& node) {
#ifdef OCTET_AMX
  if (node.results[0].dtype == DType::kBF16 && amx_engine() != nullptr) {
    return bind_attention(graph, node, {0, 1, 2, 4, 6}, attention_grad<BF16, AmxGradient>);
  }
#endif
  return nullptr;
}

}  // namespace

std::vector<KernelEntry> attention_grad_kernels() {
  return {{Op::kAttentionGrad, "attention_grad_amx", bind_amx},
          {Op::kAttentionGrad, "attention_grad_tiled", bind_tiled}};
}

}  // namespace octet::cpu
