// What is asked of an engine under load: arrival times and lengths, from fixed numbers or recorded traces.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace octet {

struct LoadRequest {
  double arrival = 0;  // seconds after the start
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  // Of traces with prefix reuse: ids of the prompt's blocks of kPrefixBlock tokens; equal ids hold equal tokens.
  std::vector<int64_t> prefix_blocks = {};
};
inline constexpr int64_t kPrefixBlock = 512;

struct Workload {
  std::string name;
  std::vector<LoadRequest> requests;  // by arrival

  int64_t prompt_tokens() const;
  int64_t output_tokens() const;
};

Workload fixed_workload(int64_t requests, int64_t prompt_tokens, int64_t output_tokens);
// Azure LLM inference trace: CSV with TIMESTAMP, ContextTokens, GeneratedTokens. Mooncake: JSON lines with timestamp
// (ms), input_length, output_length, hash_ids. The kind is told by the first line. The first `limit` requests; 0 = all.
// Throws kCorrupt naming file and line.
Workload read_trace(const std::string& path, int64_t limit = 0);

// Arrivals of a Poisson process of `rate` requests a second, in the same order; rate 0: all at once.
void set_poisson_arrivals(Workload& workload, double rate, uint64_t seed);
// Multiplies the rate of a trace: arrivals divided by `factor`.
void scale_arrivals(Workload& workload, double factor);

// Drops requests longer than the context, prompt and output together; returns how many.
int64_t drop_longer_than(Workload& workload, int64_t context);

// The prompt's token ids, in [low, vocab): random by seed and index, equal where prefix blocks are equal.
std::vector<int32_t> prompt_of(const Workload& workload, size_t index, int64_t vocab, uint64_t seed);

}  // namespace octet
