// Workloads of the load benchmark: arrival times and lengths, of a fixed size or from recorded traces.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace octet {

struct LoadRequest {
  double arrival = 0;  // seconds since the start
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  // Traces with prefix reuse: ids of the prompt's blocks of kPrefixBlock tokens; equal ids mean equal tokens.
  std::vector<int64_t> prefix_blocks = {};
};
inline constexpr int64_t kPrefixBlock = 512;

struct Workload {
  std::string name;
  std::vector<LoadRequest> requests;  // sorted by arrival

  int64_t prompt_tokens() const;
  int64_t output_tokens() const;
};

Workload fixed_workload(int64_t requests, int64_t prompt_tokens, int64_t output_tokens);
// Azure LLM inference trace: CSV with TIMESTAMP, ContextTokens, GeneratedTokens. Mooncake: JSON lines with timestamp
// (ms), input_length, output_length, hash_ids. The first line determines the format. Reads the first `limit` requests;
// 0 = all. Throws kCorrupt with file and line.
Workload read_trace(const std::string& path, int64_t limit = 0);

// Replaces arrivals by a Poisson process of `rate` requests per second, in the same order; rate 0: all at once.
void set_poisson_arrivals(Workload& workload, double rate, uint64_t seed);
// Multiplies the request rate by `factor`: arrival times are divided by it.
void scale_arrivals(Workload& workload, double factor);

// Draws both lengths of each request evenly between (1 - ratio) and (1 + ratio) times what they are, at least 1.
void spread_lengths(Workload& workload, double ratio, uint64_t seed);

// Drops requests whose prompt and output exceed the context; returns their number.
int64_t drop_longer_than(Workload& workload, int64_t context);

// Random token ids of a prompt, a function of seed and index; equal prefix blocks give equal tokens.
std::vector<int32_t> prompt_of(const Workload& workload, size_t index, int64_t vocab, uint64_t seed);

}  // namespace octet
