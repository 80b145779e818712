// octet-bench gemm, octet-bench copy: GEMM and copy rates of this machine, the reference for all other figures.
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/threads.h"
#include "bench/commands.h"
#include "bench/measure.h"
#include "exec/executor.h"
#include "numbers.h"

namespace octet {
namespace {

struct GemmOptions {
  std::vector<std::string> precisions = gemm_precisions();
  int64_t m = 2048, n = 2048, k = 2048, repeats = 10;
  int threads = 0;
  std::string json, device = "cpu";
};

void run_gemm(const GemmOptions& options) {
  set_thread_count(options.threads);
  const Target target = target_of(resolve_device(options.device));
  fmt::print("{}, {} threads; y [m, n] = x [m, k] w [n, k]^T, best of {}\n",
             target.device == Device::kCuda ? target.name : cpu_model(), thread_count(), options.repeats);
  fmt::print("{:<11} {:>7} {:>7} {:>7} {:>11} {:>10}  {}\n", "precision", "m", "n", "k", "ms", "GFLOP/s", "kernel");
  nlohmann::json rows = nlohmann::json::array();
  for (const std::string& precision : options.precisions) {
    GemmRate rate = measure_gemm(target, precision, options.m, options.n, options.k, options.repeats);
    fmt::print("{:<11} {:>7} {:>7} {:>7} {:>11.3f} {:>10.1f}  {}\n", precision, rate.m, rate.n, rate.k,
               rate.best_seconds * 1e3, rate.flops_per_second / 1e9, rate.kernel);
    rows.push_back({{"precision", precision},
                    {"m", rate.m},
                    {"n", rate.n},
                    {"k", rate.k},
                    {"seconds", rate.best_seconds},
                    {"median_seconds", rate.median_seconds},
                    {"gflops", rate.flops_per_second / 1e9},
                    {"kernel", rate.kernel}});
  }
  if (!options.json.empty()) {
    nlohmann::json all = {{"cpu", cpu_model()}, {"threads", thread_count()}, {"gemm", rows}};
    write_file(options.json, all.dump(1) + "\n");
  }
}

struct CopyOptions {
  int64_t mib = 256, repeats = 10;
  int threads = 0;
  std::string json;
};

void run_copy(const CopyOptions& options) {
  set_thread_count(options.threads);
  double rate = measure_copy(options.mib << 20, options.repeats);
  fmt::print("{}, {} threads: copy of {} MiB, {:.1f} GB/s read + written, best of {}\n", cpu_model(), thread_count(),
             options.mib, rate / 1e9, options.repeats);
  MemoryReader reader(options.mib << 20);
  double read = reader.run();
  for (int64_t i = 0; i < options.repeats; ++i) read = std::max(read, reader.run());
  fmt::print("read only {:.1f} GB/s\n", read / 1e9);
  if (!options.json.empty()) {
    nlohmann::json all = {{"cpu", cpu_model()},
                          {"threads", thread_count()},
                          {"copy_gb_per_second", rate / 1e9},
                          {"read_gb_per_second", read / 1e9}};
    write_file(options.json, all.dump(1) + "\n");
  }
}

}  // namespace

void add_gemm_command(CLI::App& app) {
  auto options = std::make_shared<GemmOptions>();
  auto* command = app.add_subcommand("gemm", "Rate of one matrix product in each precision");
  command->add_option("--precision", options->precisions, "which to run")
      ->check(CLI::IsMember(gemm_precisions()))
      ->capture_default_str();
  command->add_option("--device", options->device, "auto | cpu | cuda")->capture_default_str();
  for (auto [name, field] : {std::pair{"-m", &options->m}, std::pair{"-n", &options->n}, std::pair{"-k", &options->k},
                             std::pair{"--repeats", &options->repeats}})
    command->add_option(name, *field)->check(positive())->capture_default_str();
  command->add_option("--threads", options->threads, "0: all cores")->check(CLI::Range(0, 4096));
  command->add_option("--json", options->json, "write the results to this JSON file");
  command->callback([options] { run_gemm(*options); });
}

void add_copy_command(CLI::App& app) {
  auto options = std::make_shared<CopyOptions>();
  auto* command = app.add_subcommand("copy", "Memory bandwidth of a copy and of reading");
  command->add_option("--mib", options->mib, "size of the copy in MiB")->check(positive())->capture_default_str();
  command->add_option("--repeats", options->repeats)->check(positive())->capture_default_str();
  command->add_option("--threads", options->threads, "0: all cores")->check(CLI::Range(0, 4096));
  command->add_option("--json", options->json, "write the results to this JSON file");
  command->callback([options] { run_copy(*options); });
}

}  // namespace octet
