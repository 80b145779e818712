// For tests: a small model of any family with random weights; nothing of it is on disk.
#pragma once

#include <functional>
#include <map>

#include "base/rng.h"
#include "weights/weights.h"

namespace octet {

inline ModelConfig small_model(const std::string& architecture) {
  ModelConfig config = model_family(architecture);
  config.vocab_size = 96, config.max_positions = 32, config.hidden = 64, config.layers = 2, config.heads = 2;
  config.kv_heads = std::min<int64_t>(config.kv_heads, 1), config.head_dim = 0, config.intermediate = 0;
  if (config.rope.rotary_dim != RopeOptions::kWholeHead)
    config.rope.rotary_dim = std::min<int64_t>(16, config.rotary_size());
  config.window.clear();
  ExpertsSpec& experts = config.experts;
  if (experts.count > 0) experts.count = 6, experts.per_token = 2;
  for (int64_t* width : {&experts.intermediate, &experts.shared_intermediate}) *width = std::min<int64_t>(*width, 128);
  return config;
}

class RandomWeights : public WeightSource {
 public:
  explicit RandomWeights(const ModelConfig& config, uint64_t seed = 1) {
    config_ = config;
    uint64_t stream = 0;
    for (const auto& [name, shape] : param_shapes(config)) {
      Philox rng(seed, ++stream);
      std::vector<float>& values = values_[name];
      values.resize(static_cast<size_t>(shape.elements()));
      // Vectors around 1, and channels of unlike size: what scales are for.
      for (size_t i = 0; i < values.size(); ++i)
        values[i] =
            static_cast<float>(shape.rank() == 1 ? 1 + 0.4 * rng.normal() + (i % 17 == 3 ? 4 : 0) : 0.1 * rng.normal());
    }
  }
  ParamView view(const std::string& param, const Shape& shape) const override {
    return view_of(DType::kF32, values_.at(param).data(), shape[0], shape.elements() / shape[0], param);
  }
  std::vector<float>& values(const std::string& param) { return values_.at(param); }

 private:
  std::map<std::string, std::vector<float>> values_;
};

// Tokens of some order, which a window of any length has all kinds of.
inline std::vector<int32_t> some_ids(int64_t count, int64_t vocab, uint64_t seed = 7) {
  Philox rng(seed);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocab)));
  return ids;
}

}  // namespace octet
