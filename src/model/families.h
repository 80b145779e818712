// A family of models: the facts that its config.json does not say, the fields that it does, its tensor names. Each has
// one function in a file of families/; families.cc lists them.
#pragma once

#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "model/model.h"

namespace octet {

// config.json and ModelConfig, field by field. A family is described once, by a function that names its fields; it runs
// in two directions: reading fills the config from JSON, writing the JSON from the config.
class ConfigFields {
 public:
  // Names of one field: the first is written, all are read.
  using Names = std::initializer_list<const char*>;

  static ConfigFields reader(const nlohmann::json& json, const std::string& where);
  static ConfigFields writer(nlohmann::json& json);
  bool reading() const { return from_ != nullptr; }

  // Throws kCorrupt where it is missing or of the wrong type.
  void required(Names names, int64_t& value);
  // Absent or null: the value stays. Whether the file has it; true when writing.
  template <typename T>  // int64_t, double, bool, std::string, std::vector of int64_t or std::string
  bool optional(Names names, T& value);
  // A positive number or null, which is 0 here. Absent: the value stays.
  void nullable(Names names, int64_t& value);
  // One probability under several names.
  void dropout(Names names, double& value);
  void activation(Names names, Activation& value, const char* tanh_name = "gelu_new");
  // The only value Octet supports; absent and null mean the same. Throws kUnsupported with the field and its value.
  void only(const char* name, bool value);
  void only(const char* name, int64_t value);
  void only(const char* name, double value);
  void only(const char* name, const char* value);
  void only_null(const char* name);
  // How many classes num_labels or id2label name; 2 where neither is there.
  void labels(int64_t& count);
  // Base, scaling and, with a `partial_name`, rotary_dim (`partial`: the default fraction of a head). The names are the
  // older ones outside rope_parameters. c.max_positions and the head size must be known.
  void rope(ModelConfig& c, const char* theta_name = "rope_theta", const char* partial_name = nullptr,
            double partial = 1);
  // The object under `name`; an empty one where it is absent.
  ConfigFields nested(const char* name);
  [[noreturn]] void refuse(const char* name, const std::string& value, const std::string& runs) const;

 private:
  ConfigFields(const nlohmann::json* from, nlohmann::json* to, std::string where)
      : from_(from), to_(to), where_(std::move(where)) {}
  const nlohmann::json* find(Names names, const char** found) const;  // nullptr: absent or null
  template <typename T>
  bool read(Names names, T& value) const;
  template <typename T>
  void only_value(const char* name, const T& value);
  struct Rotary;
  void rope_parameters(Rotary& rotary, bool partial);
  void yarn_parameters(RopeOptions& rope);

  const nlohmann::json* from_;
  nlohmann::json* to_;
  std::string where_;
};

// Names of checkpoint tensors, without ".weight" and ".bias". Which of them a model has follows from its config.
struct TensorNames {
  const char *prefix = nullptr, *layer = nullptr;  // "model." of all but the head, "layers." of a layer's tensors
  const char *embed = nullptr, *norm = nullptr, *head = "lm_head", *norm1 = nullptr, *norm2 = nullptr;
  const char *parallel_norm1 = nullptr, *parallel_norm2 = nullptr;  // where Residual::kParallel has names of its own
  const char *post_norm1 = nullptr, *post_norm2 = nullptr;          // of Residual::kSandwich
  const char *qkv = nullptr, *q = nullptr, *k = nullptr, *v = nullptr, *o = nullptr;  // qkv, or q, k and v
  const char *up = nullptr, *down = nullptr, *gate = nullptr, *gate_up = nullptr;
  const char *positions = nullptr, *embed_norm = nullptr;
  // Of mixtures: "mlp.experts." in front of an expert's number, its linears behind; "mlp.shared_expert."
  const char *router = nullptr, *experts = nullptr, *shared = nullptr, *shared_router = nullptr;
  const char *expert_gate = "gate_proj", *expert_up = "up_proj", *expert_down = "down_proj";
  const char *types = nullptr, *transform = nullptr, *transform_norm = nullptr;  // of encoders
  const char *pooler = nullptr, *classes = nullptr, *next_sentence = nullptr;
  const char* class_dense = nullptr;  // the pooler under a classifier, where it has a name of its own
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

// Throws kUnsupported with the nearest name; `field` is what names it in the message.
const Family& family_of(const std::string& name, const std::string& field = "model.architecture");

}  // namespace octet
