#include "infer/encoder_folder.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace octet {
namespace {

using Json = nlohmann::json;

constexpr const char* kPoolings[] = {"cls", "mean", "last"};  // in the order of Pooling

Json read_optional(const std::string& path) { return path_exists(path) ? parse_json(read_file(path), path) : Json(); }

Pooling pooling_of(const std::string& name) {
  const auto* found = std::ranges::find(kPoolings, name);
  check(found != std::end(kPoolings), ErrorCode::kInvalidArgument, "pooling: \"{}\" (want cls, mean or last)", name);
  return static_cast<Pooling>(found - kPoolings);
}

Pooling read_pooling(const std::string& path) {
  const Json config = read_optional(path);
  check(config.is_object(), ErrorCode::kCorrupt, "{}: missing, or no object", path);
  std::vector<std::string> on;
  for (const auto& [key, value] : config.items())
    if (key.starts_with("pooling_mode_") && value == true) on.push_back(key.substr(13));
  if (config.contains("pooling_mode") && config["pooling_mode"].is_string()) on = {config["pooling_mode"]};
  check(on.size() == 1, ErrorCode::kUnsupported, "{}: {} poolings are on (want one)", path, on.size());
  if (on[0] == "cls_token" || on[0] == "cls") return Pooling::kCls;
  if (on[0] == "mean_tokens" || on[0] == "mean") return Pooling::kMean;
  if (on[0] == "lasttoken") return Pooling::kLast;
  fail(ErrorCode::kUnsupported, "{}: pooling {} is not supported (supported: cls, mean, last token)", path, on[0]);
}

void read_modules(const std::string& folder, const Json& modules, EncoderFolder& out) {
  out.facts.normalize = false;
  for (const Json& module : modules) {
    const std::string type = module.value("type", ""), path = folder + "/" + module.value("path", "");
    if (type.ends_with(".Pooling")) {
      out.pooling = read_pooling(path + "/config.json");
    } else if (type.ends_with(".Normalize")) {
      out.facts.normalize = true;
    } else {
      check(type.ends_with(".Transformer"), ErrorCode::kUnsupported,
            "{}/modules.json: module {} is not supported (supported: Transformer, Pooling, Normalize)", folder, type);
    }
  }
}

bool applies_sigmoid(const std::string& folder) {
  const Json config = read_optional(folder + "/config.json");
  std::string function = config.value("sbert_ce_default_activation_function", "");
  if (const auto own = config.find("sentence_transformers"); own != config.end() && own->is_object())
    function = own->value("activation_fn", function);
  if (function.empty() || function.ends_with("Sigmoid")) return true;
  check(function.ends_with("Identity"), ErrorCode::kUnsupported,
        "{}/config.json: activation {} of scores is not supported (supported: Sigmoid, Identity)", folder, function);
  return false;
}

}  // namespace

EncoderFolder read_encoder_folder(const std::string& folder, const ModelConfig& model, const std::string& pooling) {
  EncoderFolder out;
  constexpr int64_t kMostOfDecoder = 8192;  // whose positions reach further than one packed step should
  out.max_length = model.causal ? std::min(model.max_positions, kMostOfDecoder) : model.max_positions;
  out.pooling = model.causal ? Pooling::kLast : Pooling::kCls;
  if (const Json modules = read_optional(folder + "/modules.json"); modules.is_array())
    read_modules(folder, modules, out);
  if (const Json sizes = read_optional(folder + "/sentence_bert_config.json"); sizes.is_object())
    if (const auto most = sizes.find("max_seq_length"); most != sizes.end() && most->is_number_integer())
      out.max_length = std::clamp<int64_t>(most->get<int64_t>(), 1, out.max_length);
  if (const Json more = read_optional(folder + "/config_sentence_transformers.json"); more.is_object()) {
    out.facts.prompts = more.value("prompts", out.facts.prompts);
    if (const auto name = more.find("default_prompt_name"); name != more.end() && name->is_string())
      out.facts.default_prompt = *name;
    check(out.facts.default_prompt.empty() || out.facts.prompts.contains(out.facts.default_prompt), ErrorCode::kCorrupt,
          "{}/config_sentence_transformers.json: default_prompt_name \"{}\" is none of its prompts", folder,
          out.facts.default_prompt);
  }
  if (!pooling.empty()) out.pooling = pooling_of(pooling);
  out.facts.classifies = classifies(model);
  out.facts.width = out.facts.classifies ? model.labels : model.hidden;
  if (out.facts.classifies) out.pooling = Pooling::kCls, out.facts.normalize = false;
  out.facts.pooling = kPoolings[static_cast<size_t>(out.pooling)];
  out.sigmoid = out.facts.classifies && model.labels == 1 && applies_sigmoid(folder);
  return out;
}

}  // namespace octet
