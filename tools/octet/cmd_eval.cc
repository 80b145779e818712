// octet eval: loss, perplexity and bits per byte of a model on text or prepared tokens; tasks (eval_tasks.cc).
#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/error.h"
#include "base/threads.h"
#include "numbers.h"
#include "octet/commands.h"
#include "octet/eval_rouge.h"
#include "octet/eval_tasks.h"
#include "octet/evaluate.h"
#include "train/classification.h"
#include "weights/weights.h"

namespace octet {
namespace {

struct Options : EvaluateOptions {
  std::string rouge, json_file;
  int threads = 0;
  bool json = false, no_bos = false;
  TaskOptions tasks;
};

// A classifier on labelled JSON lines: --data FILE, or the one text.
void run_classifier(const Options& o, const std::string& folder) {
  check(o.texts.size() + !o.data.empty() == 1, ErrorCode::kInvalidArgument,
        "octet eval of a classifier takes one file of JSON lines {{\"text\": .., \"label\": ..}}, and {} are given",
        o.texts.size() + !o.data.empty());
  const Target target = target_of(resolve_device(o.engine.device));
  const CompileOptions compile{.target = target,
                               .recipe = serving_recipe(*open_weights(folder), target, o.engine.recipe)};
  const ClassifierScores scores =
      evaluate_classifier(folder, o.data.empty() ? o.texts[0] : o.data, o.length, o.windows, compile);
  std::string text = o.json ? fmt::format("{{\"texts\": {}", scores.texts) : fmt::format("texts {}", scores.texts);
  for (size_t i = 0; i < scores.metrics.size(); ++i)
    text += o.json ? fmt::format(", \"{}\": {:.6f}", scores.metrics[i].name, scores.values[i])
                   : fmt::format("  {} {:.4f}", scores.metrics[i].name, scores.values[i]);
  fmt::print("{}{}\n", text, o.json ? "}" : "");
}

void run_eval(Options& options) {
  if (!options.rouge.empty()) {
    check(options.model.empty() && options.data.empty(), ErrorCode::kInvalidArgument,
          "octet eval --rouge compares the texts of its file: leave the model and --data out");
    return print_rouge(options.rouge);
  }
  if (const std::string folder = model_folder(options.model); is_classifier(folder))
    return run_classifier(options, folder);
  check(options.data.empty() != options.texts.empty(), ErrorCode::kInvalidArgument,
        "octet eval takes text files, --data PREFIX or --tasks NAME ...");
  options.bos = !options.no_bos;
  const PerplexityResult result = evaluate_texts(options, token_progress("eval"));
  if (result.rank > 0) return;
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
  SettingsTable engine = settings_of(options->engine);
  engine.row("recipe").info.meaning = recipe_help("fp32");
  engine.row("kv_cache").info.meaning =
      "keys and values go through a KV cache of f32, bf16, e4m3 or int8 (default: through none)";
  auto* command = app.add_subcommand("eval", "Loss on text or prepared tokens; tasks of lm-evaluation-harness");
  command->footer(R"(Examples:
  octet eval out/run wikitext.txt
  octet eval out/run --data data/corpus_val --stride 512 --json
  octet eval out/run wikitext.txt --recipe bf16 --kv-cache int8
  octet eval path/to/llama --tasks hellaswag mmlu --data eval_data --recipe bf16 --json results.json
  octet eval path/to/llama --tasks tasks/mine.yaml --shots 3 --chat --samples samples.jsonl
  octet eval path/to/llama --adapter out/lora --tasks gsm8k --data eval_data
  octet eval out/reviews reviews_test.jsonl     a classifier: accuracy, F1 and loss on labelled JSON lines
  octet eval --rouge summaries.jsonl > scores.jsonl)");
  add_model_option(*command, options->model);
  command->get_option("model")->required(false);  // --rouge has none
  command->add_option(
      "--rouge", options->rouge,
      "no model: ROUGE of each JSON line with target and prediction of this file, as rouge-score's, plain "
      "and with Porter's stems");
  command->add_option("texts", options->texts, "texts, as octet data takes them");
  command->add_option("--data", options->data,
                      "PREFIX of prepared tokens, PREFIX.bin/.idx; with --tasks the folder of built-in tasks' files");
  command->add_flag_function(
      "--separate-documents,!--joined-documents", [options](int64_t count) { options->separate_documents = count > 0; },
      "of --data: documents do not attend to each other, or do (default: as the run was trained)");
  add_text_options(*command, options->text);
  command->add_flag("--no-bos", options->no_bos, "no begin token in front of a text's windows");
  add_adapter_option(*command, options->engine, "One at most here, which texts are merged with and tasks run on.");
  add_options(*command, engine, {"tokenizer"});
  command->add_option("--length", options->length, "tokens per window (default: the model's context)")
      ->check(not_negative());
  command->add_option("--stride", options->stride, "tokens between windows (default: the length)")
      ->check(not_negative());
  command->add_option("--windows", options->windows, "windows per batch")->check(positive());
  command->add_option("--max-tokens", options->max_tokens, "stop after this many tokens; 0 = all")
      ->check(not_negative());
  add_options(*command, engine, {"recipe", "kv_cache", "device", "tensor", "rank_timeout"});
  add_threads_option(*command, options->threads);
  auto* json = command->add_option("--json", options->json_file,
                                   "print one JSON object; of --tasks it may name the file to write");
  json->expected(0, 1)->type_name("[FILE]");
  add_task_options(*command, options->tasks,
                   {"texts", "--rouge", "--separate-documents", "--format", "--key", "--no-bos", "--length", "--stride",
                    "--windows", "--max-tokens"});
  add_options(*command, engine, {"max_sequences", "max_step_tokens", "memory_fraction", "kv_cache_bytes"});
  for (const char* name : {"--max-sequences", "--max-step-tokens", "--memory-fraction", "--kv-cache-bytes"})
    command->get_option(name)->needs("--tasks")->group("Tasks");
  command->callback([options, json] {
    options->json = json->count() > 0;
    set_thread_count(options->threads);
    check(!options->model.empty() || !options->rouge.empty(), ErrorCode::kInvalidArgument,
          "octet eval requires MODEL, or --rouge FILE");
    if (!options->tasks.names.empty())
      return run_tasks(options->tasks, options->model, options->engine, options->data, options->json,
                       options->json_file);
    // A text behind --json is a text.
    if (!options->json_file.empty()) options->texts.push_back(options->json_file);
    run_eval(*options);
  });
}

}  // namespace octet
