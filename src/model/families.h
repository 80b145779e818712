// A family of models: the facts that its config.json does not say, the fields that it does, its tensor names. Each has
// one function in a file of families/; families.cc lists them.
#pragma once

#include <optional>

#include "model/config_fields.h"

namespace octet {

// Names of checkpoint tensors, without ".weight" and ".bias". Which of them a model has follows from its config.
struct TensorNames {
  const char *prefix = nullptr, *layer = nullptr;  // "model." of all but the head, "layers." of a layer's tensors
  const char *embed = nullptr, *norm = nullptr, *head = "lm_head", *norm1 = nullptr, *norm2 = nullptr;
  const char *parallel_norm1 = nullptr, *parallel_norm2 = nullptr;  // where Residual::kParallel has names of its own
  const char *qkv = nullptr, *q = nullptr, *k = nullptr, *v = nullptr, *o = nullptr;  // qkv, or q, k and v
  const char *up = nullptr, *down = nullptr, *gate = nullptr, *gate_up = nullptr;
  const char *positions = nullptr, *embed_norm = nullptr;
  bool by_kv_head = false;  // qkv has [queries, key, value] of each key/value head; else all queries, keys, values
  bool transposed = false;  // linears are [in, out]
};

struct Family {
  const char* name;                             // model_type of config.json
  const char* class_name;                       // in its architectures
  ModelConfig facts;                            // defaults where config.json has a field
  void (*fields)(ConfigFields&, ModelConfig&);  // of config.json, in both directions
  TensorNames tensors;
  // eager_reference() of hugging_face.h; nullptr: transformers computes the trained model.
  std::optional<ModelConfig> (*eager)(const ModelConfig&) = nullptr;
};

Family gpt2_family(), gpt_bigcode_family(), gptj_family(), gpt_neox_family(), opt_family(), bloom_family();
Family falcon_family(), mpt_family(), phi_family(), llama_family(), mistral_family(), qwen2_family(), qwen3_family();
Family gemma_family(), glm_family();

// Throws kUnsupported with the nearest name; `field` is what names it in the message.
const Family& family_of(const std::string& name, const std::string& field = "model.architecture");

}  // namespace octet
