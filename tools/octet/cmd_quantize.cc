// octet quantize: writes an FP8 folder that other programs read too; perplexity before and after.
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/threads.h"
#include "eval/calibrate.h"
#include "numbers.h"
#include "octet/commands.h"

namespace octet {
namespace {

struct Options {
  std::string model, out, to = "fp8", weights = "row", activations, kv, calibration, text, tokenizer, device = "auto";
  int64_t max_tokens = 16384, length = 512;
  int threads = 0;
};

FolderQuantization scheme_of(const Options& options) {
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

// The part of a text that max_tokens needs.
std::vector<int32_t> encode(const std::string& path, const Tokenizer& tokenizer, const Options& options) {
  const int64_t enough = tokens_needed({.length = options.length, .windows = 1, .max_tokens = options.max_tokens});
  std::vector<int32_t> ids;
  tokenizer.encode_to(read_file(path), {.add_bos = tokenizer.adds_bos(), .enough = enough}, ids);
  check(ids.size() >= 2, ErrorCode::kInvalidArgument, "{} has {} tokens: at least 2 are needed", path, ids.size());
  return ids;
}

PerplexityResult measure(const std::string& title, const WeightSource& weights, const Options& options,
                         const Target& target, const std::vector<int32_t>& ids, const Tokenizer& tokenizer) {
  const auto tokens = static_cast<int64_t>(ids.size());
  const int64_t total = options.max_tokens > 0 ? std::min(options.max_tokens, tokens - 1) : tokens - 1;
  const int64_t length = std::min({options.length, weights.config().max_positions, total});
  return measure_perplexity(title, weights,
                            {.recipe = serving_recipe(weights, ""),
                             .target = target,
                             .length = length,
                             .windows = 1,
                             .max_tokens = options.max_tokens},
                            tokens, reader_of(ids), &tokenizer);
}

void run_quantize(const Options& options) {
  set_thread_count(options.threads);
  const std::string folder = model_folder(options.model);
  const auto weights = open_weights(folder);
  check(!weights->recipe().has_value(), ErrorCode::kInvalidArgument, "{} is in FP8 already", folder);
  for (const char* taken : {"config.json", "checkpoints"})
    check(!path_exists(options.out + "/" + taken), ErrorCode::kInvalidArgument,
          "{} holds a {} already: choose another folder", options.out,
          taken == std::string("checkpoints") ? "run" : "model");
  QuantizeFolderOptions job{.scheme = scheme_of(options)};
  check_quantize_options(*weights, job);
  const bool calibrates = job.scheme.kv_cache || job.scheme.activations == ActivationScales::kStatic;
  check(!calibrates || !options.calibration.empty(), ErrorCode::kInvalidArgument,
        "static activations and --kv fp8 take their scales from a text: give one with --calibrate FILE");
  const Target target = target_of(resolve_device(options.device));
  std::unique_ptr<Tokenizer> tokenizer;
  const bool named = !options.tokenizer.empty();  // copied into the folder, whatever its format
  if (calibrates || named || !options.text.empty())
    tokenizer = load_tokenizer(options.tokenizer.empty() ? folder : options.tokenizer);

  std::optional<PerplexityResult> before, after;
  std::vector<int32_t> ids;
  if (!options.text.empty()) {
    ids = encode(options.text, *tokenizer, options);
    before = measure("before", *weights, options, target, ids, *tokenizer);
  }
  if (calibrates) {
    const std::vector<int32_t> sample = encode(options.calibration, *tokenizer, options);
    const auto count = static_cast<int64_t>(sample.size());
    Progress progress({.title = "calibrate",
                       .unit = "tok",
                       .total = options.max_tokens > 0 ? std::min(options.max_tokens, count) : count});
    job.amax =
        calibrate(*weights, sample, {.target = target, .length = options.length, .max_tokens = options.max_tokens},
                  [&](int64_t done) { progress.update(done); });
    progress.finish();
  }
  Progress progress({.title = "quantize", .unit = "tensor"});
  quantize_folder(*weights, named ? "" : folder, options.out, job,
                  [&](int64_t done, int64_t) { progress.update(done); });
  if (named) tokenizer->save(options.out);
  progress.finish();
  if (!before) {
    fmt::print("{}: written; pass --text FILE to measure its perplexity\n", options.out);
    return;
  }
  after = measure("after", *open_weights(options.out), options, target, ids, *tokenizer);
  fmt::print("{}: perplexity {:.4f} before, {:.4f} after ({:+.2f} %), on {} tokens\n", options.out,
             before->perplexity(), after->perplexity(), 100 * (after->perplexity() / before->perplexity() - 1),
             after->tokens);
}

}  // namespace

void add_quantize_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("quantize", "Write a model's linears in FP8, in the compressed-tensors layout");
  command->footer(R"(Examples:
  octet quantize out/run --out model-fp8 --text wikitext.txt
  octet quantize llama --out llama-fp8 --activations static --kv fp8 --calibrate sample.txt
  octet quantize llama --out llama-fp8-block --weights block --text wikitext.txt)");
  add_model_option(*command, options->model);
  command->add_option("--out", options->out, "the folder to write")->required();
  command->add_option("--to", options->to, "the format")->check(CLI::IsMember({"fp8"}));
  command->add_option("--weights", options->weights, "one scale per output channel (row), tensor or 128x128 block")
      ->check(CLI::IsMember({"row", "tensor", "block"}));
  command
      ->add_option("--activations", options->activations,
                   "activation scales: dynamic per token (token, the default), or static from --calibrate")
      ->check(CLI::IsMember({"token", "static"}));
  command->add_option("--kv", options->kv, "fp8: scales for an FP8 KV cache, from --calibrate")
      ->check(CLI::IsMember({"fp8"}));
  command->add_option("--calibrate", options->calibration, "text file to calibrate static scales on");
  command->add_option("--text", options->text, "text file to measure perplexity on, before and after");
  add_tokenizer_option(*command, options->tokenizer);
  command->add_option("--max-tokens", options->max_tokens, "tokens used of each text; 0 = all")->check(not_negative());
  command->add_option("--length", options->length, "tokens per window")->check(positive());
  add_device_option(*command, options->device);
  add_threads_option(*command, options->threads);
  command->callback([options] { run_quantize(*options); });
}

}  // namespace octet
