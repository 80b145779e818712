// For tests of adapters: a model's weights in memory, random adapters of it, and the weights with one merged.
#pragma once

#include <fmt/ranges.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/rng.h"
#include "infer/engine_loop.h"
#include "infer/plan_runner.h"
#include "io/safetensors.h"

namespace octet {

inline std::vector<float> random_values(int64_t count, uint64_t seed, float width) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = width * (2 * uniform_from_bits(static_cast<uint32_t>(mix64(seed * 7919 + i + 1) >> 32)) - 1);
  return values;
}

class MemoryWeights final : public WeightSource {
 public:
  explicit MemoryWeights(const ModelConfig& config) {
    config_ = config;
    uint64_t seed = 1;
    for (const auto& [param, shape] : param_shapes(config)) {
      const bool norm = shape.rank() == 1 && param.ends_with("weight");
      values[param] = norm ? std::vector<float>(static_cast<size_t>(shape.elements()), 1.0f)
                           : random_values(shape.elements(), ++seed, 0.3f);
    }
  }
  ParamView view(const std::string& param, const Shape& shape) const override {
    const int64_t cols = shape.rank() > 1 ? shape[1] : 1;
    return view_of(DType::kF32, values.at(param).data(), shape[0], cols, param);
  }

  std::map<std::string, std::vector<float>> values;
};

struct TestTensor {
  int64_t rows = 0, cols = 1;
  std::vector<float> values = {};
};
struct TestAdapter {
  AdapterSpec spec = {};
  std::map<std::string, TestTensor> tensors = {};
  AdapterTensors views() const {
    AdapterTensors views;
    for (const auto& [name, tensor] : tensors)
      views[name] = view_of(DType::kF32, tensor.values.data(), tensor.rows, tensor.cols, name);
    return views;
  }
};

inline int64_t experts_of(const ModelConfig& config, const std::string& name) {
  return name.find(".experts.") != std::string::npos ? config.experts.count : 1;
}

// Low-rank addends for the linears of every layer, "attn.q" or several that one name holds ("attn.q+attn.v").
inline TestAdapter random_adapter(const ModelConfig& config, const std::vector<std::vector<std::string>>& linears,
                                  int64_t rank, double scale, uint64_t seed, bool dora = false) {
  const ParamShapes shapes = param_shapes(config);
  TestAdapter made;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (const std::vector<std::string>& names : linears) {
      LowRank low{.name = fmt::format("layers.{}.{}", layer, names[0]), .rank = rank, .scale = scale, .dora = dora};
      int64_t out = 0, in = 0;
      for (const std::string& name : names) {
        low.params.push_back(fmt::format("layers.{}.{}.weight", layer, name));
        const Shape& shape = shapes.at(low.params.back());
        out += shape[0], in = shape[1];
      }
      const int64_t as = experts_of(config, low.params[0]) * rank;
      made.tensors[low.name + ".lora_a"] = {as, in, random_values(as * in, ++seed, 0.3f)};
      made.tensors[low.name + ".lora_b"] = {out, rank, random_values(out * rank, ++seed, 0.3f)};
      if (dora) {
        std::vector<float> magnitude = random_values(out, ++seed, 0.3f);
        for (float& value : magnitude) value += 1;
        made.tensors[low.name + ".magnitude"] = {out, 1, std::move(magnitude)};
      }
      made.spec.low_rank.push_back(std::move(low));
    }
  }
  return made;
}

inline TestAdapter random_prompt(const ModelConfig& config, int64_t tokens, uint64_t seed) {
  return {.spec = {.virtual_tokens = tokens},
          .tensors = {{"prompt.weight", {tokens, config.hidden, random_values(tokens * config.hidden, seed, 0.5f)}}}};
}

// As PEFT writes it, of linears of attention in a Llama, each with a LowRank of its own.
inline void write_adapter_folder(const std::string& folder, const TestAdapter& adapter) {
  const LowRank& first = adapter.spec.low_rank.at(0);
  std::set<std::string> targets;
  std::vector<NamedType> types;
  std::map<std::string, const TestTensor*> tensors;
  for (const LowRank& low : adapter.spec.low_rank) {
    const std::string linear = low.name.substr(low.name.rfind('.') + 1) + "_proj";
    const std::string layer = low.name.substr(0, low.name.find(".attn"));
    targets.insert(linear);
    for (const auto& [own, theirs] : {std::pair("lora_a", "lora_A"), std::pair("lora_b", "lora_B")}) {
      const TestTensor& tensor = adapter.tensors.at(low.name + "." + own);
      const std::string name = fmt::format("base_model.model.model.{}.self_attn.{}.{}.weight", layer, linear, theirs);
      types.push_back({name, {DType::kF32, {tensor.rows, tensor.cols}}});
      tensors[name] = &tensor;
    }
  }
  std::filesystem::create_directories(folder);
  write_file(folder + "/adapter_config.json",
             fmt::format(R"({{"peft_type": "LORA", "r": {}, "lora_alpha": {}, "target_modules": ["{}"]}})", first.rank,
                         first.scale * static_cast<double>(first.rank), fmt::join(targets, R"(", ")")));
  SafetensorsWriter writer(folder + "/adapter_model.safetensors", types);
  for (const NamedType& type : std::vector<NamedType>(writer.tensors()))
    writer.write(type.name, std::as_bytes(std::span(tensors.at(type.name)->values)));
  writer.finish();
}

// Tables of a model that a fake runner stands for.
inline AdapterTables tables_of(const ModelConfig& config, int64_t slots, int64_t rank) {
  Graph graph("logits");
  Builder builder(graph);
  builder.output("logits", build_logits(builder, config, {.tokens = 1, .max_length = config.max_positions}));
  return {.slots = slots, .ranks = {rank}, .hidden = config.hidden, .linears = adapted_linears(graph)};
}

// W + scale B A, under DoRA with rows of the length of the magnitude.
inline MemoryWeights merged(const MemoryWeights& base, const TestAdapter& adapter) {
  MemoryWeights result = base;
  for (const LowRank& low : adapter.spec.low_rank) {
    const TestTensor &a = adapter.tensors.at(low.name + ".lora_a"), &b = adapter.tensors.at(low.name + ".lora_b");
    const int64_t in = a.cols, experts = experts_of(base.config(), low.params[0]);
    const size_t rows = b.values.size() / static_cast<size_t>(low.rank * experts);  // of B, an expert's
    size_t first = 0;
    for (const std::string& param : low.params) {
      std::vector<float>& weight = result.values.at(param);
      const size_t out = weight.size() / static_cast<size_t>(in * experts);
      for (size_t o = 0; o < weight.size() / static_cast<size_t>(in); ++o) {
        const size_t expert = o / out, row = expert * rows + first + o % out;
        double sum = 0;
        for (int64_t i = 0; i < in; ++i) {
          float& w = weight[o * static_cast<size_t>(in) + static_cast<size_t>(i)];
          double value = w;
          for (int64_t r = 0; r < low.rank; ++r)
            value +=
                low.scale * b.values[row * static_cast<size_t>(low.rank) + static_cast<size_t>(r)] *
                a.values[(expert * static_cast<size_t>(low.rank) + static_cast<size_t>(r)) * static_cast<size_t>(in) +
                         static_cast<size_t>(i)];
          w = static_cast<float>(value);
          sum += value * value;
        }
        if (!low.dora) continue;
        const double gain = adapter.tensors.at(low.name + ".magnitude").values[row] / std::sqrt(sum);
        for (int64_t i = 0; i < in; ++i) {
          float& w = weight[o * static_cast<size_t>(in) + static_cast<size_t>(i)];
          w = static_cast<float>(w * gain);
        }
      }
      first += out;
    }
  }
  return result;
}

}  // namespace octet
