// octet embed: embeddings of texts, a line of JSON each.
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <deque>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/progress.h"
#include "base/threads.h"
#include "io/sequence_template.h"
#include "numbers.h"
#include "octet/commands.h"

namespace octet {
namespace {

struct Options {
  std::string model, out, prompt, key = "text";
  std::vector<std::string> files;
  EngineOptions engine = {.task = "embed"};
  std::optional<bool> normalize;
  int64_t dimensions = 0;
  int threads = 0;
  bool json = false, truncate = false;
};

// A text a line: of .jsonl, and where the first line is an object with a text under `key`, the line's string or that.
std::vector<std::string> read_texts(const Options& options) {
  std::vector<std::string> texts;
  const auto read = [&](std::istream& in, const std::string& name) {
    int64_t number = 0;
    bool jsonl = name.ends_with(".jsonl");
    for (std::string line; std::getline(in, line);) {
      const std::string where = fmt::format("{}:{}", name, ++number);
      jsonl = jsonl || (number == 1 && kind_of_line(line, options.key) == LineKind::kText);
      if (jsonl) {
        const nlohmann::json json = parse_json(line, where);
        const bool object = json.is_object() && json.contains(options.key);
        const nlohmann::json& text = object ? json.at(options.key) : json;
        check(text.is_string(), ErrorCode::kInvalidArgument, "{}: want a string, or an object with a string \"{}\"",
              where, options.key);
        line = text.get<std::string>();
      }
      check(!line.empty(), ErrorCode::kInvalidArgument, "{}: an empty text has no embedding", where);
      texts.push_back(line);
    }
  };
  for (const std::string& path : options.files) {
    std::ifstream file(path);
    check(path == "-" || file.good(), ErrorCode::kNotFound, "{}: no such file", path);
    path == "-" ? read(std::cin, "standard input") : read(file, path);
  }
  return texts;
}

// The folder's prompt of this name, or the text itself.
std::string prompt_of(const Options& options, const EncoderFacts& facts) {
  const std::string name = options.prompt.empty() ? facts.default_prompt : options.prompt;
  const auto found = facts.prompts.find(name);
  return found != facts.prompts.end() ? found->second : name;
}

void run_embed(Options& options) {
  set_thread_count(options.threads);
  const std::string folder = resolve_models(options.model, options.engine, "fp32");
  const std::vector<std::string> texts = read_texts(options);
  const auto engine = Engine::open(folder, options.engine);
  const EncoderFacts& facts = *engine->encoder();
  check(!facts.classifies, ErrorCode::kUnsupported,
        "{}: a classifier has no embeddings: use /v1/score or /v1/rerank of octet serve", folder);
  const auto tokenizer = load_tokenizer(options.engine.tokenizer.empty() ? folder : options.engine.tokenizer);
  const std::string before = prompt_of(options, facts);
  const int64_t left_out = facts.include_prompt ? 0 : prompt_tokens(*tokenizer, before);

  std::ofstream file;
  if (!options.out.empty()) file.open(options.out);
  std::ostream& out = options.out.empty() ? std::cout : file;
  check(out.good(), ErrorCode::kIo, "{} cannot be written", options.out);
  int64_t tokens = 0, done = 0;
  Progress progress({.title = "embed", .unit = "texts", .total = std::ssize(texts)});
  if (options.json) out << fmt::format("{{\"pooling\": \"{}\", \"data\": [", facts.pooling);
  constexpr size_t kAhead = 4096;  // texts in the engine
  std::deque<GenerationStream> streams;
  const auto finish = [&] {
    GenerationEvent event;
    streams.front().next(event);
    check(event.error.empty(), error_code_of(event), "text {}: {}", done, event.error);
    tokens += streams.front().times().prompt_tokens;
    streams.pop_front();
    const std::string line = fmt::format("{{\"index\": {}, \"embedding\": [{}]}}", done, fmt::join(event.values, ", "));
    out << (options.json && done > 0 ? ", " : "") << line << (options.json ? "" : "\n");
    ++done;
    progress.update(done);
  };
  for (const std::string& text : texts) {
    EncodedTexts encoded = encode_texts(*tokenizer, before + text, {}, options.truncate ? engine->context() : 0);
    streams.push_back(engine->submit({.prompt_ids = std::move(encoded.ids),
                                      .encode = true,
                                      .left_out = left_out,
                                      .dimensions = options.dimensions,
                                      .normalize = options.normalize}));
    if (streams.size() >= kAhead) finish();
  }
  while (!streams.empty()) finish();
  progress.finish();
  if (options.json) out << fmt::format("], \"tokens\": {}}}\n", tokens);
  check(out.flush().good(), ErrorCode::kIo, "{} cannot be written", options.out.empty() ? "output" : options.out);
}

}  // namespace

void add_embed_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  SettingsTable engine = settings_of(options->engine, "embed");
  engine.row("pooling").info.meaning = "cls, mean or last (default: as the folder says)";
  engine.row("max_sequences").info.meaning = "texts of a step";
  engine.row("context").info.meaning = "maximum tokens of a text (default: the model's)";
  engine.row("recipe").info.meaning = recipe_help("fp32");
  auto* command = app.add_subcommand("embed", "Embeddings of texts by an encoder, or by a decoder's last token");
  command->footer(R"(Examples:
  octet embed path/to/minilm texts.txt > embeddings.jsonl
  octet embed path/to/bge questions.jsonl --text-key question --prompt query --dimensions 256 --out vectors.jsonl
  echo 'a text' | octet embed path/to/qwen3-embedding - --pooling last --json)");
  add_model_option(*command, options->model);
  command
      ->add_option("files", options->files,
                   "texts, one a line, or JSON lines: a string or an object a line; - is stdin")
      ->required();
  command->add_option("--text-key", options->key, "member of .jsonl objects that holds the text");
  command->add_option("--out", options->out, "file to write (default: standard output)");
  command->add_flag("--json", options->json, "one JSON object with all embeddings and the count of tokens");
  add_options(*command, engine, {"pooling"});
  command->add_flag_function(
      "--normalize,!--no-normalize", [options](int64_t count) { options->normalize = count > 0; },
      "scale embeddings to length 1 (default: as the folder says)");
  command->add_option("--dimensions", options->dimensions, "keep the first ones, normalised again (default: all)")
      ->check(positive());
  command->add_option(
      "--prompt", options->prompt,
      "text in front of each input, or the name of one of the folder's prompts (default: the folder's)");
  command->add_flag("--truncate", options->truncate, "cut texts that are too long (default: an error)");
  add_options(*command, engine, {"tokenizer", "max_step_tokens", "max_sequences", "context", "recipe", "device"});
  add_threads_option(*command, options->threads);
  add_verbose_option(*command);
  add_other_options(*command, engine, "Engine");
  command->callback([options] { run_embed(*options); });
}

}  // namespace octet
