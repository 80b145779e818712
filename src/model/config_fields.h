// config.json and ModelConfig, field by field. A family is described once, by a function that names its fields; it runs
// in two directions: reading fills the config from JSON, writing the JSON from the config.
#pragma once

#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/model.h"

namespace octet {

class ConfigFields {
 public:
  // Names of one field: the first is written, all are read.
  using Names = std::initializer_list<const char*>;

  static ConfigFields reader(const nlohmann::json& json, const std::string& where);
  static ConfigFields writer(nlohmann::json& json);
  bool reading() const { return from_ != nullptr; }

  // Throws kCorrupt where it is missing or of the wrong type.
  void required(Names names, int64_t& value);
  // Absent or null: the value stays.
  void optional(Names names, int64_t& value);
  bool optional(Names names, double& value);  // whether the file has it
  void optional(Names names, bool& value);
  void optional(Names names, std::string& value);
  void optional(Names names, std::vector<std::string>& value);
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
  void exchange(Names names, T& value);
  template <typename T>
  void only_value(const char* name, const T& value);
  struct Rotary;
  void rope_parameters(Rotary& rotary, bool partial);

  const nlohmann::json* from_;
  nlohmann::json* to_;
  std::string where_;
};

}  // namespace octet
