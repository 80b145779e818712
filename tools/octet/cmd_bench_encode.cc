// octet bench encode: tokens a second of an encoder, packed, or padded as frameworks without packing run it.
#include <CLI/CLI.hpp>
#include <chrono>

#include "base/error.h"
#include "base/rng.h"
#include "base/threads.h"
#include "numbers.h"
#include "octet/commands.h"

namespace octet {
namespace {

struct Options {
  std::string model;
  EngineOptions engine = {.task = "embed", .needs_tokenizer = false, .max_step_tokens = 16384};
  int64_t shortest = 32, longest = 384, requests = 2000, repeats = 3;
  int threads = 0;
  bool padded = false;
};

// Ids of no meaning. Padded, each has the longest one's tokens, of which its own count.
struct Load {
  std::vector<GenerationRequest> requests;
  int64_t tokens = 0;
};

Load make_load(const Options& o, const Engine& engine) {
  check(o.shortest <= o.longest && o.longest <= engine.context(), ErrorCode::kInvalidArgument,
        "lengths {} to {} (want them ascending, and at most the model's {})", o.shortest, o.longest, engine.context());
  Philox lengths(1337, 0), ids(1337, 1);  // apart: padded or not, the lengths are the same
  const auto below = [](Philox& rng, int64_t count) {
    return static_cast<int64_t>(rng.below(static_cast<uint64_t>(count)));
  };
  Load load;
  for (int64_t i = 0; i < o.requests; ++i) {
    const int64_t length = o.shortest + below(lengths, o.longest - o.shortest + 1);
    load.tokens += length;
    GenerationRequest& request = load.requests.emplace_back();
    request.max_tokens = 0, request.encode = true;
    for (int64_t t = 0; t < (o.padded ? o.longest : length); ++t)
      request.prompt_ids.push_back(static_cast<int32_t>(below(ids, engine.vocab_size())));
  }
  return load;
}

double run_once(Engine& engine, const Load& load) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<GenerationStream> streams;
  for (const GenerationRequest& request : load.requests) streams.push_back(engine.submit(request));
  GenerationEvent event;
  for (GenerationStream& stream : streams) {
    stream.next(event);
    check(event.error.empty(), ErrorCode::kInternal, "{}", event.error);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void run(const Options& o) {
  set_thread_count(o.threads);
  const auto engine = Engine::open(o.model, o.engine);
  const Load load = make_load(o, *engine);
  run_once(*engine, load);  // to warm up
  std::vector<double> seconds;
  for (int64_t i = 0; i < o.repeats; ++i) seconds.push_back(run_once(*engine, load));
  std::ranges::sort(seconds);
  const double median = seconds[seconds.size() / 2];
  const EngineStats stats = engine->stats();
  const auto runs = static_cast<double>(o.repeats + 1);
  fmt::print(
      "{} {} {}: {} texts of {} to {} tokens, {} of them, {}: {:.3f} s (best {:.3f}), {:.0f} tokens/s, "
      "{:.1f} texts/s, {:.0f} steps, {:.1f} % of the rows empty\n",
      o.model, engine->options().device, engine->options().recipe, o.requests, o.shortest, o.longest, load.tokens,
      o.padded ? "padded" : "packed", median, seconds[0], static_cast<double>(load.tokens) / median,
      static_cast<double>(o.requests) / median, static_cast<double>(stats.steps) / runs,
      100 * (1 -
             static_cast<double>(load.tokens) * runs / static_cast<double>(stats.prompt_tokens + stats.padded_tokens)));
}

}  // namespace

void add_bench_encode_command(CLI::App& bench) {
  auto options = std::make_shared<Options>();
  SettingsTable engine = settings_of(options->engine, "embed");
  engine.row("max_sequences").info.meaning = "texts of a step";
  auto* command = bench.add_subcommand("encode", "Tokens a second of an encoder on texts of uniform lengths");
  command->add_option("model", options->model, "model folder; with --random-weights one with config.json alone")
      ->required();
  add_options(*command, engine, {"random_weights"});
  command->add_option("--shortest", options->shortest, "tokens of the shortest text")->check(positive());
  command->add_option("--longest", options->longest, "tokens of the longest text")->check(positive());
  command->add_option("-n,--requests", options->requests, "number of texts, all at once")->check(positive());
  command->add_option("--repeats", options->repeats, "measured runs, of which the median counts")->check(positive());
  command->add_flag("--padded", options->padded, "every text padded to the longest; only its own tokens count");
  add_options(*command, engine, {"recipe", "max_step_tokens", "max_sequences", "device"});
  add_threads_option(*command, options->threads);
  add_verbose_option(*command);
  add_other_options(*command, engine, "Engine");
  command->callback([options] { run(*options); });
}

}  // namespace octet
