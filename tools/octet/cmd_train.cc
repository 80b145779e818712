// octet train: settings from a YAML file and key=value words, then the training loop.
#include <CLI/CLI.hpp>

#include <cstdlib>

#include "base/error.h"
#include "base/log.h"
#include "build_info.h"
#include "dist/launch.h"
#include "octet/commands.h"
#include "octet/train_tasks.h"
#include "train/trainer.h"

namespace octet {
namespace {

constexpr const char* kExamples = R"(Examples:
  octet train configs/shakespeare_char.yaml
  octet train configs/gpt2_124m.yaml precision.recipe=fp8-delayed train.micro_batch=8 out=out/gpt2-fp8
  octet train configs/lora.yaml model.from=path/to/model
  octet train configs/dpo.yaml model.from=path/to/model         pairs of answers, of octet data --chat auto --pairs
  octet train configs/gpt2_124m.yaml --disable=fuse --dump-ir=ir
  octet train configs/bert.yaml data.train=data/wiki_train data.validation=data/wiki_val eval.target=0.72
`octet config` lists every setting, its meaning, range and default.
A run whose `out` folder holds checkpoints continues from the newest sound one (resume=never starts anew).
Ctrl-C, SIGTERM or a closed terminal (unless under nohup) ends it with a checkpoint of the last whole step; Ctrl-C or
SIGTERM again, three seconds later or more, ends it at once.)";

void run_training(const RunOptions& options) {
  RunConfig config = default_settings(options);
  SettingsTable settings = settings_of(config);
  read_run_options(options, config, settings);
  fmt::print(stderr, "settings: {}\n", settings.changed_line());
  if (config.restarts > 0 && !find_identity([](const char* name) { return std::getenv(name); })) {
    check(config.resume == "auto", ErrorCode::kInvalidArgument,
          "parallel.restarts={} continues from the newest checkpoint of out, but resume is {}: leave it at auto",
          config.restarts, config.resume);
    const std::optional<int> status =
        restart_after_failures(config.restarts, [](const std::string& line) { log_warning("{}", line); });
    if (status.value_or(0) != 0) std::exit(*status);
    if (status) return;
  }
  TrainResult result =
      train(config, {.open_tasks = open_training_tasks, .build = version_text("octet"), .handle_signals = true});
  if (result.left_over) return;
  if (result.seconds == 0) {  // no step was run
    const char* length = config.epochs > 0 ? "train.epochs" : "train.steps";
    if (result.reached_target)
      fmt::print("ended at step {} by eval.target={}: set it to 0, or to more, to continue\n", result.run.step,
                 config.eval_target);
    else if (result.out_of_patience)
      fmt::print("ended at step {} by eval.patience={}: raise it to continue, or set resume=never to start again\n",
                 result.run.step, config.eval_patience);
    else if (result.interrupted)
      fmt::print("stopped at step {}, before the next step was complete\n", result.run.step);
    else
      fmt::print("already at step {} of {}={}: raise {} to continue, or set resume=never to start again\n",
                 result.run.step, length, config.epochs > 0 ? config.epochs : static_cast<double>(config.steps),
                 length);
    fmt::print("checkpoint: {}\n", result.checkpoint.empty() ? "none" : result.checkpoint);
    return;
  }
  const std::string units = result.unit.many();
  fmt::print("{} at step {}, {} {}; training loss {:.4f}", result.interrupted ? "stopped" : "finished", result.run.step,
             result.run.targets, units, result.last_loss);
  if (result.run.best_step > 0)
    fmt::print(", best validation {} {:.{}f} at step {}", result.metric.name, result.run.best_metric,
               result.metric.digits, result.run.best_step);
  if (result.run.skipped_steps > 0)
    fmt::print(", {} steps skipped (gradients not finite, or no targets)", result.run.skipped_steps);
  fmt::print("; median {:.0f} {}/s, {:.2g} % of the time waiting for data; planned {} bytes, allocated {}\n",
             result.units_per_second, units, 100 * result.data_seconds / result.seconds, result.planned_bytes,
             result.allocated_bytes);
  fmt::print("checkpoint: {}\n", result.checkpoint.empty() ? "none" : result.checkpoint);
}

}  // namespace

void add_train_command(CLI::App& app) {
  auto options = std::make_shared<RunOptions>();
  auto* command = app.add_subcommand("train", "Train a model, or continue a run");
  command->footer(kExamples);
  add_run_options(*command, *options);
  add_verbose_option(*command);
  command->callback([options] { run_training(*options); });
}

}  // namespace octet
