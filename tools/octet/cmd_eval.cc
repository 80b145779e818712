// octet eval: loss, perplexity and bits per byte of a model on text or prepared tokens.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>

#include "base/error.h"
#include "base/file.h"
#include "base/threads.h"
#include "build_info.h"
#include "io/dataset.h"
#include "numbers.h"
#include "octet/commands.h"
#include "passes/serving_graphs.h"

namespace octet {
namespace {

struct Options {
  std::string model, tokenizer, data, recipe, kv_cache, device = "auto";
  std::vector<std::string> texts;
  int64_t length = 0, stride = 0, windows = 4, max_tokens = 0, tensor = 1;
  int threads = 0;
  bool json = false;
};

// Encodes at least the first `most` tokens (0 = all).
std::vector<int32_t> read_texts(const Options& options, const Tokenizer& tokenizer, int64_t most) {
  std::vector<int32_t> ids;
  for (const std::string& path : options.texts) {
    const auto there = static_cast<int64_t>(ids.size());
    if (most > 0 && there >= most) break;
    std::string text = read_file(path);
    tokenizer.encode_to(text, {.add_bos = tokenizer.adds_bos(), .enough = most > 0 ? most - there : 0}, ids);
  }
  check(ids.size() >= 2, ErrorCode::kInvalidArgument, "the text has {} tokens: at least 2 are needed", ids.size());
  return ids;
}

void run_eval(const Options& options) {
  check(options.data.empty() != options.texts.empty(), ErrorCode::kInvalidArgument,
        "octet eval wants text files or --data PREFIX, and not both");
  set_thread_count(options.threads);
  std::string folder = model_folder(options.model);
  auto weights = open_weights(folder);
  std::unique_ptr<Tokenizer> tokenizer;
  std::string tokenizer_path = options.tokenizer.empty() ? folder : options.tokenizer;
  if (!options.texts.empty() || !options.tokenizer.empty()) tokenizer = load_tokenizer(tokenizer_path);
  if (!tokenizer) try {
      tokenizer = load_tokenizer(tokenizer_path);
    } catch (const Error&) {  // prepared tokens need it for bits per byte only
    }
  const int64_t length = options.length > 0 ? options.length : weights->config().max_positions;
  std::vector<int32_t> ids;
  std::shared_ptr<const TokenDataset> data;
  if (options.data.empty()) {
    ids = read_texts(options, *tokenizer,
                     tokens_needed({.length = length, .windows = options.windows, .max_tokens = options.max_tokens}));
  } else {
    data = TokenDataset::open(options.data, weights->config().vocab_size);
  }
  const PerplexityOptions how{
      .recipe = serving_recipe(*weights, options.recipe),
      .target = target_of(resolve_device(options.device)),
      .tensor = options.tensor,
      .build = version_text("octet"),
      .length = length,
      .stride = options.stride,
      .windows = options.windows,
      .max_tokens = options.max_tokens,
      .cache = options.kv_cache.empty() ? std::optional<DType>() : parse_cache_dtype(options.kv_cache)};
  const auto read = [&](int64_t first, std::span<int32_t> out) { data->read(first, out); };
  const PerplexityResult result =
      data ? measure_perplexity("eval", *weights, how, data->tokens(), read, tokenizer.get())
           : measure_perplexity("eval", *weights, how, std::ssize(ids), reader_of(ids), tokenizer.get());
  if (result.rank > 0) return;
  check(
      std::isfinite(result.loss()), ErrorCode::kInvalidArgument,
      "the loss over {} tokens is {}: this model's numbers overflow under this recipe (octet eval --recipe fp32 tells "
      "whether its weights do)",
      result.tokens, result.loss());
  if (options.json) {
    fmt::print(
        "{{\"tokens\": {}, \"bytes\": {}, \"loss\": {:.6f}, \"perplexity\": {:.6f}, \"bits_per_byte\": {:.6f}}}\n",
        result.tokens, result.bytes, result.loss(), result.perplexity(), result.bits_per_byte());
    return;
  }
  fmt::print("tokens {}  loss {:.4f}  perplexity {:.3f}", result.tokens, result.loss(), result.perplexity());
  if (result.bytes > 0) fmt::print("  bits/byte {:.4f} ({} bytes)", result.bits_per_byte(), result.bytes);
  fmt::print("\n");
}

}  // namespace

void add_eval_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("eval", "Loss, perplexity and bits per byte on text or prepared tokens");
  command->footer(R"(Examples:
  octet eval out/run wikitext.txt
  octet eval out/run --data data/corpus_val --stride 512 --json
  octet eval out/run wikitext.txt --recipe bf16 --kv-cache int8)");
  add_model_option(*command, options->model);
  command->add_option("texts", options->texts, "text files");
  command->add_option("--data", options->data, "PREFIX of prepared tokens, PREFIX.bin/.idx");
  add_tokenizer_option(*command, options->tokenizer);
  command->add_option("--length", options->length, "tokens per window (default: the model's context)")
      ->check(not_negative());
  command->add_option("--stride", options->stride, "tokens between windows (default: the length)")
      ->check(not_negative());
  command->add_option("--windows", options->windows, "windows per batch")->check(positive());
  command->add_option("--max-tokens", options->max_tokens, "stop after this many tokens; 0 = all")
      ->check(not_negative());
  add_recipe_option(*command, options->recipe);
  command->add_option("--kv-cache", options->kv_cache,
                      "keys and values go through a KV cache of f32, bf16, e4m3 or int8 (default: through none)");
  add_device_option(*command, options->device);
  add_tensor_option(*command, options->tensor);
  add_threads_option(*command, options->threads);
  command->add_flag("--json", options->json, "print one JSON object");
  command->callback([options] { run_eval(*options); });
}

}  // namespace octet
