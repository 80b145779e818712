// The commands of octet-bench: each registers itself on the CLI.
#pragma once

#include <CLI/CLI.hpp>

namespace octet {

void add_train_step_command(CLI::App& app);
void add_compile_command(CLI::App& app);
void add_linear_command(CLI::App& app);
void add_timings_command(CLI::App& app);
void add_gemm_command(CLI::App& app);
void add_serve_step_command(CLI::App& app);
void add_copy_command(CLI::App& app);
void add_exchanges_command(CLI::App& app);  // builds with CUDA only

}  // namespace octet
