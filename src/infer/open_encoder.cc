// Opening the engine of an encoder: its folder, tokenizer, graphs and weights.
#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "infer/encoder_engine.h"

namespace octet {
bool encodes(const std::string& model, const EngineOptions& options) {
  const std::string& task = options.task;
  if (!path_exists(model + "/config.json")) {
    check(task != "embed", ErrorCode::kUnsupported, "{}: task embed requires a Hugging Face folder", model);
    return false;
  }
  const ModelConfig config = read_model_config(model);
  const bool encoder = !config.causal || config.head == Head::kNone;
  check(!encoder || task != "generate", ErrorCode::kUnsupported,
        "{}: a {} {} cannot generate text: it gives embeddings or scores (task embed)", model, config.architecture,
        config.causal ? "without a language modelling head" : "whose tokens see their whole sequence");
  return encoder || task == "embed";
}

std::unique_ptr<Engine> open_encoder(const std::string& model, const EngineOptions& options) {
  const LoggedTime start("start of the engine");
  const std::unique_ptr<WeightSource> weights = options.random_weights ? nullptr : open_weights(model);
  const ModelConfig config = weights ? weights->config() : read_model_config(model);
  EncoderParts parts{.folder = read_encoder_folder(model, config, options.pooling),
                     .tokenizer = open_tokenizer(model, options, config.vocab_size),
                     .vocab = config.vocab_size,
                     .token_types = config.token_types};
  if (options.context > 0) parts.folder.max_length = std::min(parts.folder.max_length, options.context);
  const Target target = target_of(resolve_device(options.device));
  const std::string otherwise = options.recipe.empty() ? "bf16" : options.recipe;
  const Recipe recipe = weights ? serving_recipe(*weights, target, options.recipe, "bf16") : parse_recipe(otherwise);
  parts.runner = std::make_unique<EncoderRunner>(
      config, EncoderProgramOptions{.target = target,
                                    .recipe = recipe,
                                    .pooling = parts.folder.pooling,
                                    .include_prompt = parts.folder.facts.include_prompt,
                                    .max_length = parts.folder.max_length,
                                    .max_step_tokens = std::max(options.max_step_tokens, parts.folder.max_length),
                                    .max_sequences = options.max_sequences});
  if (options.planned)
    options.planned({.weight_bytes = parts.runner->weight_bytes(),
                     .activation_bytes = parts.runner->activation_bytes(),
                     .context = parts.folder.max_length,
                     .free_bytes = free_memory(target.device),
                     .device = device_name(target.device),
                     .recipe = recipe.name});
  weights ? load_weights(*weights, parts.runner->executor()) : fill_random_weights(parts.runner->executor(), 1337);
  if (target.traits.captures_graphs) parts.runner->warm_up();
  EngineOptions chosen = options;
  chosen.task = "embed", chosen.device = device_name(target.device), chosen.recipe = recipe.name;
  chosen.context = parts.folder.max_length, chosen.pooling = parts.folder.facts.pooling, chosen.planned = nullptr;
  return std::make_unique<EncoderEngine>(std::move(parts), chosen);
}

}  // namespace octet
