// What the commands share (commands.h).
#include "octet/commands.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"
#include "build_info.h"
#include "io/chat_template_file.h"
#include "model/model.h"
#include "numbers.h"
#include "train/checkpoint.h"
#include "train/start_checks.h"
#include "weights/adapter_folder.h"

namespace octet {
namespace {

std::string flag_of(std::string name) {
  std::ranges::replace(name, '_', '-');
  return "--" + name;
}

CLI::Validator in_range(const SettingInfo& info, bool whole) {
  const std::string name = info.allows(0) ? "NONNEGATIVE" : "POSITIVE";
  if (std::isinf(info.max)) return number_range(name, info.allowed(), [info](double x) { return info.allows(x); });
  if (!whole) return CLI::Range(info.min, info.max);
  return CLI::Range(static_cast<int64_t>(info.min), static_cast<int64_t>(info.max));
}

CLI::Option* add_option(CLI::App& command, const SettingsTable::Row& row) {
  const SettingInfo& info = row.info;
  const std::string flag = flag_of(row.name);
  const auto add = [&](auto* field) -> CLI::Option* {
    if constexpr (std::is_same_v<decltype(field), bool*>)  // on by default: with its opposite
      return command.add_flag(*field ? flag + ",!--no-" + flag.substr(2) : flag, *field, info.meaning);
    else if constexpr (std::is_same_v<decltype(field), uint8_t*>)
      return command
          .add_option_function<std::string>(
              flag,
              [field, names = info.choices](const std::string& name) {
                *field = static_cast<uint8_t>(std::ranges::find(names, name) - names.begin());
              },
              info.meaning)
          ->default_str(row.default_text);
    else
      return command.add_option(flag, *field, info.meaning);
  };
  CLI::Option* option = std::visit(add, row.target);
  std::vector<std::string> choices = info.choices;
  std::erase(choices, "");
  if (!choices.empty()) option->check(CLI::IsMember(choices));
  if (std::isfinite(info.min)) option->check(in_range(info, std::holds_alternative<int64_t*>(row.target)));
  // Not shown where the meaning names it, or where it stands for none.
  const bool named = !choices.empty() && info.meaning.find(row.default_text) != std::string::npos;
  if (named || (info.off && row.default_text == fmt::format("{}", *info.off))) option->default_str("");
  return option;
}

}  // namespace

void add_options(CLI::App& command, SettingsTable& settings, const std::vector<std::string>& names) {
  for (const std::string& name : names) add_option(command, settings.row(name));
}

void add_other_options(CLI::App& command, SettingsTable& settings, const std::string& group) {
  for (const SettingsTable::Row& row : settings.rows())
    if (!row.info.by_program && command.get_option_no_throw(flag_of(row.name)) == nullptr)
      add_option(command, row)->group(group);
}

void add_model_option(CLI::App& command, std::string& model) {
  command.add_option("model", model, "Hugging Face folder, run folder, checkpoint or llama2.c .bin")->required();
}

void add_threads_option(CLI::App& command, int& threads) {
  command.add_option("--threads", threads, "CPU threads; 0 = all cores")->check(CLI::Range(0, 4096));
}

void add_verbose_option(CLI::App& command) {
  command.add_flag_callback(
      "-v,--verbose", [] { set_log_level(LogLevel::kDebug); }, "log the time of each part of the start");
}

void add_run_options(CLI::App& command, RunOptions& options) {
  command.add_option("config", options.file, "settings file (YAML), or the first key=value word");
  command.add_option("settings", options.words, "key=value settings that override the file (octet config lists them)");
  command
      .add_option("--disable", options.disable,
                  "disable a pass or a step of one, by name (may be given several times)")
      ->allow_extra_args(false);  // settings may follow
  command.add_option("--device", options.device, "device: auto (a GPU if one is usable), cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  command.add_option("--dump-ir", options.dump_ir, "write the graphs after every pass into this folder");
}

RunConfig default_settings(const RunOptions& options) {
  RunConfig config;
  SettingsTable settings = settings_of(config);
  const bool has_file = !options.file.empty() && options.file.find('=') == std::string::npos;
  if (has_file) settings.load_yaml_file(options.file);
  if (!options.file.empty() && !has_file) settings.set_words({options.file});
  settings.set_words(options.words);
  return default_settings(config.workload);
}

void read_run_options(const RunOptions& options, RunConfig& config, SettingsTable& settings) {
  std::vector<std::string> words = options.words;
  bool has_file = !options.file.empty() && options.file.find('=') == std::string::npos;
  if (!options.file.empty() && !has_file) words.insert(words.begin(), options.file);
  check(has_file || !words.empty(), ErrorCode::kInvalidArgument,
        "want a settings file or key=value words, such as configs/gpt2_124m.yaml or model.size=gpt2-124m");
  if (has_file) settings.load_yaml_file(options.file);
  settings.set_words(words);
  if (!options.disable.empty()) config.disable = options.disable;
  if (!options.device.empty()) config.device = options.device;
  if (!options.dump_ir.empty()) config.dump_ir = options.dump_ir;
  for (std::string* folder : {&config.model_from, &config.dpo.reference})
    if (!folder->empty()) *folder = model_folder(*folder);
}

std::string model_folder(const std::string& path) {
  const std::vector<std::string> sizes = named_models();
  const bool named = std::find(sizes.begin(), sizes.end(), path) != sizes.end();
  std::string hint;
  if (named) hint = " (it names a size: octet train model.size=..., or octet bench ... --random-weights)";
  const size_t slash = path.find('/');
  const bool repository = slash != std::string::npos && slash > 0 && slash + 1 < path.size() &&
                          path.find('/', slash + 1) == std::string::npos && !path.starts_with(".") &&
                          !is_folder(path.substr(0, slash));
  if (repository)
    hint = fmt::format(" (to download a repository of huggingface.co: hf download {} --local-dir {}; then give {})",
                       path, path.substr(slash + 1), path.substr(slash + 1));
  check(path_exists(path), ErrorCode::kNotFound, "{}: no such file or folder{}", path, hint);
  if (!is_folder(path + "/checkpoints")) return path;
  auto newest = newest_sound_checkpoint(path);
  check(newest.has_value(), ErrorCode::kNotFound, "{}: {}/checkpoints contains no checkpoint", path, path);
  return *newest;
}

Target find_target(const std::string& name) {
  if (name == "cpu") return cpu_target();
  if (name == "h200") return h200_target();
  const std::vector<std::string> published = published_targets();
  if (std::ranges::count(published, name) > 0) return published_target(name);
  check(path_exists(name), ErrorCode::kNotFound, "target {} (want {})", name, target_help());
  return read_target(name);
}

std::string target_help() {
  return fmt::format("cpu, h200, {} or a target file", fmt::join(published_targets(), ", "));
}

void add_budget_options(CLI::App& command, TokenBudget& budget) {
  const auto set = [&budget](const std::string& text) {
    int64_t tokens = 0;
    SettingsTable table;
    table.add("--tokens", &tokens, {.min = 1});
    table.set("--tokens", text, "command line");
    budget.units = static_cast<double>(tokens);
  };
  auto* tokens = command
                     .add_option_function<std::string>("--tokens", set,
                                                       "how many the run trains on, as in 300G: days, energy and cost")
                     ->type_name("COUNT");
  command.add_option("--price", budget.price, "of a device and hour, in any currency")
      ->check(CLI::NonNegativeNumber)
      ->needs(tokens);
}

std::string resolve_models(const std::string& model, EngineOptions& engine, const std::string& recipe) {
  std::string folder = engine.random_weights && !path_exists(model) ? model : model_folder(model);
  if (path_exists(engine.draft)) engine.draft = model_folder(engine.draft);
  if (!recipe.empty() && engine.recipe.empty() && !engine.random_weights && !open_weights(folder)->recipe())
    engine.recipe = recipe;
  engine.build = version_text("octet");
  return folder;
}

void add_adapter_option(CLI::App& command, EngineOptions& engine, const std::string& whose) {
  const auto add = [&engine](const std::vector<std::string>& words) {
    for (const std::string& word : words) {
      const size_t equals = word.find('=');
      const std::string folder = equals == std::string::npos ? word : word.substr(equals + 1);
      std::string name = word.substr(0, equals);
      if (equals == std::string::npos)
        name = std::filesystem::path(folder + "/").lexically_normal().parent_path().filename().string();
      check(!name.empty() && !folder.empty(), ErrorCode::kInvalidArgument, "--adapter: \"{}\" (want NAME=DIR)", word);
      const auto [known, added] = engine.adapters.emplace(name, model_folder(folder));
      check(added, ErrorCode::kInvalidArgument,
            "--adapter: two are called {} ({} and {}): want a name of its own for each, NAME=DIR", name, known->second,
            folder);
    }
  };
  command
      .add_option_function<std::vector<std::string>>(
          "--adapter", add,
          "NAME=DIR, an adapter (a folder of PEFT, or a run) by the name that requests give it, by default its "
          "folder's; may be given several times. " +
              whose)
      ->allow_extra_args(false);
}

std::string only_adapter(const EngineOptions& engine) {
  const auto& adapters = engine.adapters;
  if (adapters.empty()) return {};
  check(adapters.size() == 1, ErrorCode::kInvalidArgument,
        "--adapter: {} and {} are given, and one is used here (want one; octet generate and octet serve take several)",
        adapters.begin()->first, std::next(adapters.begin())->first);
  return adapters.begin()->first;
}

std::string chat_folder(const std::string& folder, const EngineOptions& engine) {
  const auto has_one = [](const std::string& path) {
    std::string where;
    return !find_chat_template(path, "default", where).empty();
  };
  if (const std::string name = only_adapter(engine); !name.empty())
    if (const std::string& adapter = engine.adapters.at(name); has_one(adapter)) return adapter;
  return is_adapter_folder(folder) && !has_one(folder) ? tokenizer_folder(folder) : folder;
}

void add_text_options(CLI::App& command, TextOptions& text) {
  const auto set = [&text](const std::string& name) {
    text.format = name == "text"    ? CorpusFormat::kText
                  : name == "jsonl" ? CorpusFormat::kJsonLines
                                    : CorpusFormat::kAuto;
  };
  command
      .add_option_function<std::string>(
          "--format", set, "auto: JSON lines where a file is named so or its first line is an object with the key")
      ->check(CLI::IsMember({"auto", "text", "jsonl"}))
      ->default_str("auto");
  command.add_option("--key", text.json_key, "key of the text in JSON lines");
}

EvalTokens open_set(const std::string& prefix, const WeightSource& weights, const std::string& tokenizer) {
  if (const auto info = find_dataset_info(prefix)) {
    check(!info->pairs, ErrorCode::kInvalidArgument,
          "{} has pairs of answers, chosen and rejected: their loss and accuracy are those of a run with "
          "train.objective=dpo and data.validation={}",
          prefix, prefix);
    check_vocabulary(tokenizer, prefix, *info);
  }
  return {.set = open_prepared_set(prefix, weights.config().vocab_size)};
}

EvalTokens read_texts(const std::vector<std::string>& paths, const Tokenizer& tokenizer, const TextOptions& text,
                      bool bos, int64_t most) {
  const int32_t begin = bos && tokenizer.adds_bos() ? tokenizer.bos_id() : -1;
  EvalTokens tokens{.ids = encode_corpus(tokenizer, paths, text, begin, most), .begin_id = begin};
  check(tokens.count() >= 2, ErrorCode::kInvalidArgument, "{}: {} tokens, at least 2 are needed",
        fmt::join(paths, ", "), tokens.count());
  return tokens;
}

PerplexityResult measure_perplexity(const WeightSource& weights, PerplexityOptions options, const EvalTokens& tokens,
                                    const Tokenizer* tokenizer, const TokensDone& on_progress) {
  const int64_t all = tokens.count() - 1;
  const int64_t total = options.max_tokens > 0 ? std::min(options.max_tokens, all) : all;
  options.windows = std::min(options.windows, (total + options.length - 1) / options.length);
  options.length = std::min(options.length, all);
  return evaluate_perplexity(weights, options, tokens, tokenizer, [&](int64_t done) { on_progress(done, total); });
}

TokensDone token_progress(const std::string& title) {
  const auto bar = std::make_shared<std::optional<Progress>>();
  return [bar, title](int64_t done, int64_t total) {
    if (!*bar) bar->emplace(ProgressOptions{.title = title, .unit = "tok", .total = total});
    (*bar)->update(done);
  };
}

ErrorCode error_code_of(const GenerationEvent& event) {
  const bool fault = event.error_kind == ErrorKind::kDevice || event.error_kind == ErrorKind::kInternal;
  return fault ? ErrorCode::kInternal : ErrorCode::kInvalidArgument;
}

}  // namespace octet
