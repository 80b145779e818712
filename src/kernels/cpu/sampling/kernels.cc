// The rows of sampling. Rows of logits are distributed over threads; a bf16 row is converted into scratch once. The
// choice is made by kernels/common/sampling.h, which the host's sampler calls too.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "base/threads.h"
#include "kernels/common/sampling.h"
#include "kernels/cpu/row_kernels.h"

namespace octet::cpu {
namespace {

using simd::Floats;

constexpr int64_t kPiece = 64 * simd::kLanes;  // elements summed in float32 before adding to a double
constexpr float kLargest = 3.402823466e38f;

// Logits that are not finite count as -infinity.
Floats ranks(Floats logits) { return simd::abs(logits) <= kLargest ? logits : simd::broadcast(-INFINITY); }

// log sum e^(logit - largest), given the largest finite one.
double log_sum_exp(const float* x, int64_t vocab, float largest) {
  double sum = 0;
  for (int64_t begin = 0; begin < vocab; begin += kPiece) {
    Floats piece{};
    simd::for_lanes(std::min(kPiece, vocab - begin), [&](int64_t i, auto lanes) {
      piece += simd::keep(simd::exp(ranks(simd::load(x + begin + i, lanes)) - largest), lanes, Floats{});
    });
    sum += static_cast<double>(simd::sum(piece));
  }
  return std::log(sum);
}

// A thread's scratch: a row of float32 logits, an id per token, sums by bin.
struct RowScratch {
  float* row;
  SampleScratch* sample;
  static int64_t bytes(int64_t vocab) {
    return (8 * vocab + static_cast<int64_t>(sizeof(SampleScratch)) + 127) / 64 * 64;
  }
  RowScratch(std::byte* begin, int64_t vocab)
      : row(reinterpret_cast<float*>(begin + sizeof(SampleScratch))), sample(reinterpret_cast<SampleScratch*>(begin)) {
    sample->tokens = {reinterpret_cast<int32_t*>(row + vocab), static_cast<size_t>(vocab)};
  }
};

// Row `index` of logits [R, V] as float32.
std::span<const float> row_of(const Tensor& logits, int64_t index, int64_t vocab, float* scratch) {
  const auto size = static_cast<size_t>(vocab);
  if (logits.dtype() == DType::kF32) return {logits.as<const float>() + index * vocab, size};
  convert(DType::kBF16, logits.as<const BF16>() + index * vocab, DType::kF32, scratch, vocab);
  return {scratch, size};
}

// body(row, scratch) for all rows, on as many threads as have scratch in the workspace.
template <typename Body>
void for_rows(const KernelArgs& args, int64_t rows, int64_t vocab, const Body& body) {
  const int64_t bytes = RowScratch::bytes(vocab);
  const int64_t threads = threads_with_room("sampling", std::ssize(args.workspace), bytes);
  std::atomic<int64_t> next{0};
  const auto work = [&](int64_t thread) {
    if (thread >= threads) return;
    const RowScratch scratch(args.workspace.data() + thread * bytes, vocab);
    for (int64_t row = next++; row < rows; row = next++) body(row, scratch);
  };
  if (rows <= 1) {
    work(0);
  } else {
    parallel_threads([&](int thread, int) { work(thread); });
  }
}

BoundKernel bind_feed(const Graph&, const Node&) {
  return [](const KernelArgs& args) {
    const int32_t *ids = args.in[0].as<int32_t>(), *sampled = args.in[1].as<int32_t>(),
                  *from = args.in[2].as<int32_t>();
    for (int64_t t = 0; t < args.out[0].elements(); ++t) {
      check(from[t] < args.in[1].elements(), ErrorCode::kInvalidArgument,
            "select_token_ids: token {} is fed from {} of {}", t, from[t], args.in[1].elements());
      args.out[0].as<int32_t>()[t] = from[t] >= 0 ? std::max(sampled[from[t]], 0) : ids[t];
    }
  };
}

template <typename T>
void adjust_logits(const KernelArgs& args) {
  const int64_t rows = args.out[0].shape()[0], vocab = args.out[0].shape()[1];
  T* logits = args.out[0].as<T>();
  const int32_t* entries = args.in[1].as<int32_t>();
  const auto write = [&](int64_t at, float value) { simd::store(logits + at, simd::broadcast(value), simd::Part{1}); };
  for (int64_t e = 0; e < args.in[1].shape()[0]; ++e) {
    const int64_t row = entries[2 * e], token = entries[2 * e + 1], at = row * vocab + token;
    if (row < 0) continue;
    check(row < rows && token >= 0 && token < vocab, ErrorCode::kInvalidArgument,
          "adjust_logits: entry {} is token {} of row {}, of {} rows of {}", e, token, row, rows, vocab);
    const float* values = args.in[2].as<float>() + 3 * e;
    const float biased = simd::load(logits + at, simd::Part{1})[0] + values[0];
    write(at, (biased > 0 ? biased / values[1] : biased * values[1]) - values[2]);
  }
  if (args.in.size() < 4 || args.in[3].data == nullptr) return;
  const int64_t masks = args.in[3].shape()[0], words = args.in[3].shape()[1];
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t mask = args.in[4].as<int32_t>()[row];
    if (mask < 0) continue;
    check(mask < masks, ErrorCode::kInvalidArgument, "adjust_logits: row {} asks for mask {} of {}", row, mask, masks);
    for (int64_t word = 0; word < words; ++word) {
      for (uint32_t bits = ~args.in[3].as<uint32_t>()[mask * words + word]; bits != 0; bits &= bits - 1) {
        const int64_t token = word * 32 + std::countr_zero(bits);
        if (token < vocab) write(row * vocab + token, -INFINITY);
      }
    }
  }
}

BoundKernel bind_adjust(const Graph&, const Node& node) {
  if (!is_f32_or_bf16(node.results[0].dtype)) return nullptr;
  return with_float_type(node.results[0].dtype, []<typename T>(T) -> BoundKernel {
    return [](const KernelArgs& args) {
      copy_tensor(args.in[0], args.out[0]);
      adjust_logits<T>(args);
    };
  });
}

SampleRow parameters_of(const KernelArgs& args, int64_t row) {
  const float* params = args.in[1].as<float>() + 3 * row;
  const int64_t* seeds = args.in[3].as<int64_t>() + 3 * row;
  return {.temperature = params[0],
          .top_p = params[1],
          .min_p = params[2],
          .top_k = args.in[2].as<int32_t>()[row],
          .seed = seeds[0],
          .sequence = seeds[1],
          .position = seeds[2]};
}

BoundKernel bind_sample(const Graph& graph, const Node& node) {
  const Value raw_logits = node.operand("raw_logits");
  if (!is_f32_or_bf16(graph.dtype(node.inputs[0]))) return nullptr;
  if (raw_logits.exists() && !is_f32_or_bf16(graph.dtype(raw_logits))) return nullptr;
  const int64_t rows = graph.shape(node.inputs[0])[0], vocab = graph.shape(node.inputs[0])[1];
  return [=](const KernelArgs& args) {
    const bool raw = args.in.size() > 4 && args.in[4].data != nullptr;
    for_rows(args, rows, vocab, [&](int64_t row, const RowScratch& scratch) {
      std::span<const float> logits = row_of(args.in[0], row, vocab, scratch.row);
      const int32_t token = sample_from(logits, parameters_of(args, row), *scratch.sample);
      if (args.out[0].data != nullptr) args.out[0].as<int32_t>()[row] = token;
      if (args.out[1].data == nullptr) return;
      float logprob = -INFINITY;
      if (raw) logits = row_of(args.in[4], row, vocab, scratch.row);
      if (const int32_t likeliest = largest_logit(logits); token >= 0 && likeliest >= 0) {
        const float logit = logits[static_cast<size_t>(token)];
        const double largest = logits[static_cast<size_t>(likeliest)];
        const double log_sum = log_sum_exp(logits.data(), vocab, logits[static_cast<size_t>(likeliest)]);
        if (std::isfinite(logit)) logprob = static_cast<float>(logit - largest - log_sum);
      }
      args.out[1].as<float>()[row] = logprob;
    });
  };
}

// Writes the ids of the k most likely tokens, ties by id, to the front of `ids` (size V).
void likeliest_tokens(std::span<const float> logits, int64_t k, std::span<int32_t> ids) {
  const auto rank = [&](int32_t id) {
    const float logit = logits[static_cast<size_t>(id)];
    return std::isfinite(logit) ? logit : -INFINITY;
  };
  const auto likelier = [&](int32_t a, int32_t b) {
    const float x = rank(a), y = rank(b);
    return x > y || (x == y && a < b);
  };
  std::iota(ids.begin(), ids.end(), 0);
  std::partial_sort(ids.begin(), ids.begin() + k, ids.end(), likelier);
}

BoundKernel bind_top(const Graph& graph, const Node& node) {
  if (!is_f32_or_bf16(graph.dtype(node.inputs[0]))) return nullptr;
  const int64_t rows = graph.shape(node.inputs[0])[0], vocab = graph.shape(node.inputs[0])[1];
  const int64_t k = node.results[0].shape[1];
  return [=](const KernelArgs& args) {
    for_rows(args, rows, vocab, [&](int64_t row, const RowScratch& scratch) {
      const std::span<const float> logits = row_of(args.in[0], row, vocab, scratch.row);
      const std::span<int32_t> ids = scratch.sample->tokens;
      likeliest_tokens(logits, k, ids);
      if (args.out[1].data != nullptr) std::copy_n(ids.begin(), k, args.out[1].as<int32_t>() + row * k);
      if (args.out[0].data == nullptr) return;
      const float largest = logits[static_cast<size_t>(ids[0])];
      const double log_sum = log_sum_exp(logits.data(), vocab, largest);
      for (int64_t i = 0; i < k; ++i) {
        const float logit = logits[static_cast<size_t>(ids[static_cast<size_t>(i)])];
        args.out[0].as<float>()[row * k + i] =
            std::isfinite(logit) ? static_cast<float>(static_cast<double>(logit) - largest - log_sum) : -INFINITY;
      }
    });
  };
}

}  // namespace

std::vector<KernelEntry> sampling_kernels() {
  return {{Op::kSelectTokenIds, "select_token_ids_copy", bind_feed},
          {Op::kAdjustLogits, "adjust_logits_scatter", bind_adjust},
          {Op::kSample, "sample_bins", bind_sample},
          {Op::kTopLogprobs, "top_logprobs_heap", bind_top}};
}

}  // namespace octet::cpu
