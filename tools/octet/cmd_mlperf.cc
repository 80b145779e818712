// octet mlperf summary: results of MLPerf Training from their logs.
#include <CLI/CLI.hpp>
#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "commands.h"
#include "human.h"
#include "io/mlperf_results.h"
#include "mlperf.h"

namespace octet {
namespace {

nlohmann::ordered_json number_or_null(const std::optional<double>& number) {
  return number ? nlohmann::ordered_json(*number) : nlohmann::ordered_json();
}

nlohmann::ordered_json as_json(const MlperfResult& result, const std::optional<double>& point) {
  nlohmann::ordered_json runs = nlohmann::ordered_json::array();
  for (const MlperfRun& run : result.runs) {
    nlohmann::ordered_json faults = nlohmann::ordered_json::array();
    for (const MlperfFault& fault : run.faults)
      faults.push_back({{"line", fault.line}, {"text", fault.text}, {"warning", fault.warning}});
    runs.push_back({{"path", run.path},
                    {"status", run.status},
                    {"minutes", number_or_null(run.minutes)},
                    {"samples", number_or_null(run.samples)},
                    {"accuracy", run.accuracy},
                    {"faults", faults}});
  }
  return {{"folder", result.folder},
          {"benchmark", result.benchmark()},
          {"org", result.runs[0].org},
          {"platform", result.runs[0].platform},
          {"division", result.runs[0].division},
          {"batch", result.batch()},
          {"minutes", number_or_null(result.mean_minutes())},
          {"samples", number_or_null(result.mean_samples())},
          {"convergence_point", number_or_null(point)},
          {"runs", runs}};
}

void print(const MlperfResult& result, const std::optional<double>& point, bool all_faults) {
  const MlperfRun& first = result.runs[0];
  fmt::print("{}\n  {} ({}), {}, {}, global batch {}\n", result.folder,
             first.benchmark.empty() ? "no benchmark" : first.benchmark,
             first.division.empty() ? "no division" : first.division, first.org.empty() ? "no organisation" : first.org,
             first.platform.empty() ? "no platform" : first.platform,
             first.batch > 0 ? std::to_string(first.batch) : "unknown");
  for (const MlperfRun& run : result.runs) {
    const auto faults = std::ranges::count_if(run.faults, [](const MlperfFault& fault) { return !fault.warning; });
    const auto warnings = std::ssize(run.faults) - faults;
    fmt::print("  {}: {}{}{}{}{}{}\n", run.path.substr(run.path.rfind('/') + 1),
               run.status.empty() ? "no run_stop" : run.status,
               run.minutes ? fmt::format(", {:.3f} minutes", *run.minutes) : "",
               run.samples ? fmt::format(", {} to accuracy {}", human_number(*run.samples, ""), run.accuracy) : "",
               faults > 0 ? fmt::format(", {} faults", faults) : "",
               warnings > 0 ? fmt::format(", {} warnings", warnings) : "",
               !all_faults && !run.faults.empty() ? ": " + run.faults[0].text : "");
    for (const MlperfFault& fault : run.faults)
      if (all_faults)
        fmt::print("    {}{}{}\n", fault.line > 0 ? fmt::format("line {}: ", fault.line) : "",
                   fault.warning ? "warning: " : "", fault.text);
  }
  const MlperfBenchmark* known = find_mlperf_benchmark(first.benchmark);
  const auto runs = std::ssize(result.runs), dropped = static_cast<ptrdiff_t>(known == nullptr ? 1 : known->dropped);
  const std::optional<double> minutes = result.mean_minutes(), samples = result.mean_samples();
  if (!minutes) {
    fmt::print("  no result: runs failed, or are of several benchmarks or batches\n");
    return;
  }
  fmt::print("  result: {:.3f} minutes, the mean of {}\n", *minutes,
             runs > 2 * dropped ? fmt::format("{} runs without the {} fastest and {} slowest", runs, dropped, dropped)
                                : fmt::format("{} run(s)", runs));
  if (known != nullptr && runs != known->runs)
    fmt::print("  (the rules want {} runs of {})\n", known->runs, known->name);
  if (samples && point)
    fmt::print("  samples to the target: {:.6g}, the reference's {:.6g} at this batch: {:.3f} of it\n", *samples,
               *point, *samples / *point);
  else if (samples)
    fmt::print("  samples to the target: {:.6g}\n", *samples);
}

}  // namespace

void summarize_mlperf(const MlperfSummary& arguments) {
  const std::vector<MlperfResult> results = find_mlperf_results(arguments.folder);
  std::vector<ConvergencePoint> points;
  if (!arguments.points.empty()) points = read_convergence_points(arguments.points);
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const MlperfResult& result : results) {
    const std::optional<double> point = samples_at(points, result.benchmark(), result.batch());
    if (arguments.json)
      all.push_back(as_json(result, point));
    else
      print(result, point, arguments.faults);
  }
  if (arguments.json) fmt::print("{}\n", all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

void add_mlperf_command(CLI::App& app) {
  auto* command = app.add_subcommand("mlperf", "Benchmarks of MLPerf Training: runs to a target, logs and results");
  command->require_subcommand(1);
  auto* summary = command->add_subcommand("summary", "Results of folders of result_*.txt, anybody's");
  auto arguments = std::make_shared<MlperfSummary>();
  summary->add_option("folder", arguments->folder, "searched for result_*.txt; a folder of them is one result")
      ->required();
  summary->add_option("--convergence-points", arguments->points,
                      "folder of rcps_*.json of github.com/mlcommons/logging: the references' samples to the target");
  summary->add_flag("--faults", arguments->faults, "print all that rules 3.0.0 have against each log, not the first");
  summary->add_flag("--json", arguments->json, "print a JSON list, an object a result");
  summary->footer(
      "A result is the mean minutes of its runs without the fastest and the slowest (of unet3d the four fastest and\n"
      "slowest). Nothing that is printed here is an MLPerf result: those are what MLCommons has reviewed.\n"
      "Examples:\n"
      "  octet mlperf summary training_results_v3.0/NVIDIA/results\n"
      "  octet mlperf summary results --convergence-points logging/mlperf_logging/rcp_checker --faults");
  add_mlperf_run_commands(*command);
  summary->callback([arguments] { summarize_mlperf(*arguments); });
}

}  // namespace octet
