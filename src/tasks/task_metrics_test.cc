// Metrics and standard errors against the harness's formulas (values of CPython), filters, shots and prompts.
#include <gtest/gtest.h>

#include <cmath>

#include "tasks/task_filters.h"
#include "tasks/task_prompts.h"
#include "tasks/testing/task_folder.h"

namespace octet {
namespace {

using nlohmann::ordered_json;

constexpr const char* kChoice =
    "output_type: multiple_choice\ndoc_to_text: \"{{q}}\"\ndoc_to_target: a\ndoc_to_choice: c\n";

TaskConfig config_of(const std::string& yaml) { return TaskFolder(yaml).select().tasks.at(0); }

ordered_json as_json(const DocumentMetrics& metrics) {
  ordered_json json = ordered_json::object();
  for (const auto& [name, value] : metrics) json[name] = value;
  return json;
}

TEST(TaskMetrics, OfChoices) {
  const TaskConfig task = config_of(
      std::string(kChoice) +
      "metric_list: [{metric: acc}, {metric: acc_norm}, {metric: acc_bytes}, {metric: acc_mutual_info}, {metric: "
      "exact_match}, {metric: f1}, {metric: mcc}]\n");
  const std::vector<std::string> choices = {"ab", "日本語", "x"};
  // Sums, then those without a context. By length: -1.5, -1.33, -2.5; by bytes: -1.5, -0.44, -2.5.
  const std::vector<Likelihood> likelihoods = {{-3, false}, {-4, true},    {-2.5, false},
                                               {-5, false}, {-4.5, false}, {-1, false}};
  EXPECT_EQ(
      as_json(choice_metrics(task, choices, likelihoods, 1, false)).dump(),
      R"({"acc":0.0,"acc_norm":1.0,"acc_bytes":1.0,"acc_mutual_info":0.0,"exact_match":1,"f1":[1,2],"mcc":[1,2]})");
  EXPECT_EQ(as_json(choice_metrics(task, choices, likelihoods, "ab", false))["acc_mutual_info"], 1.0);
  EXPECT_EQ(as_json(choice_metrics(task, choices, likelihoods, 7, false))["f1"], ordered_json({-100, 2}));
  const ordered_json many = as_json(choice_metrics(task, choices, likelihoods, {0, 2}, true));
  EXPECT_EQ(many["acc"], 1.0);
  EXPECT_EQ(many["exact_match"], 0);
  EXPECT_EQ(many["acc_mutual_info"], 0.0);
  EXPECT_NE(error_of([&] {
              choice_metrics(task, choices, likelihoods, {0, 2}, false);
            }).find("a list of targets"),
            std::string::npos);
}

TEST(TaskMetrics, OverDocuments) {
  const auto of = [](const char* name, const std::vector<ordered_json>& values, int64_t draws = 0) {
    return aggregate(name, values, draws, "t");
  };
  const std::vector<ordered_json> labels = {{0, 0}, {1, 1}, {1, 0}, {0, 0}, {2, 2}, {1, 2}};
  EXPECT_NEAR(of("matthews_corrcoef", labels).value, 0.5909090909090909, 1e-12);
  EXPECT_EQ(of("matthews_corrcoef", {{1, 1}, {1, 1}}).value, 0);
  EXPECT_NEAR(of("f1", {{1, 1}, {1, 0}, {0, 0}, {1, 1}}).value, 0.8, 1e-12);
  EXPECT_NE(error_of([&] { of("f1", labels); }).find("f1 is of two choices, and there is label 2"), std::string::npos);
  EXPECT_EQ(of("median", {3, 1, 2, 4}).value, 3);
  EXPECT_NEAR(of("weighted_perplexity", {{-10.0, 4}, {-2.0, 4}}).value, std::exp(1.5), 1e-12);
  EXPECT_NEAR(of("bits_per_byte", {{-8.0, 4}}).value, 2 / std::log(2), 1e-12);
  const ordered_json shares = {0.25, 0.75};
  EXPECT_NEAR(of("brier_score", {{1, shares}, {0, shares}}).value, (2 * 0.0625 + 2 * 0.5625) / 2, 1e-12);
  const std::vector<ordered_json> sums = {-1.5, -2.0, -0.25, -3.0, -1.0};
  EXPECT_NEAR(of("perplexity", sums, 2000).value, 4.711470182590742, 1e-12);
  EXPECT_NEAR(*of("perplexity", sums, 2000).error, 2.2641576026945396, 1e-9);
  EXPECT_NEAR(*of("perplexity", sums, 100).error, 2.166385116281955, 1e-9);
  EXPECT_NEAR(*of("mean", {0, 1, 1, 0}, 1).error, std::sqrt(1.0 / 3) / 2, 1e-12);
  EXPECT_FALSE(of("mean", {1}, 1).error.has_value());
  EXPECT_FALSE(of("mean", {0, 1}, 0).error.has_value());
}

TEST(TaskMetrics, OverGroups) {
  const std::vector<SubtaskMetric> parts = {{{0.5, 0.1}, 10}, {{0.25, 0.2}, 30}};
  const Aggregated weighted = aggregate_group(parts, true), plain = aggregate_group(parts, false);
  EXPECT_NEAR(weighted.value, 0.3125, 1e-12);
  EXPECT_NEAR(*weighted.error, std::sqrt((9 * 0.01 * 10 + 29 * 0.04 * 30) / 38 / 40), 1e-12);
  EXPECT_NEAR(plain.value, 0.375, 1e-12);
  EXPECT_NEAR(*plain.error, std::sqrt(0.05) / 2, 1e-12);
  EXPECT_FALSE(aggregate_group({{{0.5, {}}, 10}}, true).error.has_value());
}

TEST(TaskMetrics, OfReplies) {
  const TaskConfig task = config_of(
      "doc_to_text: q\ndoc_to_target: a\nmetric_list: [{metric: exact_match, ignore_case: true, ignore_punctuation: "
      "true, ignore_numbers: true, regexes_to_ignore: [\"<.*>\"]}]\n");
  const auto match = [&](const ordered_json& reply, const ordered_json& gold, bool many = false) {
    return reply_metrics(task, reply, gold, many).at(0).second;
  };
  EXPECT_EQ(match("<x>Été!7", "été"), 1.0);
  EXPECT_EQ(match("a", "b"), 0.0);
  EXPECT_EQ(match("b", ordered_json({"a", "b"}), true), 1.0);
  EXPECT_EQ(match("['a', 'b']", ordered_json({"a", "b"})), 1.0);
}

TEST(TaskFilters, ChangeReplies) {
  const auto run = [](const std::string& steps, const std::vector<ordered_json>& replies,
                      const ordered_json& doc = {}) {
    const TaskConfig task = config_of("doc_to_text: q\ndoc_to_target: a\nfilter_list: [{name: f, filter: [" + steps +
                                      ", {function: take_first}]}]\n");
    return filtered(task.filters.at(0), replies, doc);
  };
  EXPECT_EQ(run("{function: regex, regex_pattern: \"(-?[0-9]+)\", group_select: -1}", {"1 and -2"}), "-2");
  EXPECT_EQ(run("{function: regex, regex_pattern: \"x\", fallback: none}", {"1"}), "none");
  EXPECT_EQ(run("{function: regex}", {"so #### 1,2. "}), "1,2.");
  EXPECT_EQ(run("{function: remove_whitespace}, {function: uppercase}", {"\n é x "}), "É X");
  EXPECT_EQ(run("{function: lowercase}, {function: map, mapping_dict: {yes: 1}, default_value: 0}", {"YES"}), 1);
  EXPECT_EQ(run("{function: majority_vote}", {"a", "b", "b", "c"}), "b");
  EXPECT_EQ(run("{function: take_first_k, k: 3}, {function: majority_vote}", {"a", "b", "b", "a", "a"}), "b");
  const std::string choice = "{function: multi_choice_regex, regex_pattern: \"(\\\\([A-Z]\\\\))\", ignore_case: true}";
  const ordered_json doc = {{"choices", {"Guilty", "Guilty of Romance"}}};
  EXPECT_EQ(run(choice, {"so (B)"}, doc), "(B)");
  EXPECT_EQ(run(choice, {"guilty of romance, I say"}, doc), "(B)");
  EXPECT_EQ(run(choice, {"answer: A"}, doc), "(A)");
  EXPECT_EQ(run(choice, {"neither"}, doc), "[invalid]");
}

// The prompts of all documents.
std::vector<std::string> prompts(const std::string& yaml, const std::string& data, int64_t shots,
                                 const std::string& train = "", const RenderTurns& chat = {}) {
  const TaskFolder folder(yaml, data, train);
  const TaskSelection selection = folder.select();
  const TaskConfig& task = selection.tasks.at(0);
  const TaskDocuments docs = read_documents(task, task.eval_split());
  TaskPrompts made(task, docs, shots, 1234, chat);
  std::vector<std::string> all;
  for (const ordered_json& doc : docs.docs)
    for (std::string& text : made.contexts(doc)) all.push_back(std::move(text));
  return all;
}

std::string numbered(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) lines += fmt::format("{{\"q\": \"q{}\", \"a\": \"a{}\"}}\n", i, i);
  return lines;
}

constexpr const char* kPlain = "output_type: loglikelihood\ndoc_to_text: q\ndoc_to_target: a\n";

TEST(TaskPrompts, DrawShotsAsTheHarness) {
  // random.Random(1234).sample(range(5), 2), once for each document: [3, 0], [0, 4].
  EXPECT_EQ(prompts(std::string(kPlain) + "fewshot_split: train\n", numbered(2), 2, numbered(5)),
            (std::vector<std::string>{"q3 a3\n\nq0 a0\n\nq0", "q0 a0\n\nq4 a4\n\nq1"}));
  // Of the documents themselves one more is drawn and the one asked about left out: sample(range(4), 3).
  EXPECT_EQ(prompts(std::string(kPlain) + "fewshot_split: test\n", numbered(4), 2),
            (std::vector<std::string>{"q3 a3\n\nq2 a2\n\nq0", "q0 a0\n\nq2 a2\n\nq1", "q0 a0\n\nq3 a3\n\nq2",
                                      "q1 a1\n\nq0 a0\n\nq3"}));
  EXPECT_EQ(prompts(std::string(kPlain) + "fewshot_config: {sampler: first_n, split: test}\n", numbered(3), 2)[1],
            "q0 a0\n\nq2 a2\n\nq1");
  EXPECT_NE(error_of([] {
              prompts(std::string(kPlain) + "fewshot_split: train\n", numbered(1), 2, numbered(1));
            }).find("2 shots, and their split has 1 documents"),
            std::string::npos);
}

TEST(TaskPrompts, PutDelimitersWhereTheHarnessDoes) {
  const std::string shots = "fewshot_config: {sampler: first_n, split: train}\n", one = numbered(1);
  EXPECT_EQ(prompts(kPlain + shots +
                        "description: \"D {{a}}: \"\ntarget_delimiter: \" -> \"\nfewshot_delimiter: \"\\n##\\n\"\n",
                    one, 1, one)[0],
            "D a0: q0 -> a0\n##\nq0");
  EXPECT_EQ(prompts(kPlain + shots + "gen_prefix: \"So\"\n", one, 1, one)[0], "q0 So a0\n\nq0 So");
  EXPECT_EQ(prompts(kPlain + shots + "gen_prefix: \" So \"\n", one, 1, one)[0], "q0 So a0\n\nq0 So ");
  EXPECT_EQ(prompts("output_type: loglikelihood\ndoc_to_text: \"{{q}}\\n\"\ndoc_to_target: a\n", one, 0)[0], "q0\n");
  const RenderTurns chat = [](const ordered_json& messages, bool open) { return messages.dump() + (open ? "+" : "-"); };
  EXPECT_EQ(prompts(kPlain + shots + "description: d\ngen_prefix: So\n", one, 1, one, chat)[0],
            R"([{"role":"system","content":"d"},{"role":"user","content":"q0"},{"role":"assistant","content":"So a0"},)"
            R"({"role":"user","content":"q0"},{"role":"assistant","content":"So"}]-)");
}

TEST(TaskPrompts, TemplatesThatLoopEnd) {
  const std::string loop =
      "output_type: loglikelihood\ndoc_to_text: \"{% for i in range(99999) %}{% for j in range(99999) "
      "%}{% endfor %}{% endfor %}\"\ndoc_to_target: a\n";
  EXPECT_NE(error_of([&] { prompts(loop, numbered(1), 0); }).find("steps"), std::string::npos);
}

}  // namespace
}  // namespace octet
