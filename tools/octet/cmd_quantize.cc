// octet quantize: writes a folder of codes that other programs read too; perplexity before and after. FP8 is here, what
// needs a calibration layer by layer in quantize_integers.cc.
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/threads.h"
#include "eval/calibrate.h"
#include "numbers.h"
#include "octet/quantize.h"
#include "weights/adapter_folder.h"
#include "weights/quantize_nf4.h"

namespace octet {
namespace {

using Options = QuantizeOptions;

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

void check_nf4_options(const Options& options) {
  const bool others = options.weights != "row" || !options.activations.empty() || !options.kv.empty() ||
                      !options.calibration.empty() || !options.method.empty();
  check(!others, ErrorCode::kInvalidArgument,
        "--to nf4 rounds weights as they are: leave out --weights, --activations, --kv, --method and --calibration");
}

void run_quantize(const Options& options) {
  set_thread_count(options.threads);
  const std::string folder = model_folder(options.model);
  const auto weights = open_weights(folder);
  check(!weights->recipe().has_value(), ErrorCode::kInvalidArgument, "{} is quantized already", folder);
  for (const char* taken : {"config.json", "checkpoints"})
    check(!path_exists(options.out + "/" + taken), ErrorCode::kInvalidArgument,
          "{} already contains a {}: choose another folder", options.out,
          taken == std::string("checkpoints") ? "run" : "model");
  if (options.to == "nf4") check_nf4_options(options);
  if (options.to == "int4" || options.to == "int8") return quantize_to_integers(options, *weights, folder);
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
  std::optional<PerplexityResult> before;
  EvalTokens measured;
  if (!options.text.empty()) {
    measured = read_tokens(options.text, tokenizer.get(), options, *weights, folder, enough);
    before = measure_on("before", *weights, options, target, measured, tokenizer.get());
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
        [&](int64_t done) { progress.update(done); });
    progress.finish();
  }
  Progress progress({.title = "quantize", .unit = "tensor"});
  const auto on_progress = [&](int64_t done, int64_t) { progress.update(done); };
  if (options.to == "nf4")
    quantize_to_nf4(*weights, named ? "" : tokenizer_folder(folder), options.out, DType::kBF16, on_progress);
  else
    quantize_folder(*weights, named ? "" : tokenizer_folder(folder), options.out, job, on_progress);
  if (named) tokenizer->save(options.out);
  progress.finish();
  if (!before) {
    fmt::print("{}: written; pass --text FILE to measure its perplexity\n", options.out);
    return;
  }
  print_perplexities(options.out, *before,
                     measure_on("after", *open_weights(options.out), options, target, measured, tokenizer.get()));
}

void add_integer_options(CLI::App& command, Options& options) {
  const std::string group = "int4 and int8";
  const auto option = [&](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->group(group);
  };
  option("--method", options.method, "how codes are found (default: int4 gptq, int8 smoothquant)")
      ->check(CLI::IsMember({"rtn", "smoothquant", "awq", "gptq"}));
  option("--group", options.group, "int4: inputs that share a scale, or row")
      ->check(CLI::IsMember({"32", "64", "128", "row"}));
  command.add_flag("--asymmetric,!--symmetric", options.asymmetric, "int4: with zero points (default: symmetric)")
      ->group(group);
  option("--samples", options.samples, "windows of the calibration text")->check(positive());
  option("--seed", options.seed, "chooses the windows");
  option("--act-order", options.order,
         "gptq: inputs of most energy first, groups in that order (group) or as stored "
         "(static)")
      ->check(CLI::IsMember({"off", "group", "static"}));
  option("--damping", options.damping, "gptq: added to the diagonal of the inputs' second moments, of its mean")
      ->check(CLI::Range(1e-6, 10.0));
  option("--alpha", options.alpha, "smoothquant: how much of the inputs' range goes into the weights")
      ->check(CLI::Range(0.0, 1.0));
  option("--keep", options.keep, "linears that stay as they are: layers.0, mlp.down, layers.3.attn.o ...");
  option("--bound", options.bound, "linears whose outputs change by more than this part stay too; 0 = all change")
      ->check(CLI::Range(0.0, 10.0));
}

}  // namespace

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
                            const Target& target, const EvalTokens& tokens, const Tokenizer* tokenizer) {
  const int64_t all = tokens.count() - 1, total = options.max_tokens > 0 ? std::min(options.max_tokens, all) : all;
  const int64_t length = std::min({options.length, weights.config().max_positions, total});
  return measure_perplexity(weights,
                            {.recipe = serving_recipe(weights, target, ""),
                             .target = target,
                             .length = length,
                             .windows = 1,
                             .max_tokens = options.max_tokens},
                            tokens, tokenizer, token_progress(title));
}

void print_perplexities(const std::string& folder, const PerplexityResult& before, const PerplexityResult& after) {
  fmt::print("{}: perplexity {:.4f} before, {:.4f} after ({:+.2f} %), on {} tokens\n", folder, before.perplexity(),
             after.perplexity(), 100 * (after.perplexity() / before.perplexity() - 1), after.tokens);
}

void add_quantize_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  SettingsTable engine = settings_of(options->engine);
  auto* command = app.add_subcommand(
      "quantize", "Write a model's linears in FP8, INT8 or INT4, in the compressed-tensors layout, or in NF4");
  command->footer(R"(Examples:
  octet quantize out/run --out model-fp8 --text wikitext.txt
  octet quantize llama --out llama-fp8 --activations static --kv fp8 --calibrate sample.txt
  octet quantize llama --out llama-fp8-block --weights block --text wikitext.txt
  octet quantize llama --out llama-int4 --to int4 --calibration sample.txt --text wikitext.txt
  octet quantize llama --out llama-awq --to int4 --method awq --asymmetric --group 64 --calibration sample.txt
  octet quantize llama --out llama-nf4 --to nf4 --text wikitext.txt
  octet quantize llama --out llama-int8 --to int8 --keep mlp.down --calibration corpus_train.bin
An interrupted run to int4 or int8 goes on when the same command is given again.)");
  add_model_option(*command, options->model);
  command->add_option("--out", options->out, "the folder to write")->required();
  command->add_option("--to", options->to, "the format")->check(CLI::IsMember({"fp8", "int8", "int4", "nf4"}));
  command->add_option("--weights", options->weights, "one scale per output channel (row), tensor or 128x128 block")
      ->check(CLI::IsMember({"row", "tensor", "block"}));
  command
      ->add_option("--activations", options->activations,
                   "activation scales: dynamic per token (token, the default), or static from --calibrate")
      ->check(CLI::IsMember({"token", "static"}));
  command->add_option("--kv", options->kv, "fp8: scales for an FP8 KV cache, from --calibrate")
      ->check(CLI::IsMember({"fp8"}));
  command->add_option("--calibrate,--calibration", options->calibration,
                      "what to calibrate on: a text file, or a .bin of octet data");
  command->add_option("--text", options->text, "text file, or .bin, to measure perplexity on, before and after");
  add_options(*command, engine, {"tokenizer"});
  command->add_option("--max-tokens", options->max_tokens, "tokens used of each text; 0 = all")->check(not_negative());
  command->add_option("--length", options->length, "tokens per window")->check(positive());
  add_text_options(*command, options->read);
  command->add_flag("--no-bos", options->no_bos, "no begin token in front of a text's windows");
  add_integer_options(*command, *options);
  add_options(*command, engine, {"device"});
  add_threads_option(*command, options->threads);
  command->callback([options] { run_quantize(*options); });
}

}  // namespace octet
