// octet generate: text from a model folder, a checkpoint or a llama2.c file, streamed to the terminal.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>

#include "base/error.h"
#include "base/file.h"
#include "base/threads.h"
#include "infer/generate.h"
#include "infer/weights.h"
#include "octet/commands.h"
#include "octet/model_path.h"

namespace octet {
namespace {

struct Options {
  std::string model, tokenizer, prompt, prompt_file, recipe = "fp32", device = "auto";
  GenerateOptions generate;
  int64_t count = 1, context = 0, threads = 0;
  bool interactive = false, stats = false, no_bos = false, echo = true;
};

std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const Options& options, const std::string& text,
                                   int64_t context) {
  EncodeOptions encode{.add_bos = tokenizer.adds_bos() && !options.no_bos};
  std::vector<int32_t> ids = tokenizer.encode(text, encode);
  int32_t start = tokenizer.bos_id() >= 0 ? tokenizer.bos_id() : tokenizer.eos_id();
  if (ids.empty() && start >= 0) ids.push_back(start);
  check(!ids.empty(), ErrorCode::kInvalidArgument,
        "the prompt is empty and the vocabulary has no begin token: give --prompt");
  check(static_cast<int64_t>(ids.size()) <= context, ErrorCode::kInvalidArgument,
        "the prompt has {} tokens, the longest text {}: shorten it, or choose a model of more positions", ids.size(),
        context);
  return ids;
}

void print_stats(const GenerateResult& result) {
  double prompt_rate = static_cast<double>(result.prompt_tokens) / std::max(result.prompt_seconds, 1e-9);
  double decode_rate = static_cast<double>(result.ids.size()) / std::max(result.decode_seconds, 1e-9);
  fmt::print(stderr, "[{} prompt tokens at {:.1f} tok/s, {} generated at {:.1f} tok/s, ended by {}]\n",
             result.prompt_tokens, prompt_rate, result.ids.size(), decode_rate, finish_reason_name(result.reason));
}

bool write_text(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  return std::ferror(stdout) == 0;
}

void generate_once(Decoder& decoder, const Tokenizer& tokenizer, const Options& options, const std::string& prompt) {
  std::vector<int32_t> ids = encode_prompt(tokenizer, options, prompt, decoder.max_length());
  for (int64_t i = 0; i < options.count; ++i) {
    GenerateOptions one = options.generate;
    one.sequence = static_cast<uint64_t>(i);
    decoder.reset();
    if (options.count > 1) write_text(fmt::format("--- {}\n", i + 1));
    if (options.echo) write_text(prompt);
    GenerateResult result = generate(decoder, tokenizer, ids, one, write_text);
    write_text("\n");
    if (options.stats) print_stats(result);
  }
}

// Each line continues the conversation so far; an empty line ends it.
void interact(Decoder& decoder, const Tokenizer& tokenizer, const Options& options) {
  fmt::print(stderr, "Type text to continue, an empty line or Ctrl-D to leave, /reset to forget.\n");
  std::string line;
  while (fmt::print(stderr, "> "), std::getline(std::cin, line) && !line.empty()) {
    if (line == "/reset") {
      decoder.reset();
      continue;
    }
    try {
      EncodeOptions encode{.add_bos = tokenizer.adds_bos() && !options.no_bos && decoder.length() == 0};
      GenerateResult result =
          generate(decoder, tokenizer, tokenizer.encode(line, encode), options.generate, write_text);
      write_text("\n");
      if (options.stats) print_stats(result);
      if (result.reason == FinishReason::kContext) decoder.reset();
    } catch (const Error& error) {
      fmt::print(stderr, "{}\n", error.message());
      decoder.reset();
    }
  }
}

void run_generate(const Options& options) {
  set_thread_count(static_cast<int>(options.threads));
  validate(options.generate.sampling);
  StopMatcher{options.generate.stop};  // refuses what cannot be a stop string before anything is printed
  std::string folder = model_folder(options.model);
  auto weights = open_weights(folder);
  auto tokenizer = load_tokenizer(options.tokenizer.empty() ? folder : options.tokenizer);
  check(tokenizer->vocab_size() <= weights->config().vocab_size, ErrorCode::kInvalidArgument,
        "the tokenizer has {} tokens, the model {}: is --tokenizer the model's own?", tokenizer->vocab_size(),
        weights->config().vocab_size);
  Recipe recipe = parse_recipe(options.recipe);
  Decoder decoder(weights->config(), {.recipe = recipe,
                                      .target = target_of(resolve_device(options.device)),
                                      .max_length = options.context,
                                      .cache_dtype = recipe.compute});
  load_weights(*weights, decoder.executor());
  if (options.interactive) return interact(decoder, *tokenizer, options);
  generate_once(decoder, *tokenizer, options,
                options.prompt_file.empty() ? options.prompt : read_file(options.prompt_file));
}

}  // namespace

void add_generate_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("generate", "Generate text from a model folder, a run or a llama2.c file");
  command->footer(R"(
Examples:
  octet generate out/run --prompt "Once upon a time" --max-tokens 200
  octet generate stories260K.bin --tokenizer tok512.bin --temperature 0 --max-tokens 200
  octet generate out/run --interactive --top-p 0.9)");
  command->add_option("model", options->model, "Hugging Face folder, run folder, checkpoint or llama2.c .bin")
      ->required();
  command->add_option("--tokenizer", options->tokenizer, "tokenizer file or folder (default: in the model folder)");
  command->add_option("-p,--prompt", options->prompt, "text to continue");
  command->add_option("--prompt-file", options->prompt_file, "read the prompt from a file");
  command->add_option("-n,--max-tokens", options->generate.max_tokens, "tokens to generate at most")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("-t,--temperature", options->generate.sampling.temperature, "0 is greedy")->capture_default_str();
  command->add_option("--top-k", options->generate.sampling.top_k, "sample among the k likeliest; 0 is off")
      ->capture_default_str();
  command
      ->add_option("--top-p", options->generate.sampling.top_p, "sample among the likeliest of this total probability")
      ->capture_default_str();
  command->add_option("--seed", options->generate.sampling.seed, "same seed, same text")->capture_default_str();
  command->add_option("--stop", options->generate.stop, "end before this text (may be given several times)");
  command->add_flag("--ignore-eos", options->generate.ignore_eos, "do not end at the end token");
  command->add_option("--count", options->count, "how many texts")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  command->add_option("--context", options->context, "longest text in tokens (default: the model's)")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--recipe", options->recipe, "fp32, bf16, fp8-current, fp8-delayed, fp8-block")
      ->capture_default_str();
  add_device_option(*command, options->device);
  command->add_option("--threads", options->threads, "CPU threads; 0 = all cores")->capture_default_str();
  command->add_flag("-i,--interactive", options->interactive, "read prompts from the terminal");
  command->add_flag("--stats", options->stats, "print tokens per second");
  command->add_flag("--no-bos", options->no_bos, "do not put the begin token in front");
  command->add_flag("--echo,!--no-echo", options->echo, "print the prompt too (default)");
  command->callback([options] { run_generate(*options); });
}

}  // namespace octet
