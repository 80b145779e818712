#include "octet/run_options.h"

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/log.h"
#include "octet/commands.h"

namespace octet {

void add_device_option(CLI::App& command, std::string& device) {
  command.add_option("--device", device, "device: auto (a GPU if one is usable), cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
}

void add_threads_option(CLI::App& command, int& threads) {
  command.add_option("--threads", threads, "CPU threads; 0 = all cores")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
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
  add_device_option(command, options.device);
  command.add_option("--dump-ir", options.dump_ir, "write the graphs after every pass into this folder");
}

void read_run_options(const RunOptions& options, RunConfig& config, SettingsTable& settings) {
  std::vector<std::string> words = options.words;
  bool has_file = !options.file.empty() && options.file.find('=') == std::string::npos;
  if (!options.file.empty() && !has_file) words.insert(words.begin(), options.file);
  check(has_file || !words.empty(), ErrorCode::kInvalidArgument,
        "a settings file or key=value words are wanted, such as configs/gpt2_124m.yaml or model.size=gpt2-124m");
  if (has_file) settings.load_yaml_file(options.file);
  settings.set_words(words);
  if (!options.disable.empty()) config.disable = options.disable;
  if (!options.device.empty()) config.device = options.device;
  if (!options.dump_ir.empty()) config.dump_ir = options.dump_ir;
}

}  // namespace octet
