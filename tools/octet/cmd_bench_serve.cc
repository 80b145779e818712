// octet bench serve: a server of OpenAI's protocol under load, seen from a client.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/progress.h"
#include "load/summary.h"
#include "numbers.h"
#include "octet/commands.h"
#include "serve_load.h"

namespace octet {
namespace {

struct Options {
  std::string url, trace, prompts, guide, json, html;
  std::vector<std::string> goodput;
  ServeLoadOptions load;
  Objectives objectives;
  int64_t requests = 0, prompt_tokens = 128, output_tokens = 128, warmup = 2;
  double rate = INFINITY, scale = 1, range_ratio = 0;
  bool poisson = false;
  std::optional<bool> ignore_eos;
};

constexpr int64_t kRequests = 100;  // where neither their number, a trace nor prompts are given
constexpr int64_t kWarmTokens = 16;
constexpr int64_t kLargestFile = int64_t{1} << 30;

// "ttft:500" and the like, in milliseconds.
void read_goodput(const std::vector<std::string>& words, Objectives& objectives) {
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find(':'));
    double* objective = name == "ttft"                    ? &objectives.first_token
                        : name == "itl" || name == "tpot" ? &objectives.inter_token
                        : name == "e2el"                  ? &objectives.end_to_end
                                                          : nullptr;
    double limit = 0;
    const bool number = name.size() < word.size() && CLI::detail::lexical_cast(word.substr(name.size() + 1), limit);
    check(objective != nullptr && number && limit > 0, ErrorCode::kInvalidArgument,
          "--goodput: '{}' (want ttft:MS, itl:MS, tpot:MS or e2el:MS)", word);
    *objective = limit / 1e3;
  }
}

// Prompts of a file: lines of JSON with "prompt" (a text or ids) or "messages" and perhaps "output_tokens", or of plain
// text. Returns their workload.
Workload read_prompts(Options& o) {
  std::istringstream lines(read_file(o.prompts, kLargestFile));
  Workload workload{.name = o.prompts.substr(o.prompts.find_last_of('/') + 1), .requests = {}};
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \r\t") == std::string::npos) continue;
    LoadRequest request{.output_tokens = o.output_tokens};
    nlohmann::json prompt = line;
    if (line.front() == '{') {
      const std::string where = fmt::format("{}:{}", o.prompts, number);
      const nlohmann::json json = parse_json(line, where);
      const char* key = o.load.chat && json.contains("messages") ? "messages" : "prompt";
      check(json.contains(key), ErrorCode::kCorrupt, "{}: no \"{}\" in it", where, key);
      prompt = json.at(key);
      if (json.contains("output_tokens")) request.output_tokens = json_get<int64_t>(json, "output_tokens", where);
    }
    o.load.prompts.push_back(prompt.dump());
    workload.requests.push_back(request);
  }
  check(!workload.requests.empty(), ErrorCode::kCorrupt, "{}: contains no prompts", o.prompts);
  const auto count = o.requests > 0 ? static_cast<size_t>(o.requests) : workload.requests.size();
  for (size_t i = workload.requests.size(); i < count; ++i)
    workload.requests.push_back(workload.requests[i - o.load.prompts.size()]);
  workload.requests.resize(count);
  return workload;
}

Workload make_workload(Options& o) {
  Workload workload = !o.trace.empty() ? read_trace(o.trace, o.requests)
                      : !o.prompts.empty()
                          ? read_prompts(o)
                          : fixed_workload(o.requests > 0 ? o.requests : kRequests, o.prompt_tokens, o.output_tokens);
  if (o.range_ratio > 0) spread_lengths(workload, o.range_ratio, o.load.seed);
  if (o.poisson || o.trace.empty()) {
    set_poisson_arrivals(workload, o.rate, o.load.seed);
  } else {
    scale_arrivals(workload, o.scale);
  }
  return workload;
}

// The JSON that a path of the server answers with; null: nothing of use.
nlohmann::json ask(serve::HttpClient& client, const Options& o, const std::string& path, std::string* why = nullptr) {
  constexpr double kPatience = 30;
  const serve::HttpAnswer answer = client.ask(
      {.target = path, .fields = request_fields(o.load.api_key), .method = "GET", .timeout_seconds = kPatience});
  nlohmann::json json = nlohmann::json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
  if (answer.status == 200 && json.is_object()) return json;
  if (why != nullptr)
    *why =
        answer.error.empty() ? fmt::format("status {}: {}", answer.status, answer.body.substr(0, 300)) : answer.error;
  return {};
}

// The model's name and vocabulary, where they are not given, and requests that its context can hold.
void ask_server(serve::HttpClient& client, Options& o, Workload& workload) {
  if (o.load.model.empty()) {
    std::string why;
    const nlohmann::json models = ask(client, o, "/v1/models", &why);
    const nlohmann::json::json_pointer first("/data/0/id");
    check(models.contains(first) && models[first].is_string(), ErrorCode::kIo,
          "{}: /v1/models lists no model (give --model): {}", o.url, why);
    o.load.model = models[first];
  }
  const nlohmann::json info = ask(client, o, "/server_info");
  if (o.load.vocab == 0 && info.contains("vocab_size")) o.load.vocab = json_get<int64_t>(info, "vocab_size", o.url);
  if (!info.contains("context")) return;
  const auto context = json_get<int64_t>(info, "context", o.url);
  const int64_t dropped = drop_longer_than(workload, context);
  if (dropped > 0)
    fmt::print(stderr, "{} requests exceed the context of {} tokens and were left out\n", dropped, context);
  check(!workload.requests.empty(), ErrorCode::kInvalidArgument,
        "no request fits the server's context of {} tokens: give smaller lengths", context);
}

// The first requests, cut short, with other prompts, so that no cache has the measured ones: connections are open then.
void warm_up(serve::HttpClient& client, const Workload& workload, const Options& o) {
  if (o.warmup == 0) return;
  Workload warm{.name = "warm-up", .requests = workload.requests};
  warm.requests.resize(std::min(warm.requests.size(), static_cast<size_t>(o.warmup)));
  for (LoadRequest& request : warm.requests) {
    request.arrival = 0, request.prefix_blocks.clear();
    request.output_tokens = std::min(request.output_tokens, kWarmTokens);
  }
  ServeLoadOptions load = o.load;
  load.seed += 0x5eed;
  const ServeLoadResult result = drive_server(client, warm, load);
  for (const auto& [kind, errors] : result.errors)
    fmt::print(stderr, "warm-up: {} of {} requests failed: {}: {}\n", errors.count, warm.requests.size(), kind,
               errors.examples.front());
}

Facts facts_of(const Options& o, const Workload& workload, const ServeLoadResult& result) {
  Facts facts = {
      {"server", o.url},
      {"model", o.load.model},
      {"endpoint", o.load.chat ? "chat completions" : "completions"},
      {"workload", workload.name},
      {"request rate", std::isinf(o.rate) ? (o.trace.empty() ? "inf" : "the trace's") : fmt::format("{}/s", o.rate)},
      {"concurrency", o.load.concurrency > 0 ? std::to_string(o.load.concurrency) : "no limit"},
      {"prompts", !o.prompts.empty()                 ? "of the file"
                  : o.load.vocab > 0 && !o.load.chat ? "random ids"
                                                     : "random words"},
      {"output tokens", result.counted ? "counted by events, since a reply has no usage" : "by the server's usage"}};
  if (!o.guide.empty()) facts.emplace_back("guided", fmt::format("{} of requests by {}", o.load.guided_share, o.guide));
  for (const auto& [kind, errors] : result.errors) {
    std::string text = std::to_string(errors.count);
    for (const std::string& example : errors.examples) text += "; " + example;
    facts.emplace_back("errors: " + kind, text);
  }
  return facts;
}

void run(Options& o) {
  read_goodput(o.goodput, o.objectives);
  if (o.load.api_key.empty())
    if (const char* key = std::getenv("OPENAI_API_KEY")) o.load.api_key = key;
  if (!o.guide.empty()) o.load.guide = parse_json(read_file(o.guide, kLargestFile), o.guide).dump();
  o.load.ignore_eos = o.ignore_eos.value_or(o.prompts.empty());
  std::string base = o.url;
  while (base.ends_with('/')) base.pop_back();
  if (base.ends_with("/v1")) base.resize(base.size() - 3);
  Workload workload = make_workload(o);
  serve::HttpClient client(base);
  ask_server(client, o, workload);
  warm_up(client, workload, o);
  ServeLoadResult result;
  {
    Progress bar({.title = "bench", .unit = "requests", .total = static_cast<int64_t>(workload.requests.size())});
    result = drive_server(client, workload, o.load,
                          [&](int64_t done, int64_t tokens) { bar.update(done, fmt::format("{} tokens", tokens)); });
  }
  const LoadSummary summary = summarize(result.drive, o.objectives, 0);
  const Facts facts = facts_of(o, workload, result);
  for (const auto& [name, value] : facts) fmt::print("{}: {}\n", name, value);
  fmt::print("{}", to_text(summary));
  const double seconds = summary.seconds > 0 ? summary.seconds : INFINITY;
  fmt::print("client: {:.0f} events/s, {:.2f} tokens an event, {:.0f} % of a core\n",
             static_cast<double>(result.events) / seconds,
             static_cast<double>(summary.output_tokens) / static_cast<double>(std::max<int64_t>(result.events, 1)),
             100 * result.cpu_seconds / seconds);
  if (!o.json.empty()) write_file(o.json, to_json(summary, facts));
  if (!o.html.empty()) write_file(o.html, to_page(summary, result.drive, facts));
  check(summary.finished > 0, ErrorCode::kIo, "no request finished: {}", summary.first_error);
}

}  // namespace

void add_bench_serve_command(CLI::App& bench) {
  auto options = std::make_shared<Options>();
  Options& o = *options;
  auto* command =
      bench.add_subcommand("serve", "A server of OpenAI's protocol: load over HTTP, latencies as a client sees them");
  command->footer(R"(Examples:
  octet bench serve http://localhost:8000 -n 1000 -i 128 -o 256 --concurrency 64
  octet bench serve http://localhost:8000 -n 1000 --rate 10 --random-range-ratio 0.5 --goodput ttft:500,tpot:50
  octet bench serve http://localhost:8000 --trace AzureLLMInferenceTrace_conv.csv --scale 4 --html load.html
  octet bench serve https://host --endpoint chat --prompts prompts.jsonl --concurrency 8 --json result.json)");
  command->add_option("url", o.url, "http://HOST:PORT or https://HOST, with or without /v1")->required();
  command->add_option("--model", o.load.model, "name that requests give (default: the first of /v1/models)");
  command
      ->add_option_function<std::string>(
          "--endpoint", [&o](const std::string& name) { o.load.chat = name == "chat"; }, "completions or chat")
      ->check(CLI::IsMember({"completions", "chat"}))
      ->default_str("completions");
  command->add_option("--api-key", o.load.api_key, "key of requests (default: OPENAI_API_KEY of the environment)");
  command->add_option("--concurrency", o.load.concurrency, "most requests in flight; 0: no limit")
      ->check(not_negative());
  command
      ->add_option_function<double>(
          "--rate", [&o](double rate) { o.rate = rate, o.poisson = true; },
          "Poisson arrivals at this many requests per second; inf: all at once (default, but for traces)")
      ->check(number_range("POSITIVE", "> 0 or inf", [](double value) { return value > 0; }));
  command->add_option("-i,--input", o.prompt_tokens, "tokens per prompt")->check(positive());
  command->add_option("-o,--output", o.output_tokens, "tokens to generate per request")->check(positive());
  command->add_option("--random-range-ratio", o.range_ratio, "draw lengths evenly from (1 - r) to (1 + r) times these")
      ->check(CLI::Range(0.0, 1.0));
  command->add_option("-n,--requests", o.requests, "number of requests (default: 100; of the trace or file: all)")
      ->check(positive());
  auto* trace = command->add_option("--trace", o.trace, "arrivals and lengths of an Azure or Mooncake trace")
                    ->check(CLI::ExistingFile);
  command->add_option("--scale", o.scale, "multiply the trace's request rate")->check(positive())->needs(trace);
  command
      ->add_option("--prompts", o.prompts,
                   "file of prompts: lines of text, or of JSON with prompt or messages, and perhaps output_tokens")
      ->check(CLI::ExistingFile)
      ->excludes(trace);
  command
      ->add_option("--vocab", o.load.vocab,
                   "random prompts are ids below it (default: an octet server's own; of others words)")
      ->check(not_negative());
  command->add_flag_callback(
      "--ignore-eos", [&o] { o.ignore_eos = true; }, "texts have their full length (default, but for --prompts)");
  command->add_flag_callback(
      "--no-ignore-eos", [&o] { o.ignore_eos = false; }, "texts end where the model ends them");
  command->add_option("--temperature", o.load.temperature, "0 is greedy")->check(not_negative());
  command->add_option("--seed", o.load.seed, "seed of prompts, arrivals and sampling");
  auto* guide = command->add_option("--guide", o.guide, "a JSON schema that answers follow, by structured_outputs")
                    ->check(CLI::ExistingFile);
  command->add_option("--guided-share", o.load.guided_share, "share of the requests that do")
      ->check(CLI::Range(0.0, 1.0))
      ->needs(guide);
  command->add_option("--warmup", o.warmup, "requests before the measured ones, of 16 tokens at most")
      ->check(not_negative());
  command->add_option("--timeout", o.load.timeout_seconds, "seconds for a request; 0: no limit")->check(not_negative());
  command->add_option("--goodput", o.goodput, "objectives in ms, of each request: ttft:MS,tpot:MS (mean ITL),e2el:MS")
      ->delimiter(',');
  command->add_option("--json", o.json, "write the results to this JSON file");
  command->add_option("--html", o.html, "write an HTML page with plots to this file");
  command->callback([options] { run(*options); });
}

}  // namespace octet
