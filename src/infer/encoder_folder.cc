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

// The member `key` of the object in a file, or `otherwise` where it is absent or null.
template <typename T>
T member_of(const Json& object, const char* key, const T& otherwise, const std::string& file) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? otherwise : json_get<T>(object, key, file);
}

Pooling pooling_of(const std::string& name) {
  const auto* found = std::ranges::find(kPoolings, name);
  check(found != std::end(kPoolings), ErrorCode::kInvalidArgument, "pooling: \"{}\" (want cls, mean or last)", name);
  return static_cast<Pooling>(found - kPoolings);
}

Pooling read_pooling(const std::string& path, EncoderFacts& facts) {
  const Json config = read_optional(path);
  check(config.is_object(), ErrorCode::kCorrupt, "{}: missing, or not an object", path);
  std::vector<std::string> on;
  for (const auto& [key, value] : config.items())
    if (key.starts_with("pooling_mode_") && value == true) on.push_back(key.substr(13));
  if (config.contains("pooling_mode") && config["pooling_mode"].is_string()) on = {config["pooling_mode"]};
  facts.include_prompt = member_of(config, "include_prompt", true, path);
  check(on.size() == 1, ErrorCode::kUnsupported, "{}: {} poolings are enabled (want one)", path, on.size());
  if (on[0] == "cls_token" || on[0] == "cls") return Pooling::kCls;
  if (on[0] == "mean_tokens" || on[0] == "mean") return Pooling::kMean;
  if (on[0] == "lasttoken") return Pooling::kLast;
  fail(ErrorCode::kUnsupported, "{}: pooling {} is not supported (supported: cls, mean, last token)", path, on[0]);
}

void read_modules(const std::string& folder, const Json& modules, EncoderFolder& out) {
  out.facts.normalize = false;
  for (const Json& module : modules) {
    const std::string file = folder + "/modules.json", type = member_of<std::string>(module, "type", "", file),
                      path = folder + "/" + member_of<std::string>(module, "path", "", file);
    if (type.ends_with(".Pooling")) {
      out.pooling = read_pooling(path + "/config.json", out.facts);
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
  const std::string file = folder + "/config.json";
  auto function = member_of<std::string>(config, "sbert_ce_default_activation_function", "", file);
  if (const auto own = config.find("sentence_transformers"); own != config.end() && own->is_object())
    function = member_of(*own, "activation_fn", function, file);
  if (function.empty() || function.ends_with("Sigmoid")) return true;
  check(function.ends_with("Identity"), ErrorCode::kUnsupported,
        "{}/config.json: activation {} of scores is not supported (supported: Sigmoid, Identity)", folder, function);
  return false;
}

}  // namespace

EncoderFolder read_encoder_folder(const std::string& folder, const ModelConfig& model, const std::string& pooling) {
  EncoderFolder out;
  constexpr int64_t kMaxOfDecoder = 8192;  // whose positions reach further than one packed step should
  const bool decoder = model_family(model.architecture).causal;  // its tokens may see their whole sequence
  out.max_length = decoder ? std::min(model.max_positions, kMaxOfDecoder) : model.max_positions;
  out.pooling = decoder ? Pooling::kLast : Pooling::kCls;
  if (const Json modules = read_optional(folder + "/modules.json"); modules.is_array())
    read_modules(folder, modules, out);
  for (const auto& [file, key] :
       {std::pair("/sentence_bert_config.json", "max_seq_length"), {"/tokenizer_config.json", "model_max_length"}}) {
    const Json sizes = read_optional(folder + file);
    const Json most = sizes.is_object() ? sizes.value(key, Json()) : Json();
    if (!most.is_number_integer()) continue;  // a tokenizer without a limit has a number beyond integers
    out.max_length = std::clamp<int64_t>(most.get<int64_t>(), 1, out.max_length);
    break;
  }
  if (const Json more = read_optional(folder + "/config_sentence_transformers.json"); more.is_object()) {
    out.facts.prompts = member_of(more, "prompts", out.facts.prompts, folder + "/config_sentence_transformers.json");
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
