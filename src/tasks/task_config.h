// A task of lm-evaluation-harness: its YAML file, checked. What the harness would do by Python (hooks, prompts of other
// packages, data sets of the Hub) is refused by name, and so is every key that is not known.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace octet {

enum class TaskOutput : uint8_t { kLoglikelihood, kRolling, kMultipleChoice, kGenerate };
const char* task_output_name(TaskOutput output);  // as output_type has it

struct TaskMetric {
  std::string name, aggregation;
  bool higher_is_better = true;
  bool ignore_case = false, ignore_punctuation = false, ignore_numbers = false;  // of exact_match, as the next one
  std::vector<std::string> regexes_to_ignore = {};
};

struct TaskFilter {
  std::string name;
  struct Step {
    std::string function;
    nlohmann::ordered_json arguments;
  };
  std::vector<Step> steps;
};

struct TaskGeneration {
  std::vector<std::string> until;
  int64_t max_tokens = 256;
  double temperature = 0, top_p = 1;
  int64_t top_k = 0;
  nlohmann::ordered_json given;  // as the file has them, for the samples
};

// The texts made of a document: a field's name, a template, a list or a number. Null: not given.
struct TaskForm {
  nlohmann::ordered_json text, target, choice, gen_prefix;
  std::string target_delimiter = " ", fewshot_delimiter = "\n\n";
};

// What a built-in task does that its file would need Python for.
enum class TaskHook : uint8_t { kNone, kHellaswag, kPiqa, kStem, kBoolq, kTruthfulqa, kTruthfulqaMass, kWikitext };

struct TaskConfig {
  std::string name, alias, where;
  std::string folder;                           // that data_files are relative to
  std::vector<std::string> other_folders = {};  // tried before it
  TaskOutput output = TaskOutput::kGenerate;
  TaskHook hook = TaskHook::kNone;
  std::string dataset_path;
  nlohmann::ordered_json dataset;  // dataset_kwargs
  std::optional<std::string> training_split, validation_split, test_split, fewshot_split;
  std::string sampler = "default";
  std::optional<nlohmann::ordered_json> fewshot_samples = {};
  TaskForm form, fewshot_form;
  std::string description;
  std::optional<int64_t> num_fewshot;
  int64_t repeats = 1;
  TaskGeneration generation;
  std::vector<TaskMetric> metrics;
  std::vector<TaskFilter> filters;

  const std::string& eval_split() const { return test_split ? *test_split : *validation_split; }
};

// `json`: of read_task_yaml(). `where`: names it in errors. `hooks`: the key octet_hook is known, of built-in tasks.
TaskConfig parse_task(const nlohmann::ordered_json& json, const std::string& where, bool hooks = false);

}  // namespace octet
