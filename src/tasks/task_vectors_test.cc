// Against lm-evaluation-harness 0.4.13 on a trained model of 0.1 M parameters: results and every document's numbers.
#include <gtest/gtest.h>
#include <zlib.h>

#include <cmath>
#include <map>

#include "base/file.h"
#include "base/json.h"
#include "base/testing/test_data.h"
#include "tasks/task_evaluation.h"

namespace octet {
namespace {

using nlohmann::ordered_json;

std::vector<ordered_json> read_gzip_lines(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  std::string text(1 << 20, '\0');
  size_t size = 0;
  for (int got; (got = gzread(file, text.data() + size, static_cast<unsigned>(text.size() - size))) > 0;) {
    size += static_cast<size_t>(got);
    text.resize(size + (1 << 20));
  }
  gzclose(file);
  text.resize(size);
  std::vector<ordered_json> lines;
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1)
    lines.push_back(ordered_json::parse(text.substr(at, text.find('\n', at) - at)));
  return lines;
}

// What is 1e-3 apart where it is a log-likelihood or made of some, else 1e-9.
void expect_near(const ordered_json& got, const ordered_json& want, double tolerance, const std::string& what) {
  if (want.is_array()) {
    ASSERT_EQ(got.size(), want.size()) << what;
    for (size_t i = 0; i < want.size(); ++i) expect_near(got[i], want[i], tolerance, what);
  } else if (want.is_number_float() || got.is_number_float()) {
    EXPECT_NEAR(got.get<double>(), want.get<double>(), tolerance) << what;
  } else {
    EXPECT_EQ(got, want) << what;
  }
}

class TaskVectors : public testing::TestWithParam<bool> {};

TEST_P(TaskVectors, AreTheHarnesss) {
  const bool chat = GetParam();
  const std::string root = test_data_path("adapt/eval"), lm = test_data_path("adapt/lm");
  if (root.empty()) GTEST_SKIP() << missing_test_data("adapt/eval");
  std::vector<std::string> names = {"dev_mc_shots", "dev_sums"};
  if (!chat) names = {"dev_group", "dev_mc_shots", "dev_mutual", "dev_pages", "dev_sums"};
  for (std::string& name : names) name = root + "/tasks/" + name + ".yaml";
  const TaskSelection selection = select_tasks(names, "");
  TaskRunOptions options{.draws = 100};
  if (chat) options.chat = chat_turns(lm);
  TaskRunner runner(selection, options);
  const auto engine = Engine::open(lm, {.device = "cpu", .recipe = "fp32"});
  const auto tokenizer = load_tokenizer(lm);
  int64_t done = 0;
  ModelCalls calls(*engine, *tokenizer, 192, [&] { ++done; });
  const TaskRun run = runner.run(calls);
  EXPECT_EQ(done, runner.requests());
  const std::string form = chat ? "chat" : "plain";
  const auto expected = parse_json<ordered_json>(read_file(root + "/results_" + form + ".json"), "results");
  EXPECT_EQ(run.results.size(), expected.size());
  for (const auto& [task, metrics] : expected.items())
    for (const auto& [key, want] : metrics.items()) {
      ASSERT_TRUE(run.results.contains(task) && run.results[task].contains(key)) << task << " " << key;
      // Sums of log-probabilities are 1e-3 apart at most; the error is of the same draws.
      const bool made_of_sums = key.find("perplexity") != std::string::npos || key.starts_with("bits_per_byte");
      const double tolerance = made_of_sums ? 1e-3 * std::abs(want.get<double>()) : 1e-9;
      expect_near(run.results[task][key], want, tolerance, task + " " + key);
    }
  const std::vector<ordered_json> samples = read_gzip_lines(root + "/samples_" + form + ".jsonl.gz");
  ASSERT_EQ(run.samples.size(), samples.size());
  std::map<std::string, const ordered_json*> own;
  const auto key_of = [](const ordered_json& sample) {
    return fmt::format("{} {} {}", sample["task"].get<std::string>(), sample["doc_id"].dump(),
                       sample["filter"].get<std::string>());
  };
  for (const ordered_json& sample : run.samples) own[key_of(sample)] = &sample;
  for (const ordered_json& want : samples) {
    ASSERT_TRUE(own.contains(key_of(want))) << key_of(want);
    const ordered_json& got = *own[key_of(want)];
    const bool replies = want["task"] == "dev_sums";
    for (size_t i = 0; i < want["arguments"].size(); ++i)
      for (size_t part = 0; part < (replies ? 1 : want["arguments"][i].size()); ++part)
        EXPECT_EQ(got["arguments"][i][part], want["arguments"][i][part]) << key_of(want);
    for (const auto& [key, value] : want.items())
      if (key != "arguments") expect_near(got[key], value, 1e-3, key_of(want) + " " + key);
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, TaskVectors, testing::Bool(),
                         [](const auto& info) { return info.param ? "chat" : "plain"; });

}  // namespace
}  // namespace octet
