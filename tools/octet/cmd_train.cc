// octet train: settings from a YAML file and key=value words, then the training loop.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>

#include "base/error.h"
#include "octet/commands.h"
#include "train/trainer.h"

namespace octet {
namespace {

constexpr const char* kExamples = R"(
Examples:
  octet train configs/shakespeare_char.yaml
  octet train configs/gpt2_124m.yaml precision.recipe=fp8-delayed train.micro_batch=8 out=out/gpt2-fp8
  octet train configs/gpt2_124m.yaml --settings        every setting, its meaning and value
A run whose `out` folder holds checkpoints continues from the newest sound one (resume=never starts afresh).
Ctrl-C finishes the step, writes a checkpoint and leaves.)";

void run_training(const std::string& file, const std::vector<std::string>& words, bool show_settings) {
  RunConfig config;
  SettingsTable settings = settings_of(config);
  if (!file.empty()) settings.load_yaml_file(file);
  settings.set_words(words);
  if (show_settings) {
    std::fputs(settings.help().c_str(), stdout);
    return;
  }
  check(!file.empty() || !words.empty(), ErrorCode::kInvalidArgument,
        "octet train wants a settings file or key=value words; see octet train --help");
  fmt::print(stderr, "settings: {}\n", settings.changed_line());
  TrainResult result = train(config, {.handle_signals = true});
  fmt::print("{} at step {}, {} tokens; training loss {:.4f}", result.interrupted ? "stopped" : "finished",
             result.run.step, result.run.tokens, result.last_loss);
  if (result.run.best_step > 0)
    fmt::print(", best validation loss {:.4f} at step {}", result.run.best_loss, result.run.best_step);
  fmt::print("; median {:.0f} tokens/s; planned {} bytes, allocated {}\n", result.tokens_per_second,
             result.planned_bytes, result.allocated_bytes);
  fmt::print("checkpoint: {}\n", result.checkpoint.empty() ? "none" : result.checkpoint);
}

}  // namespace

void add_train_command(CLI::App& app) {
  struct Options {
    std::string file;
    std::vector<std::string> words;
    bool show_settings = false;
  };
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("train", "Train a model, or continue a run");
  command->footer(kExamples);
  command->add_option("config", options->file, "settings file (YAML)");
  command->add_option("settings", options->words, "key=value words, over the file");
  command->add_flag("--settings", options->show_settings, "print every setting with its meaning and value");
  command->callback([options] {
    if (options->file.find('=') != std::string::npos) {  // words only, no file
      options->words.insert(options->words.begin(), options->file);
      options->file.clear();
    }
    run_training(options->file, options->words, options->show_settings);
  });
}

}  // namespace octet
