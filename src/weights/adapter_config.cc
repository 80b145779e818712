#include "weights/adapter_config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "io/tokenizer_steps.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxRank = 1 << 16;

// What does not change the result of an adapter that has been trained.
const std::set<std::string, std::less<>> kPassedOver = {"auto_mapping",
                                                        "inference_mode",
                                                        "revision",
                                                        "peft_version",
                                                        "task_type",
                                                        "peft_type",
                                                        "base_model_name_or_path",
                                                        "fan_in_fan_out",
                                                        "megatron_core",
                                                        "loftq_config",
                                                        "eva_config",
                                                        "corda_config",
                                                        "lora_ga_config",
                                                        "velora_config",
                                                        "qalora_group_size",
                                                        "runtime_config",
                                                        "num_attention_heads",
                                                        "num_layers",
                                                        "prompt_tuning_init",
                                                        "prompt_tuning_init_text",
                                                        "prompt_tuning_init_state_dict_path",
                                                        "tokenizer_name_or_path",
                                                        "tokenizer_kwargs"};

const std::set<std::string, std::less<>> kOfLora = {"r",
                                                    "lora_alpha",
                                                    "lora_dropout",
                                                    "target_modules",
                                                    "exclude_modules",
                                                    "bias",
                                                    "use_rslora",
                                                    "use_dora",
                                                    "modules_to_save",
                                                    "init_lora_weights",
                                                    "layers_to_transform",
                                                    "layers_pattern",
                                                    "rank_pattern",
                                                    "alpha_pattern",
                                                    "target_parameters",
                                                    "trainable_token_indices",
                                                    "ensure_weight_tying"};

const std::set<std::string, std::less<>> kOfPrompts = {"num_virtual_tokens",
                                                       "token_dim",
                                                       "num_transformer_submodules",
                                                       "encoder_reparameterization_type",
                                                       "encoder_hidden_size",
                                                       "encoder_num_layers",
                                                       "encoder_dropout"};

bool is_unset(const Json& value) {
  return value.is_null() || value == false || value == "none" ||
         ((value.is_object() || value.is_array() || value.is_string()) && value.empty());
}

struct Fields {
  const Json& json;
  const std::string& where;

  const Json& at(const char* key) const {
    static const Json kNull;
    const auto found = json.find(key);
    return found == json.end() ? kNull : *found;
  }
  [[noreturn]] void refuse(const char* key, const char* supported) const {
    fail(ErrorCode::kUnsupported, "{}: {} is {} (supported: {})", where, key, at(key).dump(), supported);
  }
  [[noreturn]] void wrong(const char* key, const char* want) const {
    fail(ErrorCode::kCorrupt, "{}: {} is {} (want {})", where, key, at(key).dump(), want);
  }
  std::string text(const char* key) const {
    if (at(key).is_null()) return {};
    if (!at(key).is_string()) wrong(key, "a text");
    return at(key).get<std::string>();
  }
  bool flag(const char* key) const {
    if (at(key).is_null()) return false;
    if (!at(key).is_boolean()) wrong(key, "true or false");
    return at(key).get<bool>();
  }
  int64_t whole(const char* key, const Json& value, int64_t least, int64_t most) const {
    const bool fits = value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX);
    const int64_t number = fits ? value.get<int64_t>() : least - 1;
    check(number >= least && number <= most, ErrorCode::kInvalidArgument, "{}: {} is {} (want {} to {})", where, key,
          value.dump(), least, most);
    return number;
  }
  double number(const char* key, const Json& value) const {
    const double number = value.is_number() ? value.get<double>() : NAN;
    check(std::isfinite(number) && std::abs(number) < 1e30, ErrorCode::kInvalidArgument, "{}: {} is {} (want a number)",
          where, key, value.dump());
    return number;
  }
  std::vector<std::string> texts(const char* key) const {
    std::vector<std::string> all;
    if (at(key).is_null()) return all;
    if (at(key).is_string()) return {at(key).get<std::string>()};
    if (!at(key).is_array()) wrong(key, "a list of names");
    for (const Json& one : at(key)) {
      if (!one.is_string() || one.get<std::string>().empty()) wrong(key, "a list of names");
      all.push_back(one.get<std::string>());
    }
    return all;
  }
  std::vector<int64_t> numbers(const char* key, const Json& value, int64_t most) const {
    std::vector<int64_t> all;
    for (const Json& one : value.is_array() ? value : Json::array({value})) all.push_back(whole(key, one, 0, most));
    return all;
  }
  template <typename Value, typename Read>
  std::vector<std::pair<std::string, Value>> patterns(const char* key, const Read& read) const {
    std::vector<std::pair<std::string, Value>> all;
    if (at(key).is_null()) return all;
    if (!at(key).is_object()) wrong(key, "an object of patterns");
    for (const auto& item : at(key).items()) all.emplace_back(item.key(), read(item.value()));
    return all;
  }
};

// A regular expression of names that end as `pattern` says, behind a dot.
std::string end_of(const std::string& pattern) { return "^(?:.*\\.)?(?:" + pattern + ")$"; }

ModuleNames module_names(const Fields& fields, const char* key) {
  ModuleNames names;
  if (!fields.at(key).is_string()) {
    names.names = fields.texts(key);
    return names;
  }
  const std::string text = fields.text(key);
  names.all_linear = text == "all-linear";
  if (!names.all_linear && !text.empty()) names.set_expression(text, fields.where + ": " + key);
  return names;
}

// The value of the first pattern that is the end of the name, a regular expression; else `otherwise`.
template <typename Value>
Value by_pattern(const std::vector<std::pair<std::string, Value>>& patterns, const std::string& module,
                 Value otherwise) {
  for (const auto& [pattern, value] : patterns)
    if (NamePattern(end_of(pattern), "pattern " + pattern).is_whole(module)) return value;
  return otherwise;
}

void read_tokens(const Fields& fields, PeftConfig& config) {
  constexpr const char* kKey = "trainable_token_indices";
  const Json& tokens = fields.at(kKey);
  if (is_unset(tokens)) return;
  const Json* rows = &tokens;
  if (tokens.is_object()) {
    if (tokens.size() != 1) fields.refuse(kKey, "rows of the embedding table alone");
    config.token_module = tokens.begin().key(), rows = &tokens.begin().value();
  }
  if (!rows->is_array()) fields.wrong(kKey, "a list of tokens");
  config.token_rows = fields.numbers(kKey, *rows, INT32_MAX);
  std::vector<int64_t> sorted = config.token_rows;
  std::ranges::sort(sorted);
  const auto twice = std::ranges::adjacent_find(sorted);
  check(twice == sorted.end(), ErrorCode::kCorrupt, "{}: {} names token {} twice", fields.where, kKey,
        twice == sorted.end() ? 0 : *twice);
}

void read_lora(const Fields& fields, PeftConfig& config) {
  // The other ways to begin move a part of the base's weights into the adapter, and do so again when they are loaded.
  const Json& begin = fields.at("init_lora_weights");
  const bool plain =
      begin.is_null() || begin.is_boolean() || begin == "gaussian" || begin == "eva" || begin == "orthogonal";
  if (!plain)
    fields.refuse("init_lora_weights",
                  "true, false, gaussian, eva, orthogonal: this one changes the base's weights, convert it in PEFT by "
                  "save_pretrained(path_initial_model_for_weight_conversion=...)");
  const auto rank = [&](const Json& value) { return fields.whole("r", value, 1, kMaxRank); };
  config.rank = rank(fields.at("r"));
  config.ranks = fields.patterns<int64_t>("rank_pattern", rank);
  const auto alpha = [&](const Json& value) { return fields.number("lora_alpha", value); };
  config.alpha = alpha(fields.at("lora_alpha"));
  config.alphas = fields.patterns<double>("alpha_pattern", alpha);
  for (const auto& item : config.ranks) NamePattern(end_of(item.first), fields.where + ": rank_pattern");
  for (const auto& item : config.alphas) NamePattern(end_of(item.first), fields.where + ": alpha_pattern");
  if (!fields.at("lora_dropout").is_null()) config.dropout = fields.number("lora_dropout", fields.at("lora_dropout"));
  check(config.dropout >= 0 && config.dropout < 1, ErrorCode::kInvalidArgument,
        "{}: lora_dropout is {} (want 0 <= p < 1)", fields.where, config.dropout);
  config.rslora = fields.flag("use_rslora"), config.dora = fields.flag("use_dora");
  config.tie_weights = fields.flag("ensure_weight_tying");
  if (!fields.at("bias").is_null()) config.bias = fields.text("bias");
  if (config.bias != "none" && config.bias != "all" && config.bias != "lora_only")
    fields.refuse("bias", "none, all, lora_only");
  config.targets = module_names(fields, "target_modules");
  config.excluded = module_names(fields, "exclude_modules");
  config.parameters = fields.texts("target_parameters");
  if (!fields.at("layers_to_transform").is_null())
    config.layers = fields.numbers("layers_to_transform", fields.at("layers_to_transform"), INT32_MAX);
  config.layers_pattern = fields.texts("layers_pattern");
  config.saved = fields.texts("modules_to_save");
  read_tokens(fields, config);
  check(!config.targets.empty() || !config.parameters.empty(), ErrorCode::kUnsupported,
        "{}: target_modules is {} and target_parameters {}: want one of them", fields.where,
        fields.at("target_modules").dump(), fields.at("target_parameters").dump());
}

void read_prompt(const Fields& fields, PeftConfig& config) {
  constexpr int64_t kMax = 1 << 20;
  const Json& submodules = fields.at("num_transformer_submodules");
  if (!submodules.is_null() && submodules != 1) fields.refuse("num_transformer_submodules", "1");
  config.virtual_tokens = fields.whole("num_virtual_tokens", fields.at("num_virtual_tokens"), 1, kMax);
  if (!fields.at("token_dim").is_null()) config.token_dim = fields.whole("token_dim", fields.at("token_dim"), 1, kMax);
  if (config.method != PeftMethod::kPTuning) return;
  config.encoder = fields.text("encoder_reparameterization_type");
  if (config.encoder.empty()) config.encoder = "MLP";
  if (config.encoder != "MLP" && config.encoder != "LSTM")
    fields.refuse("encoder_reparameterization_type", "MLP, LSTM");
  const auto size = [&](const char* key, int64_t otherwise) {
    return fields.at(key).is_null() ? otherwise : fields.whole(key, fields.at(key), 1, kMax);
  };
  config.encoder_hidden = size("encoder_hidden_size", config.token_dim);
  config.encoder_layers = size("encoder_num_layers", 2);
  if (!fields.at("encoder_dropout").is_null())
    config.encoder_dropout = fields.number("encoder_dropout", fields.at("encoder_dropout"));
}

}  // namespace

bool ends_as(const std::string& name, const std::string& end) {
  return name == end || (name.size() > end.size() && name.ends_with(end) && name[name.size() - end.size() - 1] == '.');
}

NamePattern::NamePattern(const std::string& pattern, const std::string& what)
    : regex_(std::make_shared<const Regex>(pattern, false, what)) {}

std::string_view NamePattern::first(const std::string& name) const {
  RegexScratch scratch;
  Regex::Span span;
  if (!regex_->find(name, 0, scratch, span)) return {};
  return std::string_view(name).substr(span.begin, span.end - span.begin);
}

bool NamePattern::is_whole(const std::string& name) const { return first(name).size() == name.size(); }

void ModuleNames::set_expression(const std::string& text, const std::string& what) {
  expression = text;
  pattern.emplace("^(?:" + text + ")$", what);
}

bool ModuleNames::matches(const std::string& module) const {
  if (pattern) return pattern->is_whole(module);
  return std::ranges::any_of(names, [&](const std::string& name) { return ends_as(module, name); });
}

bool PeftConfig::is_target(const std::string& module, bool linear) const {
  if (excluded.matches(module) || (excluded.all_linear && linear)) return false;
  if (targets.all_linear) return linear;
  if (!targets.matches(module)) return false;
  const bool whole = std::ranges::find(targets.names, module) != targets.names.end();
  if (layers.empty() || whole || !targets.expression.empty()) return true;
  for (const std::string& pattern : layers_pattern.empty() ? std::vector<std::string>{"[^.]*"} : layers_pattern) {
    const std::string_view found = NamePattern("^.*\\." + pattern + "\\.\\d+\\.", "layers_pattern").first(module);
    const size_t digits = found.size() < 2 ? found.npos : found.find_last_not_of("0123456789", found.size() - 2);
    int64_t layer = -1;
    if (digits != found.npos) std::from_chars(found.data() + digits + 1, found.data() + found.size(), layer);
    if (!found.empty()) return std::ranges::find(layers, layer) != layers.end();
  }
  return false;
}

int64_t PeftConfig::rank_of(const std::string& module) const { return by_pattern(ranks, module, rank); }

double PeftConfig::scale_of(const std::string& module) const {
  const auto own = static_cast<double>(rank_of(module));
  return by_pattern(alphas, module, alpha) / (rslora ? std::sqrt(own) : own);
}

PeftConfig parse_adapter_config(const std::string& json_text, const std::string& where) {
  const auto json = parse_json<Json>(json_text, where);
  check(json.is_object(), ErrorCode::kCorrupt, "{}: not a JSON object", where);
  const Fields fields{json, where};
  PeftConfig config;
  const std::string type = fields.text("peft_type");
  constexpr std::array<std::pair<const char*, PeftMethod>, 3> kMethods = {
      {{"LORA", PeftMethod::kLora}, {"PROMPT_TUNING", PeftMethod::kPromptTuning}, {"P_TUNING", PeftMethod::kPTuning}}};
  const auto* method = std::ranges::find(kMethods, type, &std::pair<const char*, PeftMethod>::first);
  if (method == kMethods.end()) fields.refuse("peft_type", "LORA, PROMPT_TUNING, P_TUNING");
  config.method = method->second;
  config.base = fields.text("base_model_name_or_path");
  const bool lora = config.method == PeftMethod::kLora;
  lora ? read_lora(fields, config) : read_prompt(fields, config);
  for (const auto& item : json.items())
    if (!kPassedOver.contains(item.key()) && !(lora ? kOfLora : kOfPrompts).contains(item.key()) &&
        !is_unset(item.value()))
      fields.refuse(item.key().c_str(), "null or false: it is not run");
  return config;
}

}  // namespace octet
