// The modules of a model under the names that PEFT's folders have for them, and how rows of a LoRA's B lie in both.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "model/adapter.h"
#include "model/hugging_face.h"

namespace octet {

enum class ModuleKind : uint8_t {
  kLinear,
  kEmbedding,  // the table of tokens: A [rank, vocab], B [hidden, rank]
  kExpert,     // one of a mixture's, in a module of its own
  kExperts,    // all of a layer in one module with parameters gate_up_proj [experts, 2 I, H] and down_proj [., H, I]
};

struct AdapterModule {
  std::string module;          // "model.layers.0.self_attn.q_proj"; of kExperts "model.layers.0.mlp.experts"
  std::string parameter = {};  // of kExperts: "gate_up_proj" or "down_proj"
  std::string name;            // of its LowRank: "layers.0.attn.q", "layers.0.attn.qkv", "layers.0.mlp.experts.gate_up"
  ModuleKind kind = ModuleKind::kLinear;
  CheckpointTensor tensor = {};     // its weight; of kExperts the parameters alone
  int64_t out = 0, in = 0;          // of one expert
  int64_t expert = 0, experts = 0;  // of kExpert: which; of both, of how many
  bool head = false, router = false;
};

// The model with a head of its own: adapters may give a tied one its own values.
ModelConfig untied(const ModelConfig& config);

// Every module that may have a LoRA, of the untied model.
std::vector<AdapterModule> adapter_modules(const ModelConfig& config);

// B [out, rank] of a module between the order of its tensor's rows and that of its parameters, one after the other.
std::vector<float> to_parameter_rows(const AdapterModule& module, std::span<const float> b);
std::vector<float> to_tensor_rows(const AdapterModule& module, std::span<const float> b);

}  // namespace octet
