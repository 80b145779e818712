// octet-bench timings: the timings of a Target by which recipe auto decides whether FP8 is faster (docs/numerics.md).
#include <fmt/format.h>

#include <fstream>

#include "base/error.h"
#include "base/threads.h"
#include "bench/commands.h"
#include "bench/layer_times.h"
#include "numbers.h"

namespace octet {
namespace {

struct Options {
  std::vector<int64_t> tokens = {2048, 8192, 16384, 32768}, widths = {384, 768, 1024, 2048, 4096};
  int64_t largest = 24, layers = 3;
  int threads = 0;
  std::string device = "auto", out;
};

void run_timings(const Options& options) {
  set_thread_count(options.threads);
  const Target target = target_of(resolve_device(options.device));
  std::ofstream rows;
  if (!options.out.empty()) {
    rows.open(options.out);
    check(rows.good(), ErrorCode::kIo, "{}: cannot be written", options.out);
  }
  fmt::print("{}: tokens, out, in, linears with one input, microseconds in bf16, fp8-tensor and fp8-block\n",
             target.name);
  std::vector<LinearTiming> timings;
  for (int64_t tokens : options.tokens) {
    for (int64_t width : options.widths) {
      if (tokens * width > options.largest << 20) continue;
      for (bool gated : {false, true}) {
        const std::vector<LinearTiming> more = time_layer({tokens, width, options.layers, gated}, target, timings);
        for (size_t i = 0; i + 2 < more.size(); i += 3) {
          const LinearTiming& shape = more[i];
          fmt::print("    {{{}, {}, {}, {}, {{{:.1f}, {:.1f}, {:.1f}}}}},\n", shape.tokens, shape.out, shape.in,
                     shape.linears, 1e6 * shape.seconds, 1e6 * more[i + 1].seconds, 1e6 * more[i + 2].seconds);
        }
        std::fflush(stdout);
        for (const LinearTiming& timing : more) rows << timing_text(timing);
        rows.flush();
        timings.insert(timings.end(), more.begin(), more.end());
      }
    }
  }
}

}  // namespace

void add_timings_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("timings", "Time that FP8 saves in a training step, by shape of linears");
  command->add_option("--tokens", options->tokens, "tokens per micro-batch")->check(positive())->capture_default_str();
  command->add_option("--widths", options->widths, "hidden sizes, multiples of 64")
      ->check(positive())
      ->capture_default_str();
  for (auto [name, field, meaning] :
       {std::tuple{"--largest", &options->largest,
                   "tokens * width of more than this many 2^20 are left out: FP8 gains there"},
        std::tuple{"--layers", &options->layers, "of the models that are timed"}})
    command->add_option(name, *field, meaning)->check(positive())->capture_default_str();
  command->add_option("--device", options->device, "auto | cpu | cuda")->capture_default_str();
  command->add_option("--threads", options->threads, "0: all cores")->check(CLI::Range(0, 4096));
  command->add_option("--out", options->out, "write the rows to this file, in the format of target files");
  command->callback([options] { run_timings(*options); });
}

}  // namespace octet
