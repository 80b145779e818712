// What the formats of `octet quantize` share: its options, and texts to calibrate and to measure on.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "octet/commands.h"

namespace octet {

struct QuantizeOptions {
  std::string model, out, to = "fp8", calibration, text, tokenizer, device = "auto";
  int64_t max_tokens = 16384, length = 512;
  int threads = 0;
  std::string weights = "row", activations, kv;  // fp8
  // int4, int8
  std::string method, group = "128", order = "off";
  bool asymmetric = false;
  std::vector<std::string> keep;
  int64_t samples = 128;
  uint64_t seed = 1;
  double damping = 0.01, alpha = 0.5, bound = 0;
};

// A text as token ids: a file, `most` tokens of it at least (0 = all); or a .bin of octet data.
std::vector<int32_t> read_ids(const std::string& path, const Tokenizer* tokenizer, const WeightSource& weights,
                              int64_t most);

// Perplexity on ids, up to max_tokens of them.
PerplexityResult measure_on(const std::string& title, const WeightSource& weights, const QuantizeOptions& options,
                            const Target& target, const std::vector<int32_t>& ids, const Tokenizer* tokenizer);
// One line: before, after, the difference.
void print_perplexities(const std::string& folder, const PerplexityResult& before, const PerplexityResult& after);

void quantize_to_integers(const QuantizeOptions& options, const WeightSource& weights, const std::string& folder);

}  // namespace octet
