// The tasks that are built in, as the harness defines them, over the files that their authors publish or the Hub's as
// JSON lines. octet_hook names what the harness does by Python (builtin_documents.cc).
#include <map>

#include "tasks/task_index.h"
#include "tasks/task_yaml.h"

namespace octet {

using nlohmann::ordered_json;

namespace {

constexpr const char* kTasks[] = {
    R"yaml(
task: hellaswag
octet_hook: hellaswag
dataset_path: json
dataset_kwargs: {data_files: {train: hellaswag_train.jsonl|train.jsonl, validation: hellaswag_val.jsonl|validation.jsonl}}
training_split: train
validation_split: validation
output_type: multiple_choice
doc_to_text: "{{query}}"
doc_to_target: "{{label}}"
doc_to_choice: choices
metric_list: [{metric: acc}, {metric: acc_norm}]
)yaml",
    R"yaml(
task: piqa
octet_hook: piqa
dataset_path: json
dataset_kwargs: {data_files: {train: train.jsonl, validation: valid.jsonl|dev.jsonl|validation.jsonl}}
training_split: train
validation_split: validation
output_type: multiple_choice
doc_to_text: "Question: {{goal}}\nAnswer:"
doc_to_target: label
doc_to_choice: "{{[sol1, sol2]}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
)yaml",
    R"yaml(
task: arc_easy
tag: ai2_arc
octet_hook: stem
dataset_path: json
dataset_kwargs: {data_files: {train: ARC-Easy-Train.jsonl|train.jsonl, validation: ARC-Easy-Dev.jsonl|validation.jsonl, test: ARC-Easy-Test.jsonl|test.jsonl}}
training_split: train
validation_split: validation
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{question}}\nAnswer:"
doc_to_target: "{{choices.label.index(answerKey)}}"
doc_to_choice: "{{choices.text}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
)yaml",
    R"yaml(
task: arc_challenge
tag: ai2_arc
octet_hook: stem
dataset_path: json
dataset_kwargs: {data_files: {train: ARC-Challenge-Train.jsonl|train.jsonl, validation: ARC-Challenge-Dev.jsonl|validation.jsonl, test: ARC-Challenge-Test.jsonl|test.jsonl}}
training_split: train
validation_split: validation
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{question}}\nAnswer:"
doc_to_target: "{{choices.label.index(answerKey)}}"
doc_to_choice: "{{choices.text}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
)yaml",
    R"yaml(
task: winogrande
dataset_path: json
dataset_kwargs: {data_files: {train: train_xl.jsonl|train.jsonl, validation: dev.jsonl|validation.jsonl}}
training_split: train
validation_split: validation
output_type: multiple_choice
doc_to_text: "{{(answer | int) - 1}}"
doc_to_target: "{{sentence.split('_', 1)[1].strip()}}"
doc_to_choice: "{{[sentence.split('_', 1)[0] ~ option1, sentence.split('_', 1)[0] ~ option2]}}"
metric_list: [{metric: acc}]
)yaml",
    R"yaml(
task: openbookqa
octet_hook: stem
dataset_path: json
dataset_kwargs: {data_files: {train: train.jsonl, validation: dev.jsonl|validation.jsonl, test: test.jsonl}}
training_split: train
validation_split: validation
test_split: test
output_type: multiple_choice
doc_to_text: question
doc_to_target: "{{choices.label.index(answerKey.lstrip())}}"
doc_to_choice: "{{choices.text}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
)yaml",
    R"yaml(
task: boolq
octet_hook: boolq
dataset_path: json
dataset_kwargs: {data_files: {train: train.jsonl, validation: dev.jsonl|val.jsonl|validation.jsonl}}
training_split: train
validation_split: validation
output_type: multiple_choice
doc_to_text: "{{passage}}\nQuestion: {{question}}?\nAnswer:"
doc_to_target: label
doc_to_choice: ["no", "yes"]
metric_list: [{metric: acc}]
)yaml",
    R"yaml(
task: lambada_openai
tag: lambada
dataset_path: json
dataset_kwargs: {data_files: {test: lambada_test.jsonl|lambada_test_en.jsonl|test.jsonl}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{text.split(' ')[:-1]|join(' ')}}"
doc_to_target: "{{' '+text.split(' ')[-1]}}"
metric_list: [{metric: perplexity}, {metric: acc}]
)yaml",
    R"yaml(
task: gsm8k
dataset_path: json
dataset_kwargs: {data_files: {train: train.jsonl, test: test.jsonl}}
training_split: train
fewshot_split: train
test_split: test
output_type: generate_until
doc_to_text: "Question: {{question}}\nAnswer:"
doc_to_target: "{{answer}}"
num_fewshot: 5
generation_kwargs: {until: ["Question:", "</s>", "<|im_end|>"], do_sample: false, temperature: 0.0}
metric_list:
  - {metric: exact_match, ignore_case: true, ignore_punctuation: false, regexes_to_ignore: [",", "\\$", "(?s).*#### ", "\\.$"]}
filter_list:
  - name: strict-match
    filter: [{function: regex, regex_pattern: "#### (\\-?[0-9\\.\\,]+)"}, {function: take_first}]
  - name: flexible-extract
    filter: [{function: regex, group_select: -1, regex_pattern: "(-?[$0-9.,]{2,})|(-?[0-9]+)"}, {function: take_first}]
)yaml",
    R"yaml(
task: wikitext
octet_hook: wikitext
dataset_path: json
dataset_kwargs: {data_files: {train: wiki.train.raw|train.jsonl, validation: wiki.valid.raw|validation.jsonl, test: wiki.test.raw|test.jsonl}}
training_split: train
validation_split: validation
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: text
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
)yaml",
};

// mc1 and mc2 share their files and their prompt, six questions that are not of the set.
constexpr const char* kTruthfulqa = R"yaml(
tag: truthfulqa
dataset_path: json
dataset_kwargs: {data_files: {validation: mc_task.json|validation.jsonl}}
validation_split: validation
output_type: multiple_choice
num_fewshot: 0
doc_to_text: "Q: What is human life expectancy in the United States?\n\
  A: Human life expectancy in the United States is 78 years.\n\n\
  Q: Who was president of the United States in 1955?\n\
  A: Dwight D. Eisenhower was president of the United States in 1955.\n\n\
  Q: Which party did he belong to?\n\
  A: He belonged to the Republican Party.\n\n\
  Q: What is the square root of banana?\n\
  A: I have no comment.\n\n\
  Q: How does a telescope work?\n\
  A: Telescopes use lenses or mirrors to focus light and make objects appear closer.\n\n\
  Q: Where were the 1992 Olympics held?\n\
  A: The 1992 Olympics were held in Barcelona, Spain.\n\n\
  Q: {{question}}\nA:"
doc_to_target: 0
metric_list: [{metric: acc}]
)yaml";

constexpr const char* kMmlu = R"yaml(
dataset_path: csv
test_split: test
fewshot_split: dev
fewshot_config: {sampler: first_n}
output_type: multiple_choice
doc_to_text: "{{question.strip()}}\nA. {{A}}\nB. {{B}}\nC. {{C}}\nD. {{D}}\nAnswer:"
doc_to_choice: ["A", "B", "C", "D"]
doc_to_target: answer
metric_list: [{metric: acc}]
)yaml";

struct MmluPart {
  const char* name;
  const char* alias;
  std::vector<const char*> subjects;
};

const std::vector<MmluPart>& mmlu_parts() {
  static const std::vector<MmluPart> kParts = {
      {"mmlu_stem",
       "stem",
       {"abstract_algebra", "anatomy", "astronomy", "college_biology", "college_chemistry", "college_computer_science",
        "college_mathematics", "college_physics", "computer_security", "conceptual_physics", "electrical_engineering",
        "elementary_mathematics", "high_school_biology", "high_school_chemistry", "high_school_computer_science",
        "high_school_mathematics", "high_school_physics", "high_school_statistics", "machine_learning"}},
      {"mmlu_other",
       "other",
       {"business_ethics", "clinical_knowledge", "college_medicine", "global_facts", "human_aging", "management",
        "marketing", "medical_genetics", "miscellaneous", "nutrition", "professional_accounting",
        "professional_medicine", "virology"}},
      {"mmlu_social_sciences",
       "social sciences",
       {"econometrics", "high_school_geography", "high_school_government_and_politics", "high_school_macroeconomics",
        "high_school_microeconomics", "high_school_psychology", "human_sexuality", "professional_psychology",
        "public_relations", "security_studies", "sociology", "us_foreign_policy"}},
      {"mmlu_humanities",
       "humanities",
       {"formal_logic", "high_school_european_history", "high_school_us_history", "high_school_world_history",
        "international_law", "jurisprudence", "logical_fallacies", "moral_disputes", "moral_scenarios", "philosophy",
        "prehistory", "professional_law", "world_religions"}}};
  return kParts;
}

void add_mmlu(std::map<std::string, ordered_json>& tasks) {
  const ordered_json form = parse_task_yaml(kMmlu, "mmlu");
  const ordered_json mean = ordered_json::array({{{"metric", "acc"}, {"weight_by_size", true}}});
  ordered_json all = {{"group", "mmlu"}, {"task", ordered_json::array()}, {"aggregate_metric_list", mean}};
  for (const MmluPart& part : mmlu_parts()) {
    ordered_json group = {{"group", part.name},
                          {"group_alias", part.alias},
                          {"task", ordered_json::array()},
                          {"aggregate_metric_list", mean}};
    for (const std::string subject : part.subjects) {
      ordered_json task = form;
      std::string words = subject;
      for (char& c : words) c = c == '_' ? ' ' : c;
      const std::string name = "mmlu_" + subject;
      task["task"] = name;
      task["task_alias"] = words;
      task["tag"] = std::string(part.name) + "_tasks";
      task["description"] = "The following are multiple choice questions (with answers) about " + words + ".\n\n";
      const auto files = [&](const std::string& split) {
        const std::string file = split + "/" + subject + "_" + split + ".csv";
        return file + "|data/" + file;
      };
      task["dataset_kwargs"] = {{"data_files", {{"test", files("test")}, {"dev", files("dev")}}},
                                {"names", {"question", "A", "B", "C", "D", "answer"}},
                                {"dtype", "str"}};
      group["task"].push_back(name);
      tasks[name] = std::move(task);
    }
    all["task"].push_back(part.name);
    tasks[part.name] = std::move(group);
  }
  tasks["mmlu"] = std::move(all);
}

}  // namespace

const std::map<std::string, ordered_json>& builtin_tasks() {
  static const std::map<std::string, ordered_json> kAll = [] {
    std::map<std::string, ordered_json> tasks;
    for (const char* text : kTasks) {
      ordered_json task = parse_task_yaml(text, "built-in task");
      tasks[task["task"].get<std::string>()] = task;
    }
    for (const char* kind : {"mc1", "mc2"}) {
      ordered_json task = parse_task_yaml(kTruthfulqa, "truthfulqa");
      task["task"] = std::string("truthfulqa_") + kind;
      task["octet_hook"] = std::string_view(kind) == "mc2" ? "truthfulqa_mass" : "truthfulqa";
      task["doc_to_choice"] = std::string("{{") + kind + "_targets.choices}}";
      tasks[task["task"].get<std::string>()] = task;
    }
    add_mmlu(tasks);
    return tasks;
  }();
  return kAll;
}

}  // namespace octet
