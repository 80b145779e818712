// octet bench: the engine under load. throughput: all requests at once; latency: few at a time; trace: recorded
// arrivals and lengths. encode and serve are in files of their own.
#include <CLI/CLI.hpp>
#include <map>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"
#include "bench/measure.h"
#include "exec/executor.h"
#include "infer/sampler.h"
#include "load/summary.h"
#include "numbers.h"
#include "octet/commands.h"
#include "octet/human.h"

namespace octet {
namespace {

struct Options {
  std::string model, trace, json, html;
  EngineOptions engine;
  DriveOptions drive;
  Objectives objectives;  // in milliseconds
  int64_t requests = 0, prompt_tokens = 128, output_tokens = 128, warmup = 2;
  double rate = 0, scale = 1, price = 0;
  bool at_once = false;
};

enum class Kind { kThroughput, kLatency, kTrace };

Workload make_workload(Kind kind, const Options& o) {
  if (kind != Kind::kTrace) return fixed_workload(o.requests, o.prompt_tokens, o.output_tokens);
  Workload workload = read_trace(o.trace, o.requests);
  if (o.at_once || o.rate > 0) {
    set_poisson_arrivals(workload, o.at_once ? 0 : o.rate, o.drive.seed);
  } else {
    scale_arrivals(workload, o.scale);
  }
  return workload;
}

void drop_long_requests(Workload& workload, int64_t context) {
  const int64_t dropped = drop_longer_than(workload, context);
  if (dropped == 0) return;
  fmt::print(stderr, "{} requests exceed the context of {} tokens and were left out\n", dropped, context);
  check(!workload.requests.empty(), ErrorCode::kInvalidArgument,
        "no request fits the context of {} tokens: give --context or shorter lengths", context);
}

// Warm-up: the first requests, with other prompts.
Workload warm_up_of(const Workload& workload, int64_t requests) {
  Workload warm{.name = "warm-up", .requests = workload.requests};
  warm.requests.resize(std::min(warm.requests.size(), static_cast<size_t>(requests)));
  for (LoadRequest& request : warm.requests) request.arrival = 0, request.prefix_blocks.clear();
  return warm;
}

// A GPU's rates are its target's (0 if not measured); a CPU's are measured here, in half a second.
DeviceRates rates_of(const EnginePlan& plan) {
  const Target target = target_of(resolve_device(plan.device));
  const bool fp8 = plan.recipe.starts_with("fp8"), f32 = plan.recipe == "fp32" || plan.recipe == "tf32";
  if (target.device == Device::kCuda)
    return {target.bytes_per_second, fp8 ? target.fp8_flops : f32 ? target.f32_flops : target.bf16_flops};
  const char* products = plan.recipe == "fp8-block" ? "fp8-block" : fp8 ? "fp8-tensor" : f32 ? "f32" : "bf16";
  constexpr int64_t kBytes = int64_t{1} << 29, kSize = 1024;
  MemoryReader reader(plan.free_bytes > 0 ? std::min(kBytes, plan.free_bytes / 8) : kBytes);
  const double bytes = std::max(reader.run(), reader.run());
  return {bytes, measure_gemm(target, products, kSize, kSize, kSize, 3).flops_per_second};
}

// Printed before weights are loaded, which may take minutes.
void print_plan(const EnginePlan& plan, const Options& o, const Workload& workload) {
  const size_t ranks = plan.rank_free_bytes.size();
  fmt::print(stderr, "{}: {} in {} on {}{}: {} of weights, {} of activations, {} of KV cache{}\n", workload.name,
             o.model, plan.recipe, ranks > 1 ? fmt::format("each of {} ranks of ", ranks) : "", plan.device,
             human_bytes(plan.weight_bytes), human_bytes(plan.activation_bytes), human_bytes(plan.kv_bytes),
             plan.free_bytes > 0 ? fmt::format("; {} are free", human_bytes(plan.free_bytes)) : "");
  for (size_t rank = 0; ranks > 1 && rank < ranks; ++rank)
    fmt::print(stderr, "rank {} of {}: {} of weights, {} of activations, {} of KV cache in {} blocks; {} are free\n",
               rank, ranks, human_bytes(plan.weight_bytes), human_bytes(plan.activation_bytes),
               human_bytes(plan.kv_bytes), plan.kv_blocks, human_bytes(plan.rank_free_bytes[rank]));
  const DeviceRates rates = rates_of(plan);
  if (rates.bytes_per_second <= 0 || rates.flops_per_second <= 0) return;
  const int64_t texts =
      o.drive.concurrency > 0 ? std::min(o.drive.concurrency, o.engine.max_sequences) : o.engine.max_sequences;
  const LoadEstimate load = estimate_load(plan, rates, workload, texts);
  const LoadEstimate warm = estimate_load(plan, rates, warm_up_of(workload, o.warmup), texts);
  const double seconds = load.seconds + warm.seconds;
  fmt::print(
      stderr,
      "at least {}, {} of it warm-up: {:.3g} ms per decode step of {} sequences, at {}/s of memory reads and {}/s\n",
      human_seconds(seconds), human_seconds(warm.seconds), 1e3 * load.step_seconds, load.texts,
      human_number(rates.bytes_per_second, "B"), human_number(rates.flops_per_second, "FLOP"));
  constexpr double kLong = 600;
  if (seconds > kLong)
    fmt::print(stderr, "use fewer requests (-n) or a smaller model for a shorter run; Ctrl-C stops it\n");
}

void run(Kind kind, Options& o) {
  validate(o.drive.sampling);  // errors of options or trace are reported before a model is loaded
  Workload workload = make_workload(kind, o);
  o.model = resolve_models(o.model, o.engine);
  o.engine.needs_tokenizer = false;  // requests give ids
  for (const auto& [name, folder] : o.engine.adapters) o.drive.adapters.push_back(name);
  check(o.drive.adapter_zipf == 0 || !o.drive.adapters.empty(), ErrorCode::kInvalidArgument,
        "--adapter-zipf {:g}: there are no adapters to draw: give some by --adapter NAME=DIR", o.drive.adapter_zipf);
  o.engine.planned = [&](const EnginePlan& plan) {
    drop_long_requests(workload, plan.context);
    o.drive.kv_tokens = plan.kv_tokens;
    print_plan(plan, o, workload);
  };
  auto engine = Engine::open(o.model, o.engine);
  if (engine == nullptr) return;  // another rank's process
  if (resolve_device(o.engine.device) == Device::kCuda) o.drive.pci_bus_id = cuda_bus_id();
  if (o.warmup > 0) {
    const Workload warm = warm_up_of(workload, o.warmup);
    DriveOptions drive_options = o.drive;
    drive_options.seed += 0x5eed;  // other prompts, so that the prefix cache has none of the measured ones
    drive(*engine, warm, drive_options);
  }
  const auto total = static_cast<int64_t>(workload.requests.size());
  DriveResult result;
  {
    Progress bar({.title = "bench", .unit = "requests", .total = total});
    result = drive(*engine, workload, o.drive,
                   [&](int64_t done, int64_t tokens) { bar.update(done, fmt::format("{} tokens", tokens)); });
  }
  const Objectives objectives{.first_token = o.objectives.first_token / 1e3,
                              .inter_token = o.objectives.inter_token / 1e3};
  const LoadSummary summary = summarize(result, objectives, o.price);
  const EngineStats stats = engine->stats();
  Facts facts = {{"model", o.model},
                 {"workload", workload.name},
                 {"prompt tokens", std::to_string(workload.prompt_tokens())},
                 {"output tokens", std::to_string(workload.output_tokens())},
                 {"device", engine->options().device},
                 {"recipe", engine->options().recipe},
                 {"KV cache", engine->options().kv_cache},
                 {"KV cache bytes", std::to_string(stats.kv_bytes)},
                 {"ranks", std::to_string(o.engine.tensor)},
                 {"max sequences", std::to_string(o.engine.max_sequences)},
                 {"max tokens per step", std::to_string(o.engine.max_step_tokens)},
                 {"draft", o.engine.draft.empty() ? "none" : o.engine.draft},
                 {"texts of a request", o.drive.beams > 0 ? fmt::format("{} by beam search", o.drive.beams)
                                                          : std::to_string(o.drive.samples)}};
  if (!o.engine.adapters.empty()) {
    facts.emplace_back("adapters", std::to_string(o.engine.adapters.size()));
    if (o.drive.adapter_zipf > 0)
      facts.emplace_back("adapters drawn", fmt::format("by Zipf's law, exponent {:g}", o.drive.adapter_zipf));
  }
  for (const auto& [name, value] : facts) fmt::print("{}: {}\n", name, value);
  fmt::print("{}", to_text(summary));
  if (!o.json.empty()) write_file(o.json, to_json(summary, facts));
  if (!o.html.empty()) write_file(o.html, to_page(summary, result, facts));
  check(summary.finished > 0, ErrorCode::kInternal, "no request finished: {}", summary.first_error);
}

void add_policy(CLI::App& command, Options& o) {
  static const std::map<std::string, std::pair<SchedulingPolicy, Batching>> kPolicies = {
      {"max-utilization", {SchedulingPolicy::kMaxUtilization, Batching::kInFlight}},
      {"never-evict", {SchedulingPolicy::kNeverEvict, Batching::kInFlight}},
      {"packed-lockstep", {SchedulingPolicy::kNeverEvict, Batching::kStatic}},
      {"padded-static", {SchedulingPolicy::kNeverEvict, Batching::kPaddedStatic}}};
  std::set<std::string> names;
  for (const auto& [name, policy] : kPolicies) names.insert(name);
  command
      .add_option_function<std::string>(
          "--policy",
          [&o](const std::string& name) { std::tie(o.engine.policy, o.drive.batching) = kPolicies.at(name); },
          "in-flight batching with preemption or without, or static batching for comparison")
      ->check(CLI::IsMember(names))
      ->default_str("max-utilization");
}

void add_shared(CLI::App& command, Options& o) {
  command.add_option("model", o.model, "model folder, run or checkpoint; with --random-weights a named model")
      ->required();
  SettingsTable engine = settings_of(o.engine, "generate");
  engine.row("tokenizer").info.meaning = "tokenizer file or folder (default: the model's own, if any)";
  engine.row("context").info.meaning = "longest sequence (default: the model's)";
  add_options(command, engine, {"random_weights", "tokenizer", "device", "tensor"});
  add_verbose_option(command);
  add_options(command, engine, {"recipe", "kv_cache"});
  add_policy(command, o);
  add_options(command, engine,
              {"context", "max_sequences", "max_step_tokens", "kv_cache_bytes", "prefix_cache", "draft", "draft_tokens",
               "draft_memory"});
  add_adapter_option(command, o.engine, "Requests have them in turn.");
  command
      .add_option("--adapter-zipf", o.drive.adapter_zipf,
                  "draw the adapters of requests by Zipf's law with this exponent, instead of in turn")
      ->check(positive())
      ->default_str("");
  command.add_flag("!--draft-fixed", o.engine.draft_adaptive,
                   "always as many drafts as there are, whether they pay or not");
  add_options(command, engine, {"accept_simulated"});
  command.add_option("--samples", o.drive.samples, "texts of a request")->check(positive());
  command.add_option("--beams", o.drive.beams, "width of a beam search, all of whose texts are wanted; 0: sampling")
      ->check(CLI::Range(int64_t{0}, kMaxBeams));
  command.add_option("--temperature", o.drive.sampling.temperature, "0 is greedy");
  command.add_option("--top-p", o.drive.sampling.top_p,
                     "sample from the most likely tokens with this total probability; 0 is greedy");
  command.add_option("--seed", o.drive.seed, "seed of prompts and sampling");
  command.add_option("--warmup", o.warmup, "warm-up requests before the measured ones")->check(not_negative());
  command.add_option("--slo-ttft", o.objectives.first_token, "goodput: limit of TTFT in ms")
      ->check(positive())
      ->default_str("");
  command.add_option("--slo-itl", o.objectives.inter_token, "goodput: limit of the mean ITL in ms")
      ->check(positive())
      ->default_str("");
  command.add_option("--price", o.price, "price of the machine per hour, for the cost of a million tokens")
      ->check(not_negative())
      ->default_str("");
  command.add_option("--json", o.json, "write the results to this JSON file");
  command.add_option("--html", o.html, "write an HTML page with plots to this file");
  add_other_options(command, engine, "Engine");
}

void add_lengths(CLI::App& command, Options& o) {
  command.add_option("-i,--input", o.prompt_tokens, "tokens per prompt")->check(positive());
  command.add_option("-o,--output", o.output_tokens, "tokens to generate per request")->check(positive());
  command.add_option("-n,--requests", o.requests, "number of requests")->check(positive());
}

}  // namespace

void add_bench_command(CLI::App& app) {
  auto* command = app.add_subcommand("bench", "Measure the engine or a server under load: throughput, latency, traces");
  command->require_subcommand(1);
  command->footer(R"(Examples:
  octet bench throughput llama3-8b --random-weights --recipe fp8-current --kv-cache e4m3 -i 128 -o 2048 -n 512
  octet bench throughput llama3-70b --random-weights --recipe fp8-current --tensor 2 -i 1000 -o 1000 -n 256
  octet bench latency path/to/model -i 2048 -o 128 --concurrency 1
  octet bench latency llama3-8b --random-weights --draft ngram --draft-tokens 4 --accept-simulated 0.8
  octet bench throughput path/to/llama --adapter sql=out/sql --adapter chat=out/chat --adapter-zipf 1 -i 1000 -o 100
  octet bench throughput gptj-6b --random-weights --recipe fp8-current --beams 4 -i 128 -o 128 -n 64
  octet bench encode path/to/bert-large --random-weights --recipe fp8-current --shortest 32 --longest 384
  octet bench trace path/to/model --trace AzureLLMInferenceTrace_conv.csv --scale 4 --slo-ttft 500 --html load.html)");

  auto throughput = std::make_shared<Options>();
  throughput->requests = 1000;
  auto* all = command->add_subcommand("throughput", "All requests at once: tokens a second");
  add_shared(*all, *throughput);
  add_lengths(*all, *throughput);
  all->add_option("--concurrency", throughput->drive.concurrency, "requests in flight; 0: all")->check(not_negative());
  all->callback([throughput] { run(Kind::kThroughput, *throughput); });

  auto latency = std::make_shared<Options>();
  latency->requests = 16;
  latency->drive.concurrency = 1;
  auto* few = command->add_subcommand("latency", "A few requests at a time: first token and time between tokens");
  add_shared(*few, *latency);
  add_lengths(*few, *latency);
  few->add_option("--concurrency", latency->drive.concurrency, "requests in flight")->check(positive());
  few->callback([latency] { run(Kind::kLatency, *latency); });

  auto traced = std::make_shared<Options>();
  auto* trace = command->add_subcommand("trace", "Arrivals and lengths of an Azure or Mooncake trace");
  add_shared(*trace, *traced);
  trace->add_option("--trace", traced->trace, "trace file")->required()->check(CLI::ExistingFile);
  trace->add_option("-n,--requests", traced->requests, "use the first n requests; 0 = all")->check(not_negative());
  trace->add_option("--scale", traced->scale, "multiply the trace's request rate")->check(positive());
  trace
      ->add_option("--rate", traced->rate,
                   "Poisson arrivals at this many requests per second instead of the trace's times")
      ->check(positive())
      ->default_str("");
  trace->add_flag("--at-once", traced->at_once, "all requests at the start")->excludes("--rate", "--scale");
  trace->callback([traced] { run(Kind::kTrace, *traced); });
  add_bench_encode_command(*command);
#ifdef OCTET_SERVE
  add_bench_serve_command(*command);
#endif
}

}  // namespace octet
