#include "octet/evaluate.h"

#include <cmath>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "build_info.h"
#include "passes/serving_graphs.h"
#include "train/checkpoint.h"
#include "weights/adapter_folder.h"

namespace octet {
namespace {

// Whether the run that a checkpoint is of keeps documents apart.
bool separates_documents(const std::string& checkpoint) {
  if (!path_exists(checkpoint + "/run.json")) return false;
  RunConfig config;
  try {
    settings_of(config).load_yaml_text(read_run_state(checkpoint).settings, checkpoint + "/run.json");
  } catch (const Error& error) {
    log_warning("unknown whether training separated documents: {}", error.message());
  }
  return config.separate_documents;
}

}  // namespace

PerplexityResult evaluate_texts(const EvaluateOptions& options, const TokensDone& on_progress) {
  const std::string folder = model_folder(options.model);
  const EngineOptions& engine = options.engine;
  const std::string adapter = only_adapter(engine);
  const auto weights = adapter.empty() ? open_weights(folder) : open_adapted(engine.adapters.at(adapter), folder);
  std::unique_ptr<Tokenizer> tokenizer;
  const std::string vocabulary = engine.tokenizer.empty() ? tokenizer_folder(folder) : engine.tokenizer;
  try {
    tokenizer = load_tokenizer(vocabulary);
  } catch (const Error&) {  // prepared tokens need it for bits per byte only
    if (!options.texts.empty() || !engine.tokenizer.empty()) throw;
  }
  PerplexityOptions how{.length = options.length > 0 ? options.length : weights->config().max_positions,
                        .stride = options.stride,
                        .windows = options.windows,
                        .max_tokens = options.max_tokens};
  const EvalTokens tokens = options.data.empty()
                                ? read_texts(options.texts, *tokenizer, options.text, options.bos, tokens_needed(how))
                                : open_set(options.data, *weights, vocabulary);
  how.target = target_of(resolve_device(engine.device));
  how.recipe = serving_recipe(*weights, how.target, engine.recipe);
  how.tensor = engine.tensor, how.rank_timeout = engine.rank_timeout, how.build = version_text("octet");
  how.separate_documents =
      tokens.set && options.separate_documents.value_or(tokens.set->is_packed() || separates_documents(folder));
  if (!engine.kv_cache.empty()) how.cache = parse_cache_dtype(engine.kv_cache);
  const PerplexityResult result = measure_perplexity(*weights, how, tokens, tokenizer.get(), on_progress);
  check(result.rank > 0 || std::isfinite(result.loss()), ErrorCode::kInvalidArgument,
        "the loss over {} tokens is {}: the model overflows under this recipe (recipe fp32 tells whether its weights "
        "are the cause)",
        result.tokens, result.loss());
  return result;
}

}  // namespace octet
