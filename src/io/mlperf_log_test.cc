// Logs of MLPerf Training: scripted runs of all eight benchmarks, what the rules have against wrong ones, results of
// folders. The public checker (PyPI mlperf-logging 4.1.68) judges the same logs where python3 has it.
#include "io/mlperf_log.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "io/mlperf_results.h"

namespace octet {
namespace {

// A value that obeys the rule.
MlperfValue value_for(const std::string& rule) {
  if (rule.empty() || rule == "integer" || rule.starts_with(">")) return 1;
  if (rule == "list 2") return MlperfValue::of_json("[1, 2]");
  if (rule[0] != '=') return std::atof(rule.c_str() + rule.find_first_of("0123456789"));
  const std::string first =
      rule.substr(1, rule.find('|') == std::string::npos ? std::string::npos : rule.find('|') - 1);
  char* end = nullptr;
  const double number = std::strtod(first.c_str(), &end);
  return first == "true" ? MlperfValue(true) : *end == '\0' ? MlperfValue(number) : MlperfValue(first);
}

MlperfValue accuracy(const MlperfBenchmark& benchmark, double of_target) {
  const double value = benchmark.target * (benchmark.higher_is_better ? of_target : 2 - of_target);
  if (std::string_view(benchmark.name) != "maskrcnn") return value;
  return MlperfValue::of_json(fmt::format("{{\"BBOX\": {}, \"SEGM\": {}}}", value, 0.9 * value));
}

struct Script {
  std::string division = "closed", optimizer = {}, without = {};
  int64_t init_minutes = 5, begin = 1'700'000'000'000;
  double last = 1.001;  // accuracy, of the target
  std::string status = "success";
  double run_minutes = 20;
};

// A run whose clock stands still but where the script says.
void write_run(const std::string& path, const MlperfBenchmark& benchmark, const Script& script) {
  int64_t now = script.begin;
  MlperfLog log(path, [&] { return now; });
  const auto event = [&](const std::string& key, const MlperfValue& value) {
    if (key != script.without) log.event(key, value);
  };
  event("cache_clear", true);
  log.start("init_start");
  event("submission_benchmark", benchmark.name), event("submission_org", "Somebody \"quoted\"");
  event("submission_division", script.division), event("submission_status", "onprem");
  event("submission_platform", "1xH200");
  if (script.division == "closed") {
    for (const MlperfKey& key : closed_keys(benchmark, script.optimizer))
      event(key.name,
            key.name == "opt_name" && !script.optimizer.empty() ? MlperfValue(script.optimizer) : value_for(key.rule));
  } else {
    event("global_batch_size", 32);
  }
  const auto listed = [&](const char* name) {
    const auto keys = closed_keys(benchmark);
    return script.division == "closed" && std::ranges::any_of(keys, [&](const auto& key) { return key.name == name; });
  };
  if (!listed("train_samples")) event("train_samples", 1000);
  if (!listed("eval_samples")) event("eval_samples", 100);
  now += script.init_minutes * 60000;
  log.stop("init_stop");
  log.start("run_start");
  for (int epoch = 1; epoch <= 2; ++epoch) {
    log.start("block_start", {{"first_epoch_num", epoch}, {"epoch_count", 1}});
    log.start("epoch_start", {{"epoch_num", epoch}});
    now += static_cast<int64_t>(script.run_minutes * 30000);
    log.stop("epoch_stop", {{"epoch_num", epoch}});
    log.stop("block_stop", {{"first_epoch_num", epoch}});
    log.start("eval_start", {{"epoch_num", epoch}});
    log.event("eval_accuracy", accuracy(benchmark, epoch == 2 ? script.last : 0.9), {{"epoch_num", 100 * epoch}});
    log.stop("eval_stop", {{"epoch_num", epoch}});
  }
  if (script.without != "run_stop") log.stop("run_stop", {{"status", script.status}, {"epoch_num", 2}});
}

std::string faults_of(const std::string& path) {
  std::string text;
  for (const MlperfFault& fault : check_mlperf_log(read_file(path)))
    text += fmt::format("{}{}: {}\n", fault.warning ? "warning " : "", fault.line, fault.text);
  return text;
}

// Whether the public checker accepts a log.
bool has_checker() { return std::system("python3 -c 'import mlperf_logging' 2>/dev/null") == 0; }
bool checker_accepts(const std::string& path, bool werror) {
  const std::string command = fmt::format(
      "cd {} && python3 -m mlperf_logging.compliance_checker --usage training --ruleset 3.0.0 {} --log_output {}.out "
      "{} "
      ">/dev/null 2>&1",
      parent_folder(path), werror ? "--werror" : "", path, path);
  return std::system(command.c_str()) == 0;
}

// All eight, of resnet both optimizers.
std::vector<std::pair<const MlperfBenchmark*, std::string>> closed_runs() {
  std::vector<std::pair<const MlperfBenchmark*, std::string>> runs;
  for (const MlperfBenchmark& benchmark : mlperf_benchmarks())
    for (const char* optimizer : {"sgd", "lars"})
      if (std::string_view(benchmark.name) == "resnet")
        runs.emplace_back(&benchmark, optimizer);
      else if (optimizer[0] == 's')
        runs.emplace_back(&benchmark, "");
  return runs;
}

TEST(MlperfLog, AScriptedClosedRunOfEachBenchmarkHasNoFault) {
  ASSERT_EQ(mlperf_benchmarks().size(), 8u);
  TempFolder folder;
  for (const auto& [benchmark, optimizer] : closed_runs()) {
    const std::string path = folder.file(fmt::format("{}{}.txt", benchmark->name, optimizer));
    write_run(path, *benchmark, {.optimizer = optimizer});
    EXPECT_EQ(faults_of(path), "") << benchmark->name;
    const std::string open = folder.file(fmt::format("open_{}{}.txt", benchmark->name, optimizer));
    write_run(open, *benchmark, {.division = "open", .last = 0.95});
    EXPECT_EQ(faults_of(open), "") << benchmark->name;
  }
}

TEST(MlperfLog, ThePublicCheckerAcceptsThem) {
  if (!has_checker()) GTEST_SKIP() << "python3 has no mlperf_logging (pip install mlperf-logging==4.1.68)";
  TempFolder folder;
  for (const auto& [benchmark, optimizer] : closed_runs()) {
    const std::string path = folder.file(fmt::format("{}{}.txt", benchmark->name, optimizer));
    write_run(path, *benchmark, {.optimizer = optimizer});
    EXPECT_TRUE(checker_accepts(path, true)) << benchmark->name << " " << optimizer;
  }
  write_run(folder.file("missed.txt"), *find_mlperf_benchmark("bert"), {.last = 0.99});
  EXPECT_FALSE(checker_accepts(folder.file("missed.txt"), false));
}

TEST(MlperfLog, EveryMissingKeyIsNamed) {
  TempFolder folder;
  int64_t number = 0;
  for (const auto& [benchmark, optimizer] : closed_runs())
    for (const MlperfKey& key : closed_keys(*benchmark, optimizer)) {
      const std::string path = folder.file(fmt::format("{}.txt", number++));
      write_run(path, *benchmark, {.optimizer = optimizer, .without = key.name});
      EXPECT_NE(faults_of(path).find(key.name + " is missing"), std::string::npos) << benchmark->name << key.name;
    }
  EXPECT_GT(number, 90);
}

TEST(MlperfLog, WhatIsWrongIsSaidWithItsLine) {
  TempFolder folder;
  int64_t number = 0;
  const MlperfBenchmark& bert = *find_mlperf_benchmark("bert");
  const auto holds = [&](const Script& script, const std::string& part) {
    const std::string path = folder.file(fmt::format("{}.txt", number++));
    write_run(path, bert, script);
    EXPECT_NE(faults_of(path).find(part), std::string::npos) << faults_of(path);
  };
  holds({.init_minutes = 31}, ": init took 31.0 minutes (want less than 30)");
  holds({.division = "open", .init_minutes = 241}, ": init took 241.0 minutes (want less than 240)");
  holds({.division = "shut"}, "submission_division is \"shut\" (want closed|open)");
  holds({.without = "submission_org"}, "0: submission_org is missing");
  holds({.without = "cache_clear"}, "0: cache_clear is missing");
  holds({.last = 0.99}, "eval_accuracy never reached the target of bert (at least 0.72)");
  const std::string path = folder.file("twice.txt");
  write_run(path, bert, {});
  EXPECT_NE(error_of([&] { MlperfLog log(path); }).find("exists: results are not overwritten"), std::string::npos);
  const std::string text = read_file(path), stop = text.substr(text.rfind(":::MLLOG"));
  write_file(path, text + stop);
  EXPECT_NE(faults_of(path).find("run_stop is there 2 times"), std::string::npos);
  EXPECT_TRUE(check_mlperf_log(text + stop)[0].warning);
  write_file(path, text.substr(0, text.size() - 40));
  EXPECT_NE(faults_of(path).find("the line is cut"), std::string::npos);
  EXPECT_NE(faults_of(path).find("run_stop is missing"), std::string::npos);
  write_file(path, "3: " + text);  // a launcher's prefix
  EXPECT_EQ(faults_of(path), "");
}

// Whenever a run is killed.
TEST(MlperfLog, KilledItHoldsWholeLines) {
  TempFolder folder;
  for (int i = 0; i < 5; ++i) {
    const std::string path = folder.file(fmt::format("{}.txt", i));
    const pid_t child = fork();
    if (child == 0) {
      MlperfLog log(path);
      for (int line = 0;; ++line) {
        log.event("tracked_stats", std::string(500, 'x'), {{"epoch_num", line}});
        if (line % 5 == 4) log.flush();
      }
    }
    while (!path_exists(path) || file_size(path) < (1 + i) * 300'000) usleep(1000);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const std::string text = read_file(path);
    std::vector<MlperfFault> faults;
    const std::vector<MlperfLine> lines = parse_mlperf_log(text, faults);
    EXPECT_TRUE(faults.empty());
    for (size_t line = 0; line < lines.size(); ++line)
      EXPECT_EQ(lines[line].metadata.at("epoch_num").json(), std::to_string(line));
  }
}

TEST(MlperfLog, ALineThatCannotBeWrittenIsAnError) {
  TempFolder folder;
  MlperfLog log(folder.file("log.txt"));
  inject_write_fault(0, ENOSPC);
  log.event("seed", 1);
  const std::string error = error_of([&] { log.flush(); });
  inject_write_fault(-1, 0);
  EXPECT_NE(error.find("the disk is full"), std::string::npos) << error;
}

TEST(MlperfLog, AnyBytesAreReadOrNamed) {
  TempFolder folder;
  const std::string path = folder.file("log.txt");
  write_run(path, *find_mlperf_benchmark("maskrcnn"), {});
  const std::string text = read_file(path);
  for (size_t i = 0; i < text.size(); i += 7) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x85);
    check_mlperf_log(damaged);
    check_mlperf_log(text.substr(0, i));
  }
  for (const char* value : {"null", "[]", "\"text\"", "{}", "1e999", "NaN"}) {
    std::string odd = text;
    for (size_t at = 0; (at = odd.find("\"value\": 1,", at)) != std::string::npos; at += 5)
      odd.replace(at, 11, fmt::format("\"value\": {},", value));
    check_mlperf_log(odd);
  }
}

TEST(MlperfLog, VerdictsOfTheVectors) {
  const std::string folder = test_data_path("mlperf_vectors/logs");
  if (folder.empty()) GTEST_SKIP() << missing_test_data("mlperf_vectors/logs");
  const nlohmann::json verdicts = parse_json(read_file(folder + "/verdicts.json"), "verdicts").at("verdicts");
  ASSERT_GE(verdicts.size(), 32u);
  const bool checker = has_checker();
  TempFolder copies;
  for (const auto& [name, verdict] : verdicts.items()) {
    SCOPED_TRACE(name);
    const auto faults = check_mlperf_log(read_file(folder + "/" + name));
    const bool passes = std::ranges::all_of(faults, &MlperfFault::warning);
    const bool open_gpt3 = name == "open_gpt3.txt";  // the package has no open rules for it, we have
    EXPECT_EQ(passes, open_gpt3 || verdict.at("passes").get<bool>()) << faults_of(folder + "/" + name);
    EXPECT_EQ(faults.empty(), open_gpt3 || verdict.at("passes_werror").get<bool>());
    if (!checker) continue;
    write_file(copies.file(name), read_file(folder + "/" + name));
    EXPECT_EQ(checker_accepts(copies.file(name), false), verdict.at("passes").get<bool>());
    EXPECT_EQ(checker_accepts(copies.file(name), true), verdict.at("passes_werror").get<bool>());
  }
}

TEST(MlperfResults, AreTheMeanWithoutFastestAndSlowest) {
  TempFolder folder;
  const auto write = [&](const std::string& name, const char* benchmark, const Script& script) {
    const std::string path = folder.file(name);
    make_folders(parent_folder(path));
    write_run(path, *find_mlperf_benchmark(benchmark), script);
  };
  for (int run = 0; run < 11; ++run)  // 10, 12, .., 30 minutes; file 10 comes behind file 9
    write(fmt::format("a/result_{}.txt", run), "bert", {.run_minutes = 10.0 + 2 * run});
  write("b/result_0.txt", "gpt3", {.run_minutes = 10});
  write("b/result_1.txt", "gpt3", {.last = 0.99, .status = "aborted", .run_minutes = 50});
  write("b/result_2.txt", "gpt3", {.run_minutes = 12});
  write("c/result_0.txt", "ssd", {.last = 0.99, .status = "aborted"});
  write("c/result_1.txt", "ssd", {.without = "run_stop"});
  const auto results = find_mlperf_results(folder.path());
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[0].runs.back().path, folder.file("a/result_10.txt"));
  EXPECT_DOUBLE_EQ(results[0].mean_minutes().value(), 20);
  EXPECT_DOUBLE_EQ(results[0].mean_samples().value(), 200);
  EXPECT_EQ(results[0].runs[0].org, "Somebody \"quoted\"");
  EXPECT_DOUBLE_EQ(results[1].mean_minutes().value(), 12) << "the run that failed is the slowest";
  EXPECT_FALSE(results[2].mean_minutes().has_value());
  EXPECT_NE(error_of([&] { find_mlperf_results(folder.file("none")); }).find("is not a folder"), std::string::npos);
}

TEST(MlperfResults, ConvergencePointsAreInterpolated) {
  TempFolder folder;
  write_file(folder.file("rcps_bert.json"),
             R"({"a": {"Benchmark": "bert", "BS": 100, "Epochs to converge": [10, 40, 20, 30]},
                 "b": {"Benchmark": "bert", "BS": 300, "Epochs to converge": [50, 45, 55]},
                 "c": {"Benchmark": "bert", "BS": 300, "samples to converge": [60]}})");
  const auto points = read_convergence_points(folder.path());
  ASSERT_EQ(points.size(), 3u);
  EXPECT_EQ(samples_at(points, "bert", 100), 25);
  EXPECT_EQ(samples_at(points, "bert", 300), 50);
  EXPECT_EQ(samples_at(points, "bert", 200), 37.5);
  EXPECT_FALSE(samples_at(points, "bert", 99).has_value());
  EXPECT_FALSE(samples_at(points, "ssd", 100).has_value());
  write_file(folder.file("rcps_bad.json"), R"({"a": {"BS": 1}})");
  EXPECT_NE(error_of([&] { read_convergence_points(folder.path()); }).find("a has no Benchmark, BS"),
            std::string::npos);
}

TEST(MlperfResults, NvidiasOfVersion3) {
  const std::string folder = test_data_path("mlperf/training_results_v3.0");
  if (folder.empty()) GTEST_SKIP() << missing_test_data("mlperf");
  const auto points = read_convergence_points(test_data_path("mlperf/logging-rules/rcp_checker/training_3.0.0"));
  const auto results = find_mlperf_results(folder);
  ASSERT_EQ(results.size(), 2u);
  for (const MlperfResult& result : results) {
    for (const MlperfRun& run : result.runs) EXPECT_EQ(run.status, "success");
    EXPECT_EQ(result.runs[0].org, "NVIDIA");
    const double samples = result.mean_samples().value();
    const double point = samples_at(points, result.benchmark(), result.batch()).value();
    EXPECT_NEAR(samples / point, 1, 0.1) << result.benchmark();
  }
  EXPECT_EQ(results[0].benchmark(), "gpt3");
  EXPECT_NEAR(results[0].mean_minutes().value(), 64.264, 0.001);  // as published for 64 machines
  EXPECT_EQ(results[1].batch(), 768);
}

}  // namespace
}  // namespace octet
