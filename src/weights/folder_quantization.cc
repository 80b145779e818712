#include "weights/folder_quantization.h"

#include "base/error.h"
#include "base/json.h"

namespace octet {
namespace {

using Json = nlohmann::json;

// A field of the configuration, with the path that errors name.
struct Field {
  const Json& json;
  std::string path;

  Field operator[](const char* key) const {
    static const Json kNull;
    const auto it = json.is_object() ? json.find(key) : json.end();
    return {json.is_object() && it != json.end() ? *it : kNull, path + "." + key};
  }
  [[noreturn]] void refuse(const std::string& supported) const {
    fail(ErrorCode::kUnsupported, "{} is {} (supported: {})", path, json.dump(), supported);
  }
  void want(const Json& value) const {
    if (json != value) refuse(value.dump());
  }
  void want_absent_or(const Json& value) const {
    if (!json.is_null() && json != value) refuse(value.dump());
  }
  std::string text() const { return json.is_string() ? json.get<std::string>() : ""; }
};

void check_e4m3(const Field& scheme) {
  scheme["type"].want("float");
  scheme["num_bits"].want(8);
  scheme["symmetric"].want_absent_or(true);
}

ScaleLayout weight_layout(const Field& weights) {
  if (!weights.json.is_object()) weights.refuse("an FP8 scheme");
  check_e4m3(weights);
  weights["dynamic"].want_absent_or(false);
  const Field strategy = weights["strategy"];
  if (strategy.text() == "channel") return ScaleLayout::kRow;
  if (strategy.text() == "tensor") return ScaleLayout::kTensor;
  if (strategy.text() != "block") strategy.refuse("channel, tensor, block");
  weights["block_structure"].want({128, 128});
  return ScaleLayout::kTile128;
}

ActivationScales activation_scales(const Field& activations) {
  if (!activations.json.is_object()) activations.refuse("an FP8 scheme: weights alone in FP8 are not run");
  check_e4m3(activations);
  const Field strategy = activations["strategy"], dynamic = activations["dynamic"];
  if (!dynamic.json.is_boolean()) dynamic.refuse("true, false");
  const bool as_it_comes = dynamic.json.get<bool>();
  if (strategy.text() == "token" && as_it_comes) return ActivationScales::kToken;
  // One scale a batch would make a request depend on its neighbours: each token gets its own.
  if (strategy.text() == "tensor") return as_it_comes ? ActivationScales::kToken : ActivationScales::kStatic;
  if (strategy.text() == "group" && as_it_comes) {
    activations["group_size"].want(128);
    return ActivationScales::kBlock;
  }
  strategy.refuse("token, tensor, group of 128");
}

FolderQuantization compressed_tensors(const Field& config) {
  FolderQuantization result;
  const Field format = config["format"];
  if (format.text() != "float-quantized") format.refuse("float-quantized");
  const Field groups = config["config_groups"];
  if (!groups.json.is_object() || groups.json.size() != 1) groups.refuse("one group");
  const Field group = groups[groups.json.begin().key().c_str()];
  group["targets"].want({"Linear"});
  group["output_activations"].want_absent_or(nullptr);
  group["format"].want_absent_or("float-quantized");
  result.weights = weight_layout(group["weights"]);
  result.activations = activation_scales(group["input_activations"]);
  const Field cache = config["kv_cache_scheme"];
  if (!cache.json.is_null()) {
    check_e4m3(cache);
    cache["strategy"].want("tensor");
    cache["dynamic"].want_absent_or(false);
    result.kv_cache = true;
  }
  for (const char* key : {"sparsity_config", "transform_config"}) {
    const Field field = config[key];
    if (!field.json.is_null() && !field.json.empty()) field.refuse("none");
  }
  return result;
}

FolderQuantization method_fp8(const Field& config) {
  config["fmt"].want_absent_or("e4m3");
  const Field scheme = config["activation_scheme"], blocks = config["weight_block_size"];
  if (scheme.text() != "dynamic" && scheme.text() != "static") scheme.refuse("dynamic, static");
  if (blocks.json.is_null()) {
    return {.weights = ScaleLayout::kTensor,
            .activations = scheme.text() == "static" ? ActivationScales::kStatic : ActivationScales::kToken};
  }
  blocks.want({128, 128});
  scheme.want("dynamic");
  return {.weights = ScaleLayout::kTile128, .activations = ActivationScales::kBlock};
}

Json scheme(const char* strategy, bool dynamic) {
  return {{"num_bits", 8}, {"type", "float"}, {"symmetric", true}, {"strategy", strategy}, {"dynamic", dynamic}};
}

}  // namespace

std::optional<FolderQuantization> parse_quantization(const std::string& json_text, const std::string& where) {
  const Json json = parse_json(json_text, where);
  check(json.is_object(), ErrorCode::kCorrupt, "{}: not a JSON object", where);
  const auto found = json.find("quantization_config");
  if (found == json.end() || found->is_null()) return std::nullopt;
  const Field config{*found, where + ": quantization_config"};
  check(found->is_object(), ErrorCode::kCorrupt, "{} is not an object", config.path);
  const Field method = config["quant_method"];
  FolderQuantization result;
  if (method.text() == "compressed-tensors") {
    result = compressed_tensors(config);
  } else if (method.text() == "fp8") {
    result = method_fp8(config);
  } else {
    method.refuse("compressed-tensors, fp8");
  }
  const bool blocks = result.weights == ScaleLayout::kTile128;
  check(blocks == (result.activations == ActivationScales::kBlock), ErrorCode::kUnsupported,
        "{}: weights in blocks of 128x128 go with activations in groups of 128, and with no others", config.path);
  return result;
}

std::string with_quantization(const std::string& json_text, const FolderQuantization& quantization) {
  Json json = parse_json(json_text, "config.json");
  Json weights = scheme(quantization.weights == ScaleLayout::kRow      ? "channel"
                        : quantization.weights == ScaleLayout::kTensor ? "tensor"
                                                                       : "block",
                        false);
  Json activations = scheme("token", true);
  if (quantization.weights == ScaleLayout::kTile128) weights["block_structure"] = {128, 128};
  if (quantization.activations == ActivationScales::kStatic) activations = scheme("tensor", false);
  if (quantization.activations == ActivationScales::kBlock) {
    activations = scheme("group", true);
    activations["group_size"] = 128;
  }
  const Json group = {{"targets", {"Linear"}},
                      {"weights", weights},
                      {"input_activations", activations},
                      {"output_activations", nullptr}};
  json["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                 {"format", "float-quantized"},
                                 {"quantization_status", "compressed"},
                                 {"config_groups", {{"group_0", group}}},
                                 {"ignore", {"lm_head"}},
                                 {"kv_cache_scheme", quantization.kv_cache ? scheme("tensor", false) : Json(nullptr)}};
  return json.dump(2) + "\n";
}

}  // namespace octet
