// The program `octet-bench`: measures training steps, compilation, GEMMs and copies on this machine. benchmarks/ and
// docs/results.md have the comparisons.
#include <CLI/CLI.hpp>
#include <iostream>

#include "base/error.h"
#include "bench/commands.h"
#include "build_info.h"
#include "numbers.h"
#include "wait_policy.h"

namespace {

int run(int argc, char** argv) {
  CLI::App app{"Measures Octet on this machine."};
  app.name("octet-bench");
  app.set_version_flag("--version", octet::version_text("octet-bench"));
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  octet-bench train-step --model gpt2-124m --batch 4 --length 64 --recipe fp32 --profile\n"
      "  octet-bench train-step --device cuda --model llama2-7b --layers 8 --batch 2 --length 4096 --tensor 2 "
      "--sequence\n"
      "  octet-bench compile --model llama2-7b\n"
      "  octet-bench gemm -m 512 -n 4096 -k 4096");
  octet::add_train_step_command(app);
  octet::add_compile_command(app);
  octet::add_linear_command(app);
  octet::add_timings_command(app);
  octet::add_gemm_command(app);
  octet::add_copy_command(app);
  octet::add_serve_step_command(app);
#ifdef OCTET_CUDA
  octet::add_exchanges_command(app);
#endif
  octet::check_whole_numbers(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  octet::settle_wait_policy(argv);
  try {
    return run(argc, argv);
  } catch (const octet::Error& error) {
    std::cerr << "octet-bench: " << octet::error_code_name(error.code()) << ": " << error.what() << '\n';
  } catch (const std::exception& error) {
    std::cerr << "octet-bench: " << error.what() << '\n';
  }
  return 1;
}
