// octet generate: streams text from a model folder, a checkpoint or a llama2.c file to the terminal. All prompts are in
// flight together; output is printed in prompt order.
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/threads.h"
#include "infer/request.h"
#include "infer/sampler.h"
#include "io/tokenizer.h"
#include "numbers.h"
#include "octet/commands.h"
#include "octet/sampling_options.h"
#include "weights/adapter_folder.h"

namespace octet {
namespace {

struct Prompt {
  std::string text;                         // as it is printed
  std::vector<int32_t> ids = {};            // instead of it
  std::optional<std::string> adapter = {};  // "": none; nullopt: as the command says
};

struct Options {
  std::string model, prompt_file, prompts_file;
  std::vector<std::string> texts, ids, logit_bias;
  std::vector<Prompt> prompts;
  EngineOptions engine = {.max_sequences = 0};
  GenerationRequest request;
  int64_t count = 1;
  int threads = 0;
  int64_t failed = 0;  // texts that ended with an error
  const LoggedTime* since_start = nullptr;
  bool interactive = false, stats = false, echo = true, json = false;
};

struct Text {
  size_t prompt = 0;   // index of its prompt
  int64_t sample = 0;  // index of the sample within its prompt
  std::string words;
  std::vector<TokenLogprob> logprobs;
  std::vector<std::vector<TokenLogprob>> top;
  std::vector<int32_t> ids;
  FinishReason finished = FinishReason::kNone;
  std::optional<double> score = {};  // of a beam search
};

bool write_text(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  return std::ferror(stdout) == 0;
}

// Reads a file or a pipe: /dev/stdin, <(command).
std::string read_input(const std::string& path) {
  std::error_code error;
  const auto type = std::filesystem::status(path, error).type();
  if (type != std::filesystem::file_type::fifo && type != std::filesystem::file_type::character) return read_file(path);
  std::ifstream stream(path, std::ios::binary);
  check(stream.good(), ErrorCode::kIo, "{}: cannot open", path);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// {"prompt" or "prompt_ids", "adapter"?}
Prompt read_prompt(const std::string& line, const std::string& where) {
  const nlohmann::json json = parse_json(line, where);
  Prompt prompt;
  if (json.contains("prompt_ids")) {
    check(!json.contains("prompt"), ErrorCode::kInvalidArgument, "{}: both prompt and prompt_ids (want one)", where);
    prompt.ids = json_get<std::vector<int32_t>>(json, "prompt_ids", where);
    check(!prompt.ids.empty(), ErrorCode::kInvalidArgument, "{}: prompt_ids is empty (want at least one id)", where);
    prompt.text = fmt::format("{}", fmt::join(prompt.ids, ","));
  } else {
    prompt.text = json_get<std::string>(json, "prompt", where);
  }
  if (json.contains("adapter"))
    prompt.adapter = json["adapter"].is_null() ? "" : json_get<std::string>(json, "adapter", where);
  return prompt;
}

// JSON lines with a "prompt" or "prompt_ids" each, or one prompt per line.
void read_prompts(const std::string& path, std::vector<Prompt>& prompts) {
  std::istringstream lines(read_input(path));
  std::optional<bool> json;
  if (path.ends_with(".jsonl")) json = true;
  std::string text;
  for (size_t line = 1; std::getline(lines, text); ++line) {
    if (text.ends_with('\r')) text.pop_back();
    const std::string where = fmt::format("{}:{}", path, line);
    if (text.empty()) continue;
    if (!json)
      json = kind_of_line(text, "prompt") == LineKind::kText ||
             (text[0] == '{' && text.find("\"prompt_ids\"") != std::string::npos);
    prompts.push_back(*json ? read_prompt(text, where) : Prompt{text});
  }
  check(!prompts.empty(), ErrorCode::kInvalidArgument, "{}: has no prompt", path);
}

void print_stats(const RequestTimes& times, const std::string& reason) {
  auto rate = [](int64_t tokens, double seconds) { return static_cast<double>(tokens) / std::max(seconds, 1e-9); };
  fmt::print(stderr, "[{} prompt tokens at {:.1f} tok/s, {} generated at {:.1f} tok/s, ended by {}]\n",
             times.prompt_tokens, rate(times.prompt_tokens - times.cached_tokens, times.first_token - times.scheduled),
             times.generated_tokens, rate(times.generated_tokens, times.last_token - times.scheduled), reason);
}

nlohmann::json logprobs_json(const std::vector<TokenLogprob>& tokens) {
  nlohmann::json list = nlohmann::json::array();
  for (const TokenLogprob& token : tokens) list.push_back({{"id", token.id}, {"logprob", token.logprob}});
  return list;
}

void print_json(const std::string& prompt, const Text& text) {
  nlohmann::json line{
      {"prompt_index", text.prompt}, {"sample", text.sample}, {"prompt", prompt},
      {"text", text.words},          {"ids", text.ids},       {"finish_reason", finish_reason_name(text.finished)}};
  if (text.score) line["score"] = *text.score;
  if (!text.logprobs.empty()) line["logprobs"] = logprobs_json(text.logprobs);
  if (!text.logprobs.empty() && !text.top[0].empty())
    for (const auto& tokens : text.top) line["top_logprobs"].push_back(logprobs_json(tokens));
  write_text(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

// A failed text does not stop the others from being printed; it is counted for the exit code.
void print_failure(const Text& text, const GenerationEvent& event, Options& options) {
  const std::string &prompt = options.prompts[text.prompt].text, &error = event.error;
  check(options.prompts.size() * static_cast<size_t>(options.count) > 1, error_code_of(event), "{}", error);
  ++options.failed;
  fmt::print(stderr, "octet: prompt {} of {}: {}\n", text.prompt + 1, options.prompts.size(), error);
  if (!options.json) return;
  nlohmann::json line{{"prompt_index", text.prompt},
                      {"sample", text.sample},
                      {"prompt", prompt},
                      {"finish_reason", finish_reason_name(FinishReason::kError)},
                      {"error", error}};
  write_text(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

// "1,2,3" of each, beside which the words are what is printed as the prompt.
std::vector<int32_t> parse_ids(const std::string& words) {
  std::vector<int32_t> ids;
  std::istringstream stream(words);
  for (std::string word; std::getline(stream, word, ',');) {
    size_t end = 0;
    try {
      ids.push_back(std::stoi(word, &end));
    } catch (const std::exception&) {  // reported below
    }
    check(end > 0 && end == word.size(), ErrorCode::kInvalidArgument,
          "--ids: \"{}\" in \"{}\" (want ids such as 1,2,3)", word, words);
  }
  return ids;
}

void print_logprobs(const Text& text) {
  for (size_t i = 0; i < text.ids.size(); ++i) {
    std::string line = fmt::format("  {} {:.4f}", text.ids[i], text.logprobs[i].logprob);
    for (const TokenLogprob& token : text.top[i]) line += fmt::format("  {}:{:.4f}", token.id, token.logprob);
    write_text(line + "\n");
  }
}

// Prints the texts of a beam search, each with its score. False when stdout is closed.
bool print_beams(GenerationStream& stream, Text text, Options& options) {
  for (GenerationEvent event; stream.next(event);) {
    text.sample = event.sample;
    if (event.finished == FinishReason::kError) {
      print_failure(text, event, options);
      continue;
    }
    text.words = event.text, text.ids = event.ids, text.logprobs = event.logprobs, text.top = event.top;
    text.finished = event.finished, text.score = event.score;
    const std::string& prompt = options.prompts[text.prompt].text;
    if (options.json) {
      print_json(prompt, text);
      continue;
    }
    write_text(fmt::format("--- {}, score {:.5f}\n{}{}\n",
                           text.prompt * static_cast<size_t>(options.count) + static_cast<size_t>(event.sample) + 1,
                           event.score, options.echo ? prompt : "", event.text));
    if (options.request.logprobs >= 0) print_logprobs(text);
  }
  if (options.stats) print_stats(stream.times(), finish_reason_name(text.finished));
  return std::ferror(stdout) == 0;
}

// Streams a text to stdout. False when stdout is closed.
bool print_text(GenerationStream& stream, Text text, Options& options) {
  const std::string& prompt = options.prompts[text.prompt].text;
  bool opened = false;
  for (GenerationEvent event; stream.next(event);) {
    if (options.since_start != nullptr && !event.ids.empty())
      log_debug("first token after {:.3f} s", std::exchange(options.since_start, nullptr)->seconds());
    if (event.finished == FinishReason::kError) {
      if (opened) write_text("\n");
      print_failure(text, event, options);
      return std::ferror(stdout) == 0;
    }
    text.finished = event.finished;
    text.ids.insert(text.ids.end(), event.ids.begin(), event.ids.end());
    text.logprobs.insert(text.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    text.top.insert(text.top.end(), event.top.begin(), event.top.end());
    if (options.json) {
      text.words += event.text;
      continue;
    }
    if (!std::exchange(opened, true)) {  // not earlier: a refused prompt is not printed
      int64_t number = static_cast<int64_t>(text.prompt) * options.count + text.sample + 1;
      if (options.count > 1 || options.prompts.size() > 1) write_text(fmt::format("--- {}\n", number));
      if (options.echo) write_text(prompt);
    }
    if (!write_text(event.text)) return false;
  }
  if (options.json) {
    print_json(prompt, text);
  } else {
    write_text("\n");
    if (options.request.logprobs >= 0) print_logprobs(text);
  }
  if (options.stats) print_stats(stream.times(), finish_reason_name(text.finished));
  return std::ferror(stdout) == 0;
}

void generate_all(Engine& engine, Options& options) {
  // Submits a few batches ahead of printing, which keeps the engine busy and the queue short.
  const auto ahead = static_cast<size_t>(4 * options.engine.max_sequences);
  std::deque<std::pair<Text, GenerationStream>> texts;
  auto print_first = [&] {
    auto& [text, stream] = texts.front();
    bool read = options.request.beams > 0 ? print_beams(stream, text, options) : print_text(stream, text, options);
    texts.pop_front();
    return read;
  };
  for (size_t p = 0; p < options.prompts.size(); ++p) {
    const bool beams = options.request.beams > 0;  // one request gives all texts of a prompt
    for (int64_t i = 0; i < (beams ? 1 : options.count); ++i) {
      GenerationRequest request = options.request;
      if (beams) request.n = options.count;
      const Prompt& prompt = options.prompts[p];
      if (prompt.ids.empty())
        request.prompt = prompt.text;
      else
        request.prompt_ids = prompt.ids;
      request.adapter = prompt.adapter.value_or(options.request.adapter);
      request.sampling.seed += static_cast<uint64_t>(i);
      texts.emplace_back(Text{.prompt = p, .sample = i}, engine.submit(std::move(request)));
      if (texts.size() > ahead && !print_first()) return;
    }
  }
  while (!texts.empty())
    if (!print_first()) return;
  const EngineStats stats = engine.stats();
  if (options.stats && stats.drafted_tokens > 0)
    fmt::print(stderr, "[{} tokens drafted, {} accepted]\n", stats.drafted_tokens, stats.accepted_tokens);
  check(options.failed == 0, ErrorCode::kInvalidArgument, "{} of {} completions failed", options.failed,
        options.prompts.size() * static_cast<size_t>(options.count));
}

// Each line continues the conversation, which is in the prefix cache; an empty line ends it.
void interact(Engine& engine, const Tokenizer& tokenizer, const Options& options) {
  fmt::print(stderr, "Type text to continue, an empty line or Ctrl-D to leave, /reset to forget.\n");
  std::vector<int32_t> said;
  std::string line;
  while (fmt::print(stderr, "> "), std::getline(std::cin, line) && !line.empty()) {
    if (line == "/reset") {
      said.clear();
      continue;
    }
    try {
      EncodeOptions encode{.add_bos = tokenizer.adds_bos() && options.request.add_bos && said.empty()};
      tokenizer.encode_to(line, encode, said);
      GenerationRequest request = options.request;
      request.prompt_ids = said;
      GenerationStream stream = engine.submit(std::move(request));
      FinishReason finished = FinishReason::kNone;
      for (GenerationEvent event; stream.next(event);) {
        check(event.finished != FinishReason::kError, error_code_of(event), "{}", event.error);
        said.insert(said.end(), event.ids.begin(), event.ids.end());
        if (!write_text(event.text)) return;
        finished = event.finished;
      }
      write_text("\n");
      if (options.stats) print_stats(stream.times(), finish_reason_name(finished));
      if (finished == FinishReason::kContext) said.clear();
    } catch (const Error& error) {
      fmt::print(stderr, "{}\n", error.message());
      said.clear();
    }
  }
}

void run_generate(Options& options) {
  const LoggedTime whole("all");
  options.since_start = &whole;
  set_thread_count(options.threads);
  parse_biases(options.logit_bias, options.request.sampling);
  validate(options.request.sampling);
  const StopMatcher stops_are_valid{options.request.stop};  // throws before a model is read
  for (const std::string& text : options.texts) options.prompts.push_back({text});
  if (!options.prompt_file.empty()) options.prompts.push_back({read_input(options.prompt_file)});
  if (!options.prompts_file.empty()) read_prompts(options.prompts_file, options.prompts);
  check(options.ids.empty() || (options.prompts.empty() && !options.interactive), ErrorCode::kInvalidArgument,
        "--ids with other prompts: give either ids or text");
  for (const std::string& ids : options.ids) options.prompts.push_back({ids, parse_ids(ids)});
  if (options.prompts.empty()) options.prompts.emplace_back();
  if (std::ranges::all_of(options.prompts, [](const Prompt& prompt) { return !prompt.ids.empty(); }))
    options.engine.needs_tokenizer = false;
  const std::map<std::string, std::string>& adapters = options.engine.adapters;
  if (adapters.size() == 1) options.request.adapter = adapters.begin()->first;
  for (const Prompt& prompt : options.prompts) {  // before the model is loaded
    const std::string name = prompt.adapter.value_or("");
    check(name.empty() || adapters.contains(name), ErrorCode::kInvalidArgument,
          "prompt \"{}\": no adapter {} is given (want --adapter {}=DIR)", prompt.text, name, name);
  }
  int64_t texts = options.interactive ? 1 : options.count * static_cast<int64_t>(options.prompts.size());
  texts = std::max(texts, options.request.beams * std::ssize(options.prompts));
  if (options.engine.max_sequences == 0) options.engine.max_sequences = std::min<int64_t>(texts, 64);
  options.engine.max_waiting = options.engine.max_waiting_tokens = std::numeric_limits<int64_t>::max();
  const std::string folder = resolve_models(options.model, options.engine, "fp32");
  auto engine = Engine::open(folder, options.engine);
  if (engine == nullptr) return;  // another rank's process
  if (!options.interactive) return generate_all(*engine, options);
  auto tokenizer =
      load_tokenizer(options.engine.tokenizer.empty() ? tokenizer_folder(folder) : options.engine.tokenizer);
  interact(*engine, *tokenizer, options);
}

void add_beam_options(CLI::App& command, GenerationRequest& request) {
  static const std::map<std::string, EarlyStopping> kStopping = {
      {"false", EarlyStopping::kNo}, {"true", EarlyStopping::kYes}, {"never", EarlyStopping::kNever}};
  command
      .add_option("--beams", request.beams,
                  "beam search of this width, whose --count best completions are printed; 0: off")
      ->check(CLI::Range(int64_t{0}, kMaxBeams));
  command.add_option("--length-penalty", request.length_penalty,
                     "of beams: scores are divided by length to this power");
  command
      .add_option_function<std::string>(
          "--early-stopping", [&request](const std::string& name) { request.early_stopping = kStopping.at(name); },
          "of beams: false, true or never, as in transformers")
      ->check(CLI::IsMember(kStopping))
      ->default_str("false");
}

}  // namespace

void add_generate_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  GenerationRequest& request = options->request;
  SettingsTable engine = settings_of(options->engine, "generate");
  engine.row("recipe").info.meaning = recipe_help("fp32");
  engine.row("max_sequences").info.meaning = "sequences in flight (default: all, at most 64)";
  for (const char* limit : {"max_waiting", "max_waiting_tokens"}) engine.row(limit).info.by_program = true;
  auto* command = app.add_subcommand("generate", "Generate text from a model folder, a run or a llama2.c file");
  command->footer(R"(Examples:
  octet generate out/run --prompt "Once upon a time" --max-tokens 200
  octet generate stories260K.bin --tokenizer tok512.bin --temperature 0 --max-tokens 200
  octet generate out/run --prompts-file questions.jsonl --json --logprobs 5
  octet generate out/run --prompt-file report.txt --draft ngram --stats
  octet generate out/run --prompt "Once upon a time" --beams 4 --count 2 --json
  octet generate path/to/model --draft path/to/smaller --draft-tokens 4 --prompt "In short,"
  octet generate path/to/llama --adapter path/to/adapter --prompt "Dear"
  octet generate path/to/llama --adapter sql=out/sql --adapter chat=out/chat --prompts-file requests.jsonl --json
  octet generate path/to/llama-70b --tensor 2 --recipe fp8-current --prompt "Dear"
  octet generate out/run --interactive --top-p 0.9)");
  add_model_option(*command, options->model);
  add_options(*command, engine, {"tokenizer"});
  command->add_option("-p,--prompt", options->texts, "text to continue (may be given several times)")
      ->allow_extra_args(false);  // the next word may be the model
  command->add_option("--ids", options->ids, "token ids to continue, 1,2,3 (may be given several times)")
      ->allow_extra_args(false);
  command->add_option("--prompt-file", options->prompt_file, "read the prompt from a file");
  command->add_option("--prompts-file", options->prompts_file,
                      "read prompts, one per line, or JSON lines with \"prompt\" or \"prompt_ids\" and \"adapter\"");
  add_adapter_option(*command, options->engine, "Prompts that name none have the one that is given, of several none.");
  command->add_option("-n,--max-tokens", request.max_tokens, "maximum number of tokens to generate")
      ->check(not_negative());
  command->add_option("--min-tokens", request.min_tokens, "minimum number of tokens to generate")
      ->check(not_negative());
  add_sampling_options(*command, request, options->logit_bias);
  command
      ->add_option("--logprobs", request.logprobs,
                   "print log-probabilities of each token and the k most likely ones (k at most 20)")
      ->default_str("");
  command->add_option("--stop", request.stop, "stop before this text (may be given several times)")
      ->allow_extra_args(false);
  command->add_option("--stop-id", request.stop_ids, "stop at this token (may be given several times)")
      ->allow_extra_args(false);
  command->add_flag("--ignore-eos", request.ignore_eos, "do not stop at the end token");
  add_beam_options(*command, request);
  command->add_option("--count", options->count, "number of completions per prompt")->check(CLI::Range(1, 1000000));
  add_options(
      *command, engine,
      {"context", "recipe", "kv_cache", "max_sequences", "draft", "draft_tokens", "draft_memory", "device", "tensor"});
  add_verbose_option(*command);
  add_threads_option(*command, options->threads);
  command->add_flag("-i,--interactive", options->interactive, "read prompts from the terminal");
  command->add_flag("--json", options->json, "print a JSON object per completion");
  command->add_flag("--stats", options->stats, "print tokens per second");
  command->add_flag("!--no-bos", request.add_bos, "do not prepend the begin token");
  command->add_flag("--echo,!--no-echo", options->echo, "print the prompt too (default)");
  add_other_options(*command, engine, "Engine");
  command->callback([options] { run_generate(*options); });
}

}  // namespace octet
