#include "io/mlperf_results.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace octet {
namespace {

size_t dropped_of(const std::string& benchmark) {
  const MlperfBenchmark* known = find_mlperf_benchmark(benchmark);
  return known == nullptr ? 1 : static_cast<size_t>(known->dropped);
}

// The mean without so many of the least and the greatest; of all where fewer than three would count at all.
double mean_without(std::vector<double> values, size_t dropped) {
  std::ranges::sort(values);
  if (values.size() <= 2 * dropped) dropped = 0;
  const auto begin = values.begin() + static_cast<ptrdiff_t>(dropped),
             end = values.end() - static_cast<ptrdiff_t>(dropped);
  return std::accumulate(begin, end, 0.0) / static_cast<double>(end - begin);
}

std::string unquoted(const MlperfValue& value) {
  const nlohmann::json json = nlohmann::json::parse(value.json(), nullptr, false);
  return json.is_string() ? json.get<std::string>() : "";
}

std::optional<double> number_in(const std::map<std::string, MlperfValue>& metadata, const char* name) {
  const auto found = metadata.find(name);
  if (found == metadata.end()) return std::nullopt;
  const nlohmann::json json = nlohmann::json::parse(found->second.json(), nullptr, false);
  return json.is_number() ? std::optional(json.get<double>()) : std::nullopt;
}

// Paths below the folder whose names begin and end so, in the order of folders and of the numbers in names.
std::vector<std::string> files_below(const std::string& folder, const std::string& begin, const std::string& end) {
  check(is_folder(folder), ErrorCode::kNotFound, "{} is not a folder", folder);
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && name.starts_with(begin) && name.ends_with(end)) found.push_back(entry.path());
  }
  std::ranges::sort(found, [](const auto& a, const auto& b) {
    if (a.parent_path() != b.parent_path()) return a.parent_path() < b.parent_path();
    const std::string x = a.filename().string(), y = b.filename().string();
    return x.size() != y.size() ? x.size() < y.size() : x < y;
  });
  return {found.begin(), found.end()};
}

template <typename Value>
std::optional<double> mean_of(const MlperfResult& result, const Value& value) {
  std::vector<double> values;
  size_t failed = 0;
  for (const MlperfRun& run : result.runs) {
    if (run.benchmark != result.benchmark() || run.batch != result.batch()) return std::nullopt;
    const std::optional<double> of_run = run.succeeded() ? value(run) : std::nullopt;
    failed += of_run ? 0 : 1;
    values.push_back(of_run.value_or(std::numeric_limits<double>::max()));
  }
  const size_t dropped = dropped_of(result.benchmark());
  if (failed > (values.size() > 2 * dropped ? dropped : 0)) return std::nullopt;
  return mean_without(std::move(values), dropped);
}

}  // namespace

MlperfRun read_mlperf_run(const std::string& path) {
  MlperfRun run{.path = path};
  const std::string text = read_file(path);
  run.faults = check_mlperf_log(text);
  std::vector<MlperfFault> ignored;
  std::optional<int64_t> begin;
  for (const MlperfLine& line : parse_mlperf_log(text, ignored)) {
    const auto keep = [&](const char* key, std::string& to) {
      if (line.key == key && to.empty()) to = unquoted(line.value);
    };
    keep("submission_benchmark", run.benchmark), keep("submission_org", run.org);
    keep("submission_platform", run.platform), keep("submission_division", run.division);
    if (line.key == "global_batch_size")
      run.batch = static_cast<int64_t>(number_in({{"value", line.value}}, "value").value_or(0));
    if (line.key == "run_start" && !begin) begin = line.time_ms;
    if (line.key == "eval_accuracy") {
      run.accuracy = line.value.json();
      for (const char* unit : {"epoch_num", "samples_count"})
        if (const auto samples = number_in(line.metadata, unit)) run.samples = samples;
    }
    if (line.key != "run_stop" || run.minutes) continue;
    const auto status = line.metadata.find("status");
    if (status != line.metadata.end()) run.status = unquoted(status->second);
    if (begin) run.minutes = static_cast<double>(line.time_ms - *begin) / 6e4;
  }
  return run;
}

std::optional<double> MlperfResult::mean_minutes() const {
  return mean_of(*this, [](const MlperfRun& run) { return run.minutes; });
}

std::optional<double> MlperfResult::mean_samples() const {
  return mean_of(*this, [](const MlperfRun& run) { return run.samples; });
}

std::vector<MlperfResult> find_mlperf_results(const std::string& folder) {
  std::vector<MlperfResult> results;
  for (const std::string& path : files_below(folder, "result_", ".txt")) {
    const std::string parent = parent_folder(path);
    if (results.empty() || results.back().folder != parent) results.push_back({.folder = parent, .runs = {}});
    results.back().runs.push_back(read_mlperf_run(path));
  }
  check(!results.empty(), ErrorCode::kNotFound, "{} holds no result_*.txt", folder);
  return results;
}

std::vector<ConvergencePoint> read_convergence_points(const std::string& folder) {
  std::map<std::pair<std::string, std::string>, ConvergencePoint> points;
  for (const std::string& path : files_below(folder, "rcps_", ".json")) {
    const nlohmann::json file = parse_json(read_file(path), path);
    for (const auto& [name, point] : file.items()) {
      std::vector<double> samples;
      for (const char* unit : {"Epochs to converge", "samples to converge"})
        if (point.is_object() && point.contains(unit) && point[unit].is_array())
          for (const auto& value : point[unit])
            if (value.is_number()) samples.push_back(value);
      check(!samples.empty() && point.contains("BS") && point["BS"].is_number() && point.contains("Benchmark") &&
                point["Benchmark"].is_string(),
            ErrorCode::kCorrupt, "{}: {} has no Benchmark, BS and \"Epochs to converge\"", path, name);
      const std::string benchmark = point["Benchmark"];
      points[{benchmark, name}] = {.benchmark = benchmark,
                                   .name = name,
                                   .batch = point["BS"],
                                   .runs = std::ssize(samples),
                                   .samples = mean_without(samples, dropped_of(benchmark))};
    }
  }
  check(!points.empty(), ErrorCode::kNotFound, "{} holds no rcps_*.json (of github.com/mlcommons/logging, rcp_checker)",
        folder);
  std::vector<ConvergencePoint> list;
  for (auto& [key, point] : points) list.push_back(std::move(point));
  return list;
}

std::optional<double> samples_at(const std::vector<ConvergencePoint>& points, const std::string& benchmark,
                                 int64_t batch) {
  const ConvergencePoint *below = nullptr, *above = nullptr;
  for (const ConvergencePoint& point : points) {
    if (point.benchmark != benchmark) continue;
    // Of several points of one batch the one that converges first, as the checker takes it.
    const auto better = [&](const ConvergencePoint* now, bool nearer) {
      return now == nullptr || nearer || (now->batch == point.batch && point.samples < now->samples);
    };
    if (point.batch <= batch && better(below, below != nullptr && point.batch > below->batch)) below = &point;
    if (point.batch >= batch && better(above, above != nullptr && point.batch < above->batch)) above = &point;
  }
  if (below == nullptr || above == nullptr) return std::nullopt;
  if (below->batch == above->batch) return below->samples;
  const double along = static_cast<double>(batch - below->batch) / static_cast<double>(above->batch - below->batch);
  return below->samples + along * (above->samples - below->samples);
}

}  // namespace octet
