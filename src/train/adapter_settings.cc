#include "train/adapter_settings.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "base/error.h"
#include "ir/nf4.h"
#include "model/hugging_face.h"
#include "weights/adapter_modules.h"
#include "weights/nf4_folder.h"
#include "weights/weights.h"

namespace octet {
namespace {

template <typename Number>
Number parse(const std::string& text, const char* setting, const std::string& whole, const char* want) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc() && end == text.data() + text.size() && value > Number(-1), ErrorCode::kInvalidArgument,
        "{}: '{}' (want {})", setting, whole, want);
  return value;
}

template <typename Number>
std::vector<std::pair<std::string, Number>> parse_patterns(const std::vector<std::string>& list, const char* setting) {
  constexpr const char* kWant = "PATTERN=NUMBER, as in q_proj=8";
  std::vector<std::pair<std::string, Number>> patterns;
  for (const std::string& text : list) {
    const size_t equals = text.rfind('=');
    check(equals != std::string::npos && equals > 0, ErrorCode::kInvalidArgument, "{}: '{}' (want {})", setting, text,
          kWant);
    patterns.emplace_back(text.substr(0, equals), parse<Number>(text.substr(equals + 1), setting, text, kWant));
    const NamePattern checked(patterns.back().first, setting);
    check(patterns.back().second > 0, ErrorCode::kInvalidArgument, "{}: '{}' (want a number above 0)", setting, text);
  }
  return patterns;
}

// A regular expression of whole module names, as PEFT takes one in place of a list.
bool is_expression(const std::string& name) { return name.find_first_of("*()[]|\\+?^$") != std::string::npos; }

ModuleNames module_names(const std::vector<std::string>& list, const char* setting) {
  ModuleNames names;
  for (const std::string& name : list) {
    if (name == "all-linear") {
      names.all_linear = true;
    } else if (is_expression(name)) {
      check(list.size() == 1, ErrorCode::kInvalidArgument,
            "{}: '{}' is a regular expression, which stands alone, beside {} other names", setting, name,
            list.size() - 1);
      names.set_expression(name, setting);
    } else {
      names.names.push_back(name);
    }
  }
  return names;
}

std::string without_end(const std::string& name) { return name.substr(0, name.rfind('.')); }

// Modules of the model, by PEFT's names and by Octet's.
class Modules {
 public:
  Modules(const AdapterSettings& settings, const ModelConfig& model)
      : settings_(settings), config_(peft_config(settings, "")), model_(model), shapes_(param_shapes(model)) {}

  AdapterSpec spec() {
    if (settings_.is_prompt()) {
      spec_.virtual_tokens = settings_.virtual_tokens;
      if (settings_.method == "p_tuning")
        spec_.encoder_hidden = settings_.encoder_hidden > 0 ? settings_.encoder_hidden : model_.hidden;
      if (settings_.encoder == "lstm") spec_.encoder_layers = settings_.encoder_layers;
      return std::move(spec_);
    }
    spec_.token_rows = config_.token_rows;
    std::ranges::sort(spec_.token_rows);
    spec_.dropout = settings_.dropout;
    for (const AdapterModule& module : adapter_modules(model_)) {
      add_name(module.module);
      adapt(module);
    }
    if (settings_.bias == "all")
      for (const auto& [param, shape] : shapes_)
        if (param.ends_with(".bias")) train(param);
    for (const std::string& name : settings_.train) train_module(name);
    for (const std::string& name : config_.targets.names) require_match("adapter.targets", name);
    for (const std::string& name : config_.excluded.names) require_match("adapter.exclude", name);
    check(!spec_.empty(), ErrorCode::kInvalidArgument, "adapter.targets {} match no module of the {} model, such as {}",
          fmt::join(settings_.targets, ","), model_.architecture, *names_.begin());
    std::ranges::sort(spec_.trained);
    return std::move(spec_);
  }

 private:
  void add_name(const std::string& module) {
    names_.insert(module);
    names_.insert(module.substr(module.rfind('.') + 1));
  }

  // The layer of "layers.3.attn.q", or -1.
  static int64_t layer_of(const std::string& name) {
    int64_t layer = -1;
    if (name.starts_with("layers.")) std::from_chars(name.data() + 7, name.data() + name.size(), layer);
    return layer;
  }

  bool names(const ModuleNames& list, const AdapterModule& module) {
    bool found = list.matches(module.module);
    for (const std::string& name : list.names) {
      const bool is = ends_as(module.module, name) || ends_as(module.name, name) ||
                      (!module.parameter.empty() && ends_as(module.module + "." + module.parameter, name));
      if (is) matched_.insert(name);
      found |= is;
    }
    return found;
  }

  bool in_layer(const AdapterModule& module) const {
    return config_.layers.empty() || std::ranges::count(config_.layers, layer_of(module.name)) > 0;
  }
  bool is_target(const AdapterModule& module) {
    const bool linear = module.kind == ModuleKind::kLinear && !module.head && !module.router;
    return names(config_.targets, module) || (config_.targets.all_linear && linear);
  }

  void adapt(const AdapterModule& module) {
    const bool target = is_target(module);  // looks which names match, in other layers too
    if (names(config_.excluded, module) || !in_layer(module)) return;
    if (target) return add(module, module.name, module.tensor.params);
    for (const std::string& param : module.tensor.params)  // of a fused module, by Octet's name of a part
      for (const std::string& name : config_.targets.names)
        if (module.kind == ModuleKind::kLinear && ends_as(without_end(param), name)) {
          matched_.insert(name);
          add(module, without_end(param), {param});
        }
  }

  void add(const AdapterModule& module, const std::string& name, const std::vector<std::string>& params) {
    if (!added_.insert(name).second) return;  // experts have a module each, and one LowRank
    const std::string key = module.parameter.empty() ? module.module : module.module + "." + module.parameter;
    spec_.low_rank.push_back({.name = name,
                              .params = params,
                              .rank = config_.rank_of(key),
                              .scale = config_.scale_of(key),
                              .dora = config_.dora});
    if (settings_.bias == "lora_only")
      for (const std::string& param : params)
        if (const std::string bias = without_end(param) + ".bias"; shapes_.contains(bias)) train(bias);
  }

  void train(const std::string& param) {
    if (std::ranges::find(spec_.trained, param) == spec_.trained.end()) spec_.trained.push_back(param);
  }

  void train_module(const std::string& name) {
    for (const CheckpointTensor& tensor : checkpoint_tensors(model_)) {
      const std::string module = without_end(tensor.name);
      add_name(module);
      for (const std::string& param : tensor.params) {
        if (!ends_as(module, name) && !ends_as(without_end(param), name)) continue;
        matched_.insert(name);
        train(param);
      }
    }
    require_match("adapter.train", name);
  }

  void require_match(const char* setting, const std::string& name) const {
    const std::vector<std::string> all(names_.begin(), names_.end());
    check(matched_.contains(name), ErrorCode::kInvalidArgument, "{}: no module of the {} model is called {}{}", setting,
          model_.architecture, name, if_near(name, all, "; the nearest is {}"));
  }

  const AdapterSettings& settings_;
  PeftConfig config_;
  const ModelConfig& model_;
  ParamShapes shapes_;
  AdapterSpec spec_;
  std::set<std::string> names_, matched_, added_;
};

}  // namespace

void add_settings(SettingsTable& t, AdapterSettings& a) {
  t.add(
      "adapter.method", &a.method,
      {.meaning = "train an adapter of the model in model.from, which is frozen, instead of the model: lora (low-rank "
                  "addends of linears); dora (with trained magnitudes of their rows); prompt_tuning (vectors in front "
                  "of every sequence); p_tuning (which an encoder makes)",
       .choices = {"none", "lora", "dora", "prompt_tuning", "p_tuning"}});
  t.add("adapter.rank", &a.rank, {.meaning = "of the low-rank addends", .min = 1, .max = 4096});
  t.add("adapter.alpha", &a.alpha, {.meaning = "an addend is multiplied by alpha / rank", .min = 0});
  t.add("adapter.rslora", &a.rslora, {.meaning = "by alpha / sqrt(rank) instead"});
  t.add("adapter.dropout", &a.dropout, {.meaning = "of an addend's input", .min = 0, .max = 0.999});
  t.add("adapter.targets", &a.targets,
        {.meaning = "modules that get an addend: all-linear (but the output head), names as PEFT has them (q_proj) or "
                    "Octet (attn.q), or one regular expression of whole names"});
  t.add("adapter.exclude", &a.exclude, {.meaning = "of these, modules that get none"});
  t.add("adapter.layers", &a.layers, {.meaning = "layers that get addends, from 0 on; empty = all"});
  t.add("adapter.rank_pattern", &a.ranks, {.meaning = "PATTERN=RANK: another rank for modules whose names match"});
  t.add("adapter.alpha_pattern", &a.alphas, {.meaning = "PATTERN=ALPHA, likewise"});
  t.add("adapter.train", &a.train,
        {.meaning = "modules of the base that are trained whole beside the addends, and saved with them: embed_tokens, "
                    "norm"});
  t.add("adapter.bias", &a.bias,
        {.meaning = "biases of the base that are trained: none, all, or lora_only, those of adapted linears",
         .choices = {"none", "all", "lora_only"}});
  t.add(
      "adapter.base", &a.base,
      {.meaning = "how the frozen linears and experts of the base are held: recipe, in the type that precision.recipe "
                  "multiplies; nf4, in 4 bits as bitsandbytes does (QLoRA), multiplied in bf16, or in float32 under "
                  "fp32 and tf32",
       .choices = {"recipe", "nf4"}});
  t.add("adapter.token_rows", &a.token_rows,
        {.meaning = "ids of tokens whose rows of the embedding table, and of a head tied to it, are trained"});
  t.add("adapter.virtual_tokens", &a.virtual_tokens,
        {.meaning = "prompt_tuning, p_tuning: vectors in front of a sequence, beside data.sequence_length tokens",
         .min = 1,
         .max = 65536});
  t.add(
      "adapter.encoder", &a.encoder,
      {.meaning = "p_tuning: mlp, of three linears; lstm, bidirectional, in front of two", .choices = {"mlp", "lstm"}});
  t.add("adapter.encoder_hidden", &a.encoder_hidden,
        {.meaning = "p_tuning: width of the encoder; 0 = the model's", .min = 0, .max = 1 << 20});
  t.add("adapter.encoder_layers", &a.encoder_layers,
        {.meaning = "adapter.encoder=lstm: its layers", .min = 1, .max = 64});
}

void validate(const AdapterSettings& a) {
  check(a.is_on() || a == AdapterSettings{}, ErrorCode::kInvalidArgument,
        "adapter.* are set, but adapter.method=none trains the whole model: set adapter.method=lora or dora, or leave "
        "them out");
  AdapterSettings other;
  other.method = a.method;
  other.base = a.base;
  if (a.is_prompt()) other.virtual_tokens = a.virtual_tokens;
  if (a.method == "p_tuning")
    other.encoder = a.encoder, other.encoder_hidden = a.encoder_hidden, other.encoder_layers = a.encoder_layers;
  check(!a.is_prompt() || a == other, ErrorCode::kInvalidArgument,
        "adapter.method={}: of adapter.* it takes base, virtual_tokens{} alone, and others are set", a.method,
        a.method == "p_tuning" ? ", encoder, encoder_hidden and encoder_layers" : "");
  check(
      a.is_prompt() || (a.virtual_tokens == other.virtual_tokens && a.encoder == other.encoder &&
                        a.encoder_hidden == 0 && a.encoder_layers == other.encoder_layers),
      ErrorCode::kInvalidArgument,
      "adapter.virtual_tokens, adapter.encoder, adapter.encoder_hidden and adapter.encoder_layers are of prompt_tuning "
      "and p_tuning, and adapter.method={}",
      a.method);
  check(a.encoder == "lstm" || a.encoder_layers == AdapterSettings().encoder_layers, ErrorCode::kInvalidArgument,
        "adapter.encoder_layers={} is of adapter.encoder=lstm: an MLP has three linears", a.encoder_layers);
  parse_patterns<int64_t>(a.ranks, "adapter.rank_pattern");
  parse_patterns<double>(a.alphas, "adapter.alpha_pattern");
  module_names(a.targets, "adapter.targets");
  module_names(a.exclude, "adapter.exclude");
}

PeftConfig peft_config(const AdapterSettings& a, const std::string& base) {
  PeftConfig config;
  config.base = base;
  config.rank = a.rank, config.alpha = a.alpha, config.dropout = a.dropout;
  config.rslora = a.rslora, config.dora = a.method == "dora", config.bias = a.bias;
  config.ranks = parse_patterns<int64_t>(a.ranks, "adapter.rank_pattern");
  config.alphas = parse_patterns<double>(a.alphas, "adapter.alpha_pattern");
  config.targets = module_names(a.targets, "adapter.targets");
  config.excluded = module_names(a.exclude, "adapter.exclude");
  for (const std::string& layer : a.layers)
    config.layers.push_back(parse<int64_t>(layer, "adapter.layers", layer, "whole numbers, such as 0,1"));
  config.saved = a.train;
  for (const std::string& id : a.token_rows)
    config.token_rows.push_back(parse<int64_t>(id, "adapter.token_rows", id, "ids of tokens, such as 50000,50001"));
  if (!a.is_prompt()) return config;
  config.method = a.method == "p_tuning" ? PeftMethod::kPTuning : PeftMethod::kPromptTuning;
  config.virtual_tokens = a.virtual_tokens, config.encoder_hidden = a.encoder_hidden;
  if (a.method == "p_tuning") config.encoder = a.encoder == "lstm" ? "LSTM" : "MLP";
  config.encoder_layers = a.encoder == "lstm" ? a.encoder_layers : 0;
  return config;
}

int64_t nf4_of(const AdapterSettings& settings, const std::string& folder) {
  if (settings.base != "nf4") return 0;
  const std::optional<int64_t> stored = folder.empty() ? std::nullopt : nf4_group_of(folder);
  check(stored != 0, ErrorCode::kUnsupported,
        "adapter.base=nf4: {} is in fp4: leave adapter.base out, and its values are held in the type of "
        "precision.recipe",
        folder);
  return stored.value_or(kNf4Nested);
}

AdapterSpec adapter_spec(const AdapterSettings& settings, const ModelConfig& model) {
  for (const int64_t layer : peft_config(settings, "").layers)
    check(layer < model.layers, ErrorCode::kInvalidArgument,
          "adapter.layers: {} of a model of {} layers (want 0 to {})", layer, model.layers, model.layers - 1);
  return Modules(settings, model).spec();
}

}  // namespace octet
