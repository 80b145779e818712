// Task files that are refused, each with the place, the value and the way out; groups and includes.
#include <gtest/gtest.h>

#include "tasks/task_yaml.h"
#include "tasks/testing/task_folder.h"

namespace octet {
namespace {

using nlohmann::ordered_json;

constexpr const char* kChoice =
    "output_type: multiple_choice\ndoc_to_text: \"{{q}}\"\ndoc_to_target: a\ndoc_to_choice: c\n";
constexpr const char* kDoc = "{\"q\": \"one\", \"a\": 1, \"c\": [\"x\", \"y\"]}\n";

struct Refused {
  std::string name, yaml, message;
};
void PrintTo(const Refused& refused, std::ostream* out) { *out << refused.name; }

class TaskFileIsRefused : public testing::TestWithParam<Refused> {};

TEST_P(TaskFileIsRefused, ByName) {
  const TaskFolder folder(GetParam().yaml, kDoc);
  const std::string error = folder.error();
  EXPECT_NE(error.find(GetParam().message), std::string::npos) << error;
  EXPECT_NE(error.find(folder.path()), std::string::npos) << error;
}

const std::string kWhole = kChoice;
INSTANTIATE_TEST_SUITE_P(
    All, TaskFileIsRefused,
    testing::Values(
        Refused{"hook", kWhole + "process_docs: !function utils.process", "!function utils.process: hooks in Python"},
        Refused{"hook_by_text", kWhole + "process_results: utils.x", "process_results: hooks in Python"},
        Refused{"hook_in_metric", kWhole + "metric_list:\n  - metric: !function utils.m",
                "metric_list.metric: !function"},
        Refused{"own_hook", kWhole + "octet_hook: stem", "unknown key 'octet_hook'"},
        Refused{"tag", kWhole + "description: !python x", "unknown tag !python"},
        Refused{"key", kWhole + "doc_to_txt: x", "unknown key 'doc_to_txt' (nearest: doc_to_text)"},
        Refused{"twice", kWhole + "doc_to_target: b", "'doc_to_target' stands there twice"},
        Refused{"metric", kWhole + "metric_list: [{metric: acc_nrm}]", "unknown metric 'acc_nrm', nearest: acc_norm"},
        Refused{"metric_key", kWhole + "metric_list: [{metric: acc, ignore_case: true}]", "unknown key 'ignore_case'"},
        Refused{"hub_metric", kWhole + "metric_list: [{metric: acc, hf_evaluate: true}]", "package evaluate"},
        Refused{"aggregation", kWhole + "metric_list: [{metric: acc, aggregation: perplex}]",
                "acc: aggregation perplex (want one of: mean, nanmean, median, perplexity)"},
        Refused{"aggregation_of_others", kWhole + "metric_list: [{metric: mcc, aggregation: mean}]",
                "mcc: aggregation mean (want one of: f1, matthews_corrcoef)"},
        Refused{"no_metric", kWhole + "metric_list: [{metric: perplexity}]",
                "no metric of output_type multiple_choice"},
        Refused{"output", "output_type: choice\n", "output_type: choice (want loglikelihood"},
        Refused{"filter", kWhole + "filter_list: [{name: f, filter: [{function: custom}]}]", "unknown filter 'custom'"},
        Refused{"filter_of_numbers",
                kWhole + "filter_list: [{name: f, filter: [{function: lowercase}, {function: take_first}]}]",
                "filter lowercase is of texts"},
        Refused{"sampler", kWhole + "fewshot_config: {sampler: balanced}",
                "sampler: balanced (want default or first_n)"},
        Refused{"image", kWhole + "doc_to_image: x", "images and audio"},
        Refused{"prompt", kWhole + "use_prompt: x", "promptsource"},
        Refused{"code", kWhole + "unsafe_code: true", "generated code is not run"},
        Refused{"shots", kWhole + "num_fewshot: -1", "num_fewshot: -1 (want a number >= 0)"},
        Refused{"choices", "output_type: multiple_choice\ndoc_to_text: q\ndoc_to_target: a\n",
                "doc_to_choice is missing"},
        Refused{"target", "output_type: loglikelihood\ndoc_to_text: q\n", "doc_to_target"},
        Refused{"template", "output_type: loglikelihood\ndoc_to_text: \"{{q\"\ndoc_to_target: q\n", "task.yaml:1"},
        Refused{"template_name", "output_type: loglikelihood\ndoc_to_text: \"{{quest}}\"\ndoc_to_target: q\n",
                "'quest' is undefined"},
        Refused{"template_filter",
                "output_type: loglikelihood\ndoc_to_text: \"{{q|regex_replace}}\"\ndoc_to_target: q\n",
                "unknown filter \"regex_replace\""},
        Refused{"generation", "doc_to_text: q\ndoc_to_target: q\ngeneration_kwargs: {untill: x}",
                "generation_kwargs: unknown key 'untill' (nearest: until)"}),
    [](const auto& info) { return info.param.name; });

TEST(TaskFile, FiltersOfTexts) {
  const auto error = [](const std::string& steps) {
    return TaskFolder("doc_to_text: q\ndoc_to_target: q\nfilter_list: [{name: f, filter: [" + steps + "]}]", kDoc)
        .error();
  };
  EXPECT_EQ(error("{function: lowercase}, {function: take_first}"), "(no error)");
  EXPECT_NE(error("{function: lowercase}").find("want take_first at the end"), std::string::npos);
  EXPECT_NE(error("{function: regex, regex_pattern: \"(\"}, {function: take_first}").find("does not compile"),
            std::string::npos);
  EXPECT_NE(error("{function: regex, pattern: a}, {function: take_first}").find("unknown argument 'pattern'"),
            std::string::npos);
}

TEST(TaskFile, ScalarsAreThoseOfYaml11) {
  const ordered_json json = parse_task_yaml(
      "a: yes\nb: 'yes'\nc: 1.5\nd: 1e3\ne: -7\nf: ~\ng: null\nh: [1, x]\ni: \"\"\nj: 2.0e+3\nk: Off\nl: 0x\n", "t");
  EXPECT_EQ(json.dump(),
            "{\"a\":true,\"b\":\"yes\",\"c\":1.5,\"d\":\"1e3\",\"e\":-7,\"f\":null,\"g\":null,\"h\":[1,"
            "\"x\"],\"i\":\"\",\"j\":2000.0,\"k\":false,\"l\":\"0x\"}");
  EXPECT_EQ(error_of([] { parse_task_yaml("a: [1", "here"); }).substr(0, 29), "here:1: not valid YAML: end o");
  EXPECT_NE(error_of([] { parse_task_yaml("- a", "here"); }).find("here: want lines"), std::string::npos);
}

TEST(TaskFile, IncludesAreMergedUnderIt) {
  TaskFolder folder("include: base.yaml\ndoc_to_text: \"{{q}}!\"\n", kDoc);
  write_file(folder.file("base.yaml"), std::string(kChoice) + "description: d\n");
  const TaskSelection selection = folder.select();
  EXPECT_EQ(selection.tasks.at(0).description, "d");
  EXPECT_EQ(selection.tasks.at(0).form.text, "{{q}}!");
  write_file(folder.file("base.yaml"), "include: base.yaml\n");
  EXPECT_NE(folder.error().find("include each other"), std::string::npos);
}

TEST(TaskGroups, HaveTasksOfTheirFolderByNameTagAndInPlace) {
  const TaskFolder folder(kChoice, kDoc);
  write_file(folder.file("other.yaml"), "include: task.yaml\ntask: other\ntag: tagged\n");
  write_file(folder.file("damaged.yaml"), "task: [");
  write_file(folder.file("group.yaml"),
             "group: g\ntask: [t, tagged, {group: inner, task: [{task: t, task_alias: T2, num_fewshot: 0}]}]\n"
             "aggregate_metric_list: {metric: acc, weight_by_size: false, filter_list: none}\n");
  const TaskSelection selection = select_tasks({folder.file("group.yaml"), folder.path()}, "");
  ASSERT_EQ(selection.tasks.size(), 2u);
  EXPECT_EQ(selection.tasks[1].name, "other");
  ASSERT_EQ(selection.groups.size(), 2u);
  EXPECT_EQ(selection.groups[1].tasks, (std::vector<std::string>{"t", "other"}));
  EXPECT_FALSE(selection.groups[1].metrics.at(0).weight_by_size);
  EXPECT_EQ(selection.groups[1].metrics.at(0).filters, std::vector<std::string>{"none"});
  write_file(folder.file("group.yaml"), "group: g\ntask: [tt]\n");
  const std::string error = error_of([&] { select_tasks({folder.file("group.yaml")}, ""); });
  EXPECT_NE(error.find("no task 'tt'"), std::string::npos) << error;
  EXPECT_NE(error.find("not read: " + folder.file("damaged.yaml")), std::string::npos) << error;
  write_file(folder.file("group.yaml"), "group: g\ntask: [t]\naggregate_metric_list: [{metric: acc, weight: 1}]\n");
  EXPECT_NE(error_of([&] { select_tasks({folder.file("group.yaml")}, ""); }).find("unknown key 'weight'"),
            std::string::npos);
}

TEST(TaskNames, SayTheNearest) {
  EXPECT_NE(error_of([] { select_tasks({"hellaswog"}, "d"); }).find("no task 'hellaswog' (nearest: hellaswag)"),
            std::string::npos);
  EXPECT_NE(error_of([] { select_tasks({"hellaswag"}, ""); }).find("--data DIR"), std::string::npos);
  EXPECT_NE(error_of([] { select_tasks({"absent.yaml"}, ""); }).find("absent.yaml"), std::string::npos);
  EXPECT_EQ(select_tasks({"mmlu"}, "d").tasks.size(), 57u);
  EXPECT_EQ(select_tasks({"mmlu"}, "d").groups.size(), 5u);
  EXPECT_EQ(select_tasks({"mmlu_stem_tasks", "arc_easy", "arc_easy"}, "d").tasks.size(), 20u);
}

}  // namespace
}  // namespace octet
