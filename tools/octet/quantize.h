// What the formats of `octet quantize` share: its options, and texts to calibrate and to measure on.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "compress/compress_folder.h"
#include "octet/commands.h"

namespace octet {

struct QuantizeOptions {
  std::string model, out, to = "fp8", calibration, text;
  EngineOptions engine;
  int64_t max_tokens = 16384, length = 512;
  int threads = 0;
  std::string weights = "row", activations, kv;  // fp8
  // int4, int8
  std::string method, group = "128", order = "off";
  bool asymmetric = false, no_bos = false;
  TextOptions read;
  std::vector<std::string> keep;
  int64_t samples = 128;
  uint64_t seed = 1;
  double damping = 0.01, alpha = 0.5, bound = 0;
};

struct QuantizeReport {
  std::optional<PerplexityResult> before, after;  // on options.text
  std::vector<LinearReport> linears;              // of int4, int8
};

// Writes options.out. Bars are shown on stderr; `alive` is called often, and may throw to end the work.
QuantizeReport quantize_model(
    const QuantizeOptions& options, const std::function<void()>& alive = [] {});

// A text as tokens: files, `most` tokens of them at least (0 = all), or a .bin of octet data. `tokenizer`: null where
// none is needed; `folder`: the model's.
EvalTokens read_tokens(const std::string& path, const Tokenizer* tokenizer, const QuantizeOptions& options,
                       const WeightSource& weights, const std::string& folder, int64_t most);
// The first `most` of its ids (0 = all), to calibrate on.
std::vector<int32_t> ids_of(const EvalTokens& tokens, int64_t most);

// Perplexity on up to max_tokens of them.
PerplexityResult measure_on(const std::string& title, const WeightSource& weights, const QuantizeOptions& options,
                            const Target& target, const EvalTokens& tokens, const Tokenizer* tokenizer,
                            const std::function<void()>& alive);

QuantizeReport quantize_to_integers(const QuantizeOptions& options, const WeightSource& weights,
                                    const std::string& folder, const std::function<void()>& alive);

}  // namespace octet
