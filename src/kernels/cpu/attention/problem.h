// What the kernels of attention share: the attributes of a node, its checked segments, tasks over them, and scratch.
#pragma once

#include <atomic>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/threads.h"
#include "kernels/common/keep_rule.h"
#include "kernels/cpu/attention/query_block.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/random_words.h"

namespace octet::cpu {

struct AttentionProblem : AttentionHeads {
  int64_t tokens, max_length;
  int64_t first_head;  // of these heads among those of the whole
  double dropout;
  uint32_t key = 0;
  KeepRule keep;

  AttentionProblem(const Graph& graph, const Node& node)
      : AttentionHeads(node),
        tokens(graph.shape(node.inputs[0]).rows()),
        max_length(node.attr<int64_t>("max_length")),
        first_head(node.attr<int64_t>("first_head")),
        dropout(node.attr<double>("dropout")) {
    causal = node.attr<bool>("causal");
    if (dropout <= 0) return;
    key = static_cast<uint32_t>(node.attr<int64_t>("key"));
    keep = KeepRule(node, dropout);
  }
};

// run(problem, args) for attention whose float operands, those numbered, share a type; else null. Not causal: no linear
// biases.
template <typename Run>
BoundKernel bind_attention(const Graph& graph, const Node& node, std::initializer_list<size_t> floats, const Run& run) {
  const DType dtype = node.results[0].dtype;
  if (!is_f32_or_bf16(dtype) || node.attr<double>("scale") <= 0) return nullptr;
  if (!node.attr<bool>("causal") && node.attr<double>("alibi") != 0) return nullptr;
  for (size_t i : floats) {
    if (graph.dtype(node.inputs[i]) != dtype) return nullptr;
  }
  return [run, problem = AttentionProblem(graph, node)](const KernelArgs& args) { run(problem, args); };
}

// The checked segments of one run, and its random stream if it has dropout.
struct AttentionInputs {
  const int32_t* starts;
  int64_t segments;
  std::optional<RandomStream> stream;

  AttentionInputs(const AttentionProblem& p, const KernelArgs& args, size_t rng)
      : starts(args.in[3].as<const int32_t>()), segments(args.in[3].elements() - 1) {
    for (int64_t s = 0; s < segments; ++s) {
      check(starts[s] >= 0 && starts[s] <= starts[s + 1] && starts[s + 1] <= p.tokens, ErrorCode::kInvalidArgument,
            "attention: segment {} is [{}, {}) of {} tokens: starts must not decrease and stay within the tokens", s,
            starts[s], starts[s + 1], p.tokens);
    }
    if (p.dropout > 0) stream = RandomStream::of(args.in[rng].as<const int64_t>(), p.key);
  }
  int64_t length(int64_t segment) const { return int64_t{starts[segment + 1]} - starts[segment]; }
  int64_t blocks(int64_t segment) const { return (length(segment) + kAttentionBlock - 1) / kAttentionBlock; }
};

// Zeros the rows of a result before the first and from the end of the last segment.
inline void clear_outside(const Tensor& result, int64_t begin, int64_t end) {
  if (result.data == nullptr) return;
  const int64_t rows = result.shape().rows(), row = result.shape().cols() * dtype_bytes(result.dtype());
  std::memset(result.data, 0, static_cast<size_t>(begin * row));
  std::memset(result.as<std::byte>() + end * row, 0, static_cast<size_t>((rows - end) * row));
}

// Calls body(thread, segment, number) for numbers [0, count(segment)) of all segments, in order, on up to `threads`
// threads.
template <typename Count, typename Body>
void for_each_task(int64_t segments, int64_t threads, const Count& count, const Body& body) {
  int64_t tasks = 0;
  for (int64_t s = 0; s < segments; ++s) tasks += count(s);
  std::atomic<int64_t> next{0};
  const auto work = [&](int64_t thread) {
    int64_t segment = 0, before = 0;  // tasks of the segments before
    for (int64_t task = next++; task < tasks; task = next++) {
      while (task - before >= count(segment)) before += count(segment++);
      body(thread, segment, task - before);
    }
  };
  if (tasks <= 1 || threads == 1) return work(0);
  parallel_threads([&](int thread, int) {
    if (thread < threads) work(thread);
  });
}

// As drop_probabilities, by bytes; `key`: of the batch's tokens. A row has every second byte of the eight draws behind
// each other that are its 64 keys.
inline void drop_by_bytes(const AttentionProblem& p, const RandomStream& stream, int64_t head, int64_t query,
                          int64_t key, int64_t count, float* probabilities, uint32_t* buffer) {
  const auto factor = static_cast<float>(p.keep.factor);
  for (int64_t i = 0; i < count; ++i) {
    if (i == 0 || (key + i) % 64 == 0)
      random_words(stream, 4 * keep_byte(p.tokens, p.first_head + head, query, (key + i) / 64 * 64).block, 32, buffer);
    const KeepByte at = keep_byte(p.tokens, 0, query, key + i);
    const auto* bytes = reinterpret_cast<const uint8_t*>(buffer) + at.block % 8 * 16;
    probabilities[i] = bytes[at.byte] >= p.keep.threshold ? probabilities[i] * factor : 0.0f;
  }
}

// Zeros the dropped probabilities of keys [0, count) of one query row and scales the others. first_offset: of the keys
// in the segment that begins at `start`.
inline void drop_probabilities(const AttentionProblem& p, const RandomStream& stream, int64_t head, int64_t query,
                               int64_t start, int64_t first_offset, int64_t count, float* probabilities,
                               uint32_t* buffer) {
  if (p.keep.bytes) return drop_by_bytes(p, stream, head, query, start + first_offset, count, probabilities, buffer);
  const auto element = static_cast<uint64_t>(((p.first_head + head) * p.tokens + query) * p.max_length + first_offset);
  const uint32_t* words = random_words(stream, element, count, buffer);
  const auto factor = static_cast<float>(p.keep.factor);
  simd::for_lanes(count, [&](int64_t i, auto lanes) {
    simd::Words bits;
    std::memcpy(&bits, words + i, sizeof bits);
    const simd::Floats kept = simd::load(probabilities + i, lanes) * factor;
    simd::store(probabilities + i, (bits >> 8) >= p.keep.threshold ? kept : simd::Floats{}, lanes);
  });
}
inline int64_t drop_buffer_words() { return random_buffer_words(kAttentionBlock) + simd::kLanes; }

// A bump allocator over a thread's share of the workspace, aligned to cache lines; over no memory it only counts.
class Scratch {
 public:
  Scratch() = default;
  Scratch(std::span<std::byte> workspace, int64_t thread, int64_t threads)
      : bytes_(static_cast<int64_t>(workspace.size()) / threads / 64 * 64),
        begin_(workspace.data() + thread * bytes_) {}
  template <typename T = float>
  T* take(int64_t count) {
    const int64_t at = used_;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    if (begin_ == nullptr) return nullptr;
    check(used_ <= bytes_, ErrorCode::kInternal, "attention needs {} bytes of scratch, has {}", used_, bytes_);
    return reinterpret_cast<T*>(begin_ + at);
  }
  int64_t used() const { return used_; }

 private:
  int64_t bytes_ = 0, used_ = 0;
  std::byte* begin_ = nullptr;
};

// What a Block takes.
template <typename Block, typename Problem>
int64_t scratch_bytes(const Problem& p) {
  Scratch scratch;
  const Block block(p, scratch);
  return scratch.used();
}

}  // namespace octet::cpu
