// What `octet quantize` and Python's octet.quantize run. FP8 and NF4 are here, what needs a calibration layer by layer
// in quantize_integers.cc.
#include "octet/quantize.h"

#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/threads.h"
#include "eval/calibrate.h"
#include "weights/adapter_folder.h"
#include "weights/quantize_nf4.h"

namespace octet {
namespace {

FolderQuantization scheme_of(const QuantizeOptions& options) {
  const bool blocks = options.weights == "block";
  FolderQuantization scheme{.weights = blocks                        ? ScaleLayout::kTile128
                                       : options.weights == "tensor" ? ScaleLayout::kTensor
                                                                     : ScaleLayout::kRow,
                            .activations = blocks ? ActivationScales::kBlock : ActivationScales::kToken,
                            .kv_cache = options.kv == "fp8"};
  if (options.activations == "static") scheme.activations = ActivationScales::kStatic;
  if (options.activations == "token") scheme.activations = ActivationScales::kToken;
  return scheme;
}

void check_nf4_options(const QuantizeOptions& options) {
  const bool others = options.weights != "row" || !options.activations.empty() || !options.kv.empty() ||
                      !options.calibration.empty() || !options.method.empty();
  check(!others, ErrorCode::kInvalidArgument,
        "--to nf4 rounds weights as they are: leave out --weights, --activations, --kv, --method and --calibration");
}

}  // namespace

QuantizeReport quantize_model(const QuantizeOptions& options, const std::function<void()>& alive) {
  set_thread_count(options.threads);
  const std::string folder = model_folder(options.model);
  const auto weights = open_weights(folder);
  check(!weights->recipe().has_value(), ErrorCode::kInvalidArgument, "{} is quantized already", folder);
  for (const char* taken : {"config.json", "checkpoints"})
    check(!path_exists(options.out + "/" + taken), ErrorCode::kInvalidArgument,
          "{} already contains a {}: choose another folder", options.out,
          taken == std::string("checkpoints") ? "run" : "model");
  if (options.to == "nf4") check_nf4_options(options);
  if (options.to == "int4" || options.to == "int8") return quantize_to_integers(options, *weights, folder, alive);
  QuantizeFolderOptions job{.scheme = scheme_of(options)};
  if (options.to == "fp8") check_quantize_options(*weights, job);
  const bool calibrates = job.scheme.kv_cache || job.scheme.activations == ActivationScales::kStatic;
  check(!calibrates || !options.calibration.empty(), ErrorCode::kInvalidArgument,
        "static activations and --kv fp8 need a calibration text: give one with --calibrate FILE");
  const Target target = target_of(resolve_device(options.engine.device));
  std::unique_ptr<Tokenizer> tokenizer;
  const bool named = !options.engine.tokenizer.empty();  // copied into the folder, whatever its format
  if (calibrates || named || !options.text.empty())
    tokenizer = load_tokenizer(options.engine.tokenizer.empty() ? tokenizer_folder(folder) : options.engine.tokenizer);

  const int64_t enough = tokens_needed({.length = options.length, .windows = 1, .max_tokens = options.max_tokens});
  QuantizeReport report;
  EvalTokens measured;
  if (!options.text.empty()) {
    measured = read_tokens(options.text, tokenizer.get(), options, *weights, folder, enough);
    report.before = measure_on("before", *weights, options, target, measured, tokenizer.get(), alive);
  }
  if (calibrates) {
    const EvalTokens text = read_tokens(options.calibration, tokenizer.get(), options, *weights, folder, enough);
    const std::vector<int32_t> sample = ids_of(text, enough);
    const auto count = static_cast<int64_t>(sample.size());
    Progress progress({.title = "calibrate",
                       .unit = "tok",
                       .total = options.max_tokens > 0 ? std::min(options.max_tokens, count) : count});
    job.amax = calibrate(
        *weights, sample,
        {.target = target, .length = options.length, .max_tokens = options.max_tokens, .begin_id = text.begin_id},
        [&](int64_t done) { progress.update(done), alive(); });
    progress.finish();
  }
  Progress progress({.title = "quantize", .unit = "tensor"});
  const auto on_progress = [&](int64_t done, int64_t) { progress.update(done), alive(); };
  if (options.to == "nf4")
    quantize_to_nf4(*weights, named ? "" : tokenizer_folder(folder), options.out, DType::kBF16, on_progress);
  else
    quantize_folder(*weights, named ? "" : tokenizer_folder(folder), options.out, job, on_progress);
  if (named) tokenizer->save(options.out);
  progress.finish();
  if (report.before)
    report.after = measure_on("after", *open_weights(options.out), options, target, measured, tokenizer.get(), alive);
  return report;
}

EvalTokens read_tokens(const std::string& path, const Tokenizer* tokenizer, const QuantizeOptions& options,
                       const WeightSource& weights, const std::string& folder, int64_t most) {
  if (path.ends_with(".bin"))
    return open_set(path, weights, options.engine.tokenizer.empty() ? folder : options.engine.tokenizer);
  return read_texts({path}, *tokenizer, options.read, !options.no_bos, most);
}

std::vector<int32_t> ids_of(const EvalTokens& tokens, int64_t most) {
  if (!tokens.set) return tokens.ids;
  std::vector<int32_t> ids(static_cast<size_t>(most > 0 ? std::min(most, tokens.count()) : tokens.count()));
  tokens.read(0, ids);
  return ids;
}

PerplexityResult measure_on(const std::string& title, const WeightSource& weights, const QuantizeOptions& options,
                            const Target& target, const EvalTokens& tokens, const Tokenizer* tokenizer,
                            const std::function<void()>& alive) {
  const int64_t all = tokens.count() - 1, total = options.max_tokens > 0 ? std::min(options.max_tokens, all) : all;
  const int64_t length = std::min({options.length, weights.config().max_positions, total});
  return measure_perplexity(weights,
                            {.recipe = serving_recipe(weights, target, ""),
                             .target = target,
                             .length = length,
                             .windows = 1,
                             .max_tokens = options.max_tokens},
                            tokens, tokenizer, [&, progress = token_progress(title)](int64_t done, int64_t total) {
                              progress(done, total), alive();
                            });
}

}  // namespace octet
