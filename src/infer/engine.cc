// Engine::open: starts an engine for a folder or a named model. Every error of the options or the folder is reported
// before weights are read.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "infer/encoder_engine.h"
#include "infer/engine_loop.h"
#include "infer/engine_settings.h"
#include "infer/model_drafter.h"
#include "infer/ngram_drafter.h"
#include "infer/ranked_runner.h"
#include "passes/serving_graphs.h"
#include "weights/adapter_folder.h"

namespace octet {
namespace {

void check_options(EngineOptions o) {
  settings_of(o).validate();
  check(o.tensor == 1 || o.draft.empty() || o.draft == "ngram", ErrorCode::kUnsupported,
        "tensor: draft models are not supported on several ranks (draft {}): give draft ngram", o.draft);
  check(!o.draft.empty() || o.accept_simulated < 0, ErrorCode::kInvalidArgument,
        "accept_simulated: {} requires a draft: give ngram", o.accept_simulated);
  check(o.max_step_tokens >= o.max_sequences, ErrorCode::kInvalidArgument,
        "max_step_tokens: {} is less than max_sequences {}: a step computes a token of each running sequence",
        o.max_step_tokens, o.max_sequences);
}

// `weights`: source of defaults for options left unset; null with random weights.
ServingOptions serving_options(const EngineOptions& o, const ModelConfig& model, const WeightSource* weights) {
  const LoggedTime time("device and recipe");
  const Target target = target_of(resolve_device(o.device));
  Recipe recipe = weights != nullptr ? serving_recipe(*weights, target, o.recipe, "bf16")
                                     : parse_recipe(o.recipe.empty() ? "bf16" : o.recipe);
  const bool stored_scales = weights != nullptr && weights->has_kv_scales();
  ServingOptions serving{.engine = o,
                         .target = target,
                         .recipe = recipe,
                         .cache_dtype = !o.kv_cache.empty() ? parse_cache_dtype(o.kv_cache)
                                        : stored_scales     ? DType::kE4M3
                                                            : recipe.compute};
  int64_t& context = serving.engine.context;
  if (context == 0) context = model.max_positions;
  const int64_t block =
      o.block_size > 0 ? o.block_size : serving.target.traits.block_size;  // a step must be able to fill one
  check(o.max_step_tokens >= block, ErrorCode::kInvalidArgument,
        "max_step_tokens: {} (want >= {}, the size of a cache block)", o.max_step_tokens, block);
  serving.cache_scales = stored_scales && is_fp8(serving.cache_dtype);
  serving.engine.max_step_tokens = std::clamp(o.max_sequences * context, block, o.max_step_tokens);
  return serving;
}

std::vector<int32_t> end_ids(const Tokenizer* tokenizer, const SpecialTokens& special, int64_t vocab) {
  std::vector<int32_t> ids;
  const int32_t known = tokenizer != nullptr ? tokenizer->eos_id() : -1;
  if (known >= 0) ids.push_back(known);
  for (int64_t id : special.eos)
    if (id != known && id < vocab) ids.push_back(static_cast<int32_t>(id));
  return ids;
}

EngineOptions chosen(EngineOptions options, const ServingOptions& serving) {
  options.device = device_name(serving.target.device);
  options.recipe = serving.recipe.name;
  options.kv_cache = cache_dtype_name(serving.cache_dtype);
  options.context = serving.engine.context;
  options.planned = nullptr;  // used by open() only
  return options;
}

// Of one side of a token.
int64_t cache_bytes(const ModelConfig& model, DType cache) {
  return model.layers * model.kv_heads * cached_head_bytes(model.head_size(), cache);
}

// Options of a draft model: those of the verifying one, a cache for as many tokens, and a share of the free memory.
EngineOptions draft_options(const EngineOptions& o, const ModelConfig& model, const ModelConfig& draft,
                            const ServingOptions& serving) {
  EngineOptions own = o;
  own.draft.clear();
  own.planned = nullptr;
  own.adapters.clear(), own.max_adapters = 0;
  const int64_t limit = draft.length_limit(), context = serving.engine.context;
  own.context = limit > 0 ? std::min(context, limit) : context;
  const DType cache = serving.cache_dtype;
  own.kv_cache_bytes = o.kv_cache_bytes * cache_bytes(draft, cache) / cache_bytes(model, cache);
  own.memory_fraction = o.draft_memory;
  return own;
}

void check_same_vocabulary(const std::string& draft, const Tokenizer* own, const Tokenizer* tokenizer, int64_t own_size,
                           int64_t size) {
  const bool known = own != nullptr && tokenizer != nullptr;
  check(known ? own->fingerprint() == tokenizer->fingerprint() : own_size == size, ErrorCode::kInvalidArgument,
        "draft {}: its vocabulary differs from the model's ({}, the model's is {}): give a model trained with the same "
        "tokenizer, or ngram",
        draft, known ? own->fingerprint() : fmt::format("{} tokens", own_size),
        known ? tokenizer->fingerprint() : fmt::format("{} tokens", size));
}

// What is known of a draft's vocabulary besides its size: a llama2.c file has no tokenizer beside it.
std::unique_ptr<Tokenizer> draft_tokenizer(const std::string& draft) {
  return is_folder(draft) ? open_tokenizer(draft, {.needs_tokenizer = false}, std::numeric_limits<int64_t>::max())
                          : nullptr;
}

// What random weights are made for.
ModelConfig random_model(const std::string& model) {
  return path_exists(model + "/config.json") ? read_model_config(model) : named_model(model);
}

// Before the verifying model's runner, which takes the memory that is left. Null: no speculation.
std::unique_ptr<Drafter> open_drafter(const EngineOptions& o, const ModelConfig& model, const ServingOptions& serving,
                                      const Tokenizer* tokenizer) {
  if (o.draft.empty()) return nullptr;
  if (o.draft == "ngram") {
    if (o.accept_simulated >= 0) return make_simulated_drafter();
    return std::make_unique<NgramDrafter>();
  }
  const LoggedTime time("draft model");
  const auto weights = o.random_weights ? nullptr : open_weights(o.draft);
  const ModelConfig draft = weights ? weights->config() : random_model(o.draft);
  const auto own = weights ? draft_tokenizer(o.draft) : nullptr;
  check_same_vocabulary(o.draft, own.get(), tokenizer, draft.vocab_size, model.vocab_size);
  const ServingOptions options = serving_options(draft_options(o, model, draft, serving), draft, weights.get());
  return std::make_unique<ModelDrafter>(weights ? make_runner(*weights, options) : make_random_runner(draft, options));
}

}  // namespace

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& model, const EngineOptions& o, int64_t vocab) {
  std::unique_ptr<Tokenizer> tokenizer;
  try {
    tokenizer = load_tokenizer(o.tokenizer.empty() ? tokenizer_folder(model) : o.tokenizer);
  } catch (const Error& error) {
    if ((o.needs_tokenizer && !o.random_weights) || !o.tokenizer.empty()) throw;
    log_warning("ids only: {}", error.message());
    return nullptr;
  }
  check(tokenizer->vocab_size() <= vocab, ErrorCode::kInvalidArgument,
        "the tokenizer has {} tokens, the model only {}: does it belong to this model?", tokenizer->vocab_size(),
        vocab);
  return tokenizer;
}

std::unique_ptr<Engine> Engine::open(const std::string& model, const EngineOptions& options) {
  check_options(options);
  if (encodes(model, options)) {
    check(options.adapters.empty() && options.max_adapters == 0, ErrorCode::kUnsupported,
          "adapters are for models that generate; this one encodes (task embed)");
    check(options.tensor == 1, ErrorCode::kUnsupported, "tensor: {} ranks (want 1 for encoders)", options.tensor);
    return open_encoder(model, options);
  }
  const LoggedTime start("start of the engine");
  std::unique_ptr<WeightSource> weights;
  if (!options.random_weights) {
    const LoggedTime time("opening the model");
    weights = open_weights(model);
  }
  const ModelConfig config = weights ? weights->config() : random_model(model);
  EngineParts parts;
  if (weights || !options.tokenizer.empty()) {
    const LoggedTime time("tokenizer");
    parts.tokenizer = open_tokenizer(model, options, config.vocab_size);
  }
  parts.eos_ids = end_ids(parts.tokenizer.get(), weights ? weights->special() : SpecialTokens(), config.vocab_size);
  ServingOptions serving = serving_options(options, config, weights.get());
  const AdapterPlan adapters = plan_adapters(options, config);
  serving.adapters = adapters.tables, serving.adapter_targets = adapters.targets;
  parts.drafter = open_drafter(options, config, serving, parts.tokenizer.get());
  parts.runner = weights ? open_runner(*weights, serving) : open_random_runner(config, serving);
  if (weights) {
    const LoggedTime time("closing the model");
    weights.reset();
  }
  if (parts.runner->follow()) return nullptr;
  parts.adapters = open_adapters(options, config, options.random_weights ? "" : model, parts.runner->limits().adapters);
  return std::make_unique<EngineLoop>(std::move(parts), chosen(options, serving));
}

}  // namespace octet
