// What tells the families apart. Where a family's own config.json can say otherwise, these are its usual values.
#include <fmt/ranges.h>

#include "base/error.h"
#include "model/model.h"

namespace octet {
namespace {

// Layer norms and an ungated MLP of 4 * hidden; biases and positions differ.
ModelConfig gpt(Positions positions, Biases bias, Residual residual, Activation activation, bool tied) {
  ModelConfig c;
  c.positions = positions, c.bias = bias, c.residual = residual, c.activation = activation, c.tie_embeddings = tied;
  return c;
}

// RMS norms, rotary positions and a gated MLP.
ModelConfig llama(Biases bias = Biases::all(false)) {
  ModelConfig c;
  c.norm = Norm::kRms, c.positions = Positions::kRotary;
  c.bias = bias, c.tie_embeddings = false, c.activation = Activation::kSilu, c.gated = true;
  return c;
}

constexpr Biases kAll = {}, kNormsOnly = {.qkv = false, .out = false, .mlp = false};
constexpr Biases kWithHead = {.head = true}, kMlpAndHead = {.qkv = false, .out = false, .head = true};
constexpr Biases kQkvOnly = {.out = false, .mlp = false, .norm = false};

ModelConfig gpt_bigcode() {
  ModelConfig c;
  c.kv_heads = 1;
  return c;
}
ModelConfig opt() {
  ModelConfig c;
  c.activation = Activation::kRelu;
  c.position_offset = 2;
  return c;
}
ModelConfig gptj() {
  ModelConfig c = gpt(Positions::kRotary, kMlpAndHead, Residual::kParallelShared, Activation::kGeluTanh, false);
  c.rope.interleaved = true;
  return c;
}
ModelConfig bloom() {
  ModelConfig c = gpt(Positions::kAlibi, kAll, Residual::kSequential, Activation::kGeluTanh, true);
  c.embed_norm = true;
  return c;
}
ModelConfig falcon() {
  ModelConfig c = gpt(Positions::kRotary, kNormsOnly, Residual::kParallelShared, Activation::kGelu, true);
  c.kv_heads = 1;
  return c;
}
ModelConfig qwen3() {
  ModelConfig c = llama();
  c.qk_norm = true;
  return c;
}
ModelConfig gemma() {
  ModelConfig c = llama();
  c.activation = Activation::kGeluTanh;
  c.norm_plus_one = c.scale_embeddings = c.tie_embeddings = true;
  return c;
}
ModelConfig glm() {
  ModelConfig c = llama(kQkvOnly);
  c.rope.interleaved = true;
  return c;
}

struct Family {
  const char* name;
  ModelConfig facts;
};

const std::vector<Family>& families() {
  static const std::vector<Family> rows = {
      {"gpt2", {}},
      {"gpt_bigcode", gpt_bigcode()},
      {"gptj", gptj()},
      {"gpt_neox", gpt(Positions::kRotary, kAll, Residual::kParallel, Activation::kGelu, false)},
      {"opt", opt()},
      {"bloom", bloom()},
      {"falcon", falcon()},
      {"mpt", gpt(Positions::kAlibi, Biases::all(false), Residual::kSequential, Activation::kGelu, true)},
      {"phi", gpt(Positions::kRotary, kWithHead, Residual::kParallelShared, Activation::kGeluTanh, false)},
      {"llama", llama()},
      {"mistral", llama()},
      {"qwen2", llama(kQkvOnly)},
      {"qwen3", qwen3()},
      {"gemma", gemma()},
      {"glm", glm()},
  };
  return rows;
}

}  // namespace

std::vector<std::string> architectures() {
  std::vector<std::string> names;
  for (const Family& family : families()) names.push_back(family.name);
  return names;
}

ModelConfig model_family(const std::string& architecture) {
  for (const Family& family : families()) {
    if (architecture != family.name) continue;
    ModelConfig config = family.facts;
    config.architecture = architecture;
    return config;
  }
  fail(ErrorCode::kUnsupported, "model.architecture: '{}' is not one of {}{}", architecture,
       fmt::join(architectures(), ", "), if_near(architecture, architectures(), " (nearest: {})"));
}

}  // namespace octet
