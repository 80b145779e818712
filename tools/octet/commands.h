// The commands of `octet`: each cmd_<name>.cc adds one subcommand with its options, help and examples; and what they
// share.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "eval/perplexity.h"
#include "infer/engine_settings.h"
#include "io/corpus.h"
#include "train/run_config.h"
#include "train/token_budget.h"

namespace CLI {
class App;
}

namespace octet {

// The model: a folder, run, checkpoint or llama2.c file.
void add_model_option(CLI::App& command, std::string& model);
// Flags that are rows of a settings table, in this order: --kv-cache of kv_cache, with its type, range, default,
// meaning.
void add_options(CLI::App& command, SettingsTable& settings, const std::vector<std::string>& names);
// Of every other row that is not the program's own and of whose flag the command has none; under a heading `group`.
void add_other_options(CLI::App& command, SettingsTable& settings, const std::string& group);
// --adapter NAME=DIR or DIR, as often as wanted. `whose`: which texts have which.
void add_adapter_option(CLI::App& command, EngineOptions& engine, const std::string& whose);
// The name of the adapter that all texts of a command have: "" where none is given. Throws where there are several.
std::string only_adapter(const EngineOptions& engine);
// --threads, for set_thread_count().
void add_threads_option(CLI::App& command, int& threads);
// -v, --verbose: log level debug, which logs the time of each part of the start.
void add_verbose_option(CLI::App& command);

// Options shared by `octet train` and `octet plan`: a settings file, key=value words, and flags for passes.
struct RunOptions {
  std::string file;  // or the first key=value word
  std::vector<std::string> words;
  std::vector<std::string> disable;
  std::string dump_ir, device;
};

void add_run_options(CLI::App& command, RunOptions& options);

// Applies the file, then words, then flags to the struct of the table. Throws when none is given.
void read_run_options(const RunOptions& options, RunConfig& config, SettingsTable& settings);
RunConfig default_settings(const RunOptions& options);  // of the workload that they name

// "cpu", "h200" or a target file.
Target find_target(const std::string& name);
std::string target_help();                                        // what it takes
void add_budget_options(CLI::App& command, TokenBudget& budget);  // --tokens, --price

// The newest sound checkpoint of a run folder; any other path unchanged.
std::string model_folder(const std::string& path);
// The same of an engine's model, or the name of one with random weights; also of its draft. `recipe`: of folders that
// name none; empty: as the engine chooses. Names the build, which all processes of the ranks must have.
std::string resolve_models(const std::string& model, EngineOptions& engine, const std::string& recipe = {});

// Whose chat template texts have: the adapter's, where its folder has one, else the model's, its base's if that is an
// adapter without one.
std::string chat_folder(const std::string& folder, const EngineOptions& engine);

// --format and --key: how a command reads texts.
void add_text_options(CLI::App& command, TextOptions& text);

// Inputs, --out, --key, --id, --max-line, --threads of commands from JSON lines to JSON lines.
void add_json_lines_options(CLI::App& command, std::vector<std::string>& inputs, std::string& output, std::string& key,
                            std::string& id, int64_t& longest, int& threads);

// A prepared set, whose tokens are those of the model's vocabulary (in the folder or file `tokenizer`).
EvalTokens open_set(const std::string& prefix, const WeightSource& weights, const std::string& tokenizer);
// Texts, behind begin tokens where the tokenizer puts them there and `bos`; at least the first `most` tokens (0 = all).
EvalTokens read_texts(const std::vector<std::string>& paths, const Tokenizer& tokenizer, const TextOptions& text,
                      bool bos, int64_t most);

// Tokens done, of how many; a progress bar of the process that is told.
using TokensDone = std::function<void(int64_t, int64_t)>;
TokensDone token_progress(const std::string& title);
// Runs an evaluator of these options, of windows no more and no longer than the tokens.
PerplexityResult measure_perplexity(const WeightSource& weights, PerplexityOptions options, const EvalTokens& tokens,
                                    const Tokenizer* tokenizer, const TokensDone& on_progress);
// Of a text that ended with an error: kInternal where that is no fault of the request.
ErrorCode error_code_of(const GenerationEvent& event);

void add_tokenizer_command(CLI::App& app);
void add_data_command(CLI::App& app);
void add_data_dedup_command(CLI::App& data);
void add_data_clean_command(CLI::App& data);
void add_data_bert_command(CLI::App& data);
void add_train_command(CLI::App& app);
void add_eval_command(CLI::App& app);
void add_quantize_command(CLI::App& app);
void add_generate_command(CLI::App& app);
void add_embed_command(CLI::App& app);
void add_verify_command(CLI::App& app);
void add_plan_command(CLI::App& app);
void add_tune_command(CLI::App& app);
void add_export_command(CLI::App& app);
void add_report_command(CLI::App& app);
void add_mlperf_command(CLI::App& app);
void add_config_command(CLI::App& app);
void add_bench_command(CLI::App& app);
void add_bench_encode_command(CLI::App& bench);
void add_serve_command(CLI::App& app);  // in builds with OCTET_SERVE, as the next two
void add_chat_command(CLI::App& app);
void add_bench_serve_command(CLI::App& bench);
void add_completion_command(CLI::App& app);

}  // namespace octet
