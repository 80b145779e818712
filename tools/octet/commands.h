// The commands of `octet`: each cmd_<name>.cc adds one subcommand with its options, help and examples.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace octet {

// --device auto|cpu|cuda.
void add_device_option(CLI::App& command, std::string& device);
// --threads, for set_thread_count().
void add_threads_option(CLI::App& command, int& threads);
// -v, --verbose: log level debug, which logs the time of each part of the start.
void add_verbose_option(CLI::App& command);

void add_tokenizer_command(CLI::App& app);
void add_data_command(CLI::App& app);
void add_train_command(CLI::App& app);
void add_eval_command(CLI::App& app);
void add_quantize_command(CLI::App& app);
void add_generate_command(CLI::App& app);
void add_verify_command(CLI::App& app);
void add_plan_command(CLI::App& app);
void add_report_command(CLI::App& app);
void add_config_command(CLI::App& app);
void add_bench_command(CLI::App& app);
void add_completion_command(CLI::App& app);

}  // namespace octet
