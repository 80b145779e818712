#include "tasks/task_config.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "tasks/task_filters.h"
#include "tasks/task_metrics.h"

namespace octet {

using nlohmann::ordered_json;

const char* task_output_name(TaskOutput output) {
  constexpr const char* kNames[] = {"loglikelihood", "loglikelihood_rolling", "multiple_choice", "generate_until"};
  return kNames[static_cast<size_t>(output)];
}

namespace {

constexpr const char* kHooks[] = {"",           "hellaswag",       "piqa",    "stem", "boolq",
                                  "truthfulqa", "truthfulqa_mass", "wikitext"};

// Reads the members of an object; what was not read at the end is an error.
class Members {
 public:
  Members(const ordered_json& json, std::string where) : json_(json), where_(std::move(where)) {
    check(json.is_object(), ErrorCode::kInvalidArgument, "{}: want names and values, got {}", where_, json.dump());
  }
  // Null where it is absent or null.
  const ordered_json& any(const char* key) {
    static const ordered_json kNull;
    known_.emplace_back(key);
    const auto found = json_.find(key);
    return found == json_.end() ? kNull : *found;
  }
  std::optional<std::string> text(const char* key) {
    const ordered_json& value = any(key);
    if (value.is_null()) return {};
    if (!value.is_string()) fail_at(key, "a text");
    return value.get<std::string>();
  }
  bool flag(const char* key, bool otherwise = false) {
    const ordered_json& value = any(key);
    if (!value.is_null() && !value.is_boolean()) fail_at(key, "true or false");
    return value.is_null() ? otherwise : value.get<bool>();
  }
  std::optional<int64_t> integer(const char* key, int64_t least) {
    const ordered_json& value = any(key);
    if (value.is_null()) return {};
    if (!value.is_number_integer() || value.get<int64_t>() < least) fail_at(key, fmt::format("a number >= {}", least));
    return value.get<int64_t>();
  }
  std::optional<double> number(const char* key) {
    const ordered_json& value = any(key);
    if (value.is_null()) return {};
    if (!value.is_number()) fail_at(key, "a number");
    return value.get<double>();
  }
  // A text alone is a list of one.
  std::vector<std::string> texts(const char* key) {
    const ordered_json& value = any(key);
    if (value.is_string()) return {value.get<std::string>()};
    std::vector<std::string> list;
    if (!value.is_null() && !value.is_array()) fail_at(key, "a list of texts");
    for (const ordered_json& item : value) {
      if (!item.is_string()) fail_at(key, "a list of texts");
      list.push_back(item.get<std::string>());
    }
    return list;
  }
  void ignore(std::initializer_list<const char*> keys) {
    for (const char* key : keys) known_.emplace_back(key);
  }
  // A key whose value, but for null and false, is an error.
  void refuse(const char* key, const char* why) {
    const ordered_json& value = any(key);
    check(value.is_null() || value == ordered_json(false), ErrorCode::kInvalidArgument, "{}: {}: {}", where_, key, why);
  }
  void end() const {
    for (const auto& [key, value] : json_.items())
      check(std::ranges::find(known_, key) != known_.end(), ErrorCode::kInvalidArgument, "{}: unknown key '{}'{}",
            where_, key, if_near(key, known_, " (nearest: {})"));
  }
  [[noreturn]] void fail_at(const char* key, const std::string& want) const {
    fail(ErrorCode::kInvalidArgument, "{}: {}: {} (want {})", where_, key, json_.at(key).dump(), want);
  }
  const std::string& where() const { return where_; }

 private:
  const ordered_json& json_;
  std::string where_;
  std::vector<std::string> known_;
};

TaskOutput output_of(Members& task) {
  const std::string name = task.text("output_type").value_or("generate_until");
  for (uint8_t i = 0; i < 4; ++i)
    if (name == task_output_name(static_cast<TaskOutput>(i))) return static_cast<TaskOutput>(i);
  fail(ErrorCode::kInvalidArgument,
       "{}: output_type: {} (want loglikelihood, loglikelihood_rolling, multiple_choice or generate_until)",
       task.where(), name);
}

void read_form(Members& task, TaskForm& form) {
  const auto given = [&](const char* key, ordered_json& value) {
    if (const ordered_json& found = task.any(key); !found.is_null()) value = found;
  };
  given("doc_to_text", form.text), given("doc_to_target", form.target), given("doc_to_choice", form.choice);
  given("gen_prefix", form.gen_prefix);
  form.target_delimiter = task.text("target_delimiter").value_or(form.target_delimiter);
  form.fewshot_delimiter = task.text("fewshot_delimiter").value_or(form.fewshot_delimiter);
}

void read_fewshot(Members& task, TaskConfig& config) {
  config.fewshot_form = config.form;
  const ordered_json& given = task.any("fewshot_config");
  if (given.is_null()) return;
  Members shots(given, task.where() + ": fewshot_config");
  config.sampler = shots.text("sampler").value_or("default");
  check(config.sampler == "default" || config.sampler == "first_n", ErrorCode::kInvalidArgument,
        "{}: sampler: {} (want default or first_n)", shots.where(), config.sampler);
  if (const auto split = shots.text("split")) config.fewshot_split = split;
  if (const ordered_json& samples = shots.any("samples"); !samples.is_null()) {
    if (!samples.is_array() || !std::ranges::all_of(samples, [](const auto& doc) { return doc.is_object(); }))
      shots.fail_at("samples", "a list of documents");
    config.fewshot_samples = samples;
  }
  shots.refuse("process_docs", "hooks in Python are not run");
  shots.refuse("fewshot_indices", "not supported (the harness does not read it either): give samples");
  read_form(shots, config.fewshot_form);
  shots.end();
}

void read_generation(Members& task, TaskConfig& config) {
  const ordered_json& given = task.any("generation_kwargs");
  TaskGeneration& generation = config.generation;
  generation.until = {config.form.fewshot_delimiter};
  generation.given = {{"until", generation.until}, {"max_gen_toks", 256}, {"do_sample", false}, {"temperature", 0.0}};
  if (given.is_null()) return;
  Members options(given, task.where() + ": generation_kwargs");
  if (!options.any("until").is_null()) generation.until = options.texts("until");
  for (const char* key : {"max_completion_tokens", "max_tokens", "max_new_tokens", "max_gen_toks"})
    generation.max_tokens = options.integer(key, 1).value_or(generation.max_tokens);
  const double temperature = options.number("temperature").value_or(0);
  const bool samples = options.flag("do_sample", temperature > 0);
  if (samples) generation.temperature = temperature > 0 ? temperature : 1;
  generation.top_p = options.number("top_p").value_or(1);
  generation.top_k = options.integer("top_k", 0).value_or(0);
  options.end();
  generation.given = given;
  if (!given.contains("until")) generation.given["until"] = generation.until;
}

void read_metrics(Members& task, TaskConfig& config) {
  const ordered_json& given = task.any("metric_list");
  if (given.is_null()) {
    for (const MetricRow* row : default_metrics(config.output))
      config.metrics.push_back({row->name, row->aggregation, row->higher_is_better});
    return;
  }
  if (!given.is_array()) task.fail_at("metric_list", "a list");
  for (const ordered_json& item : given) {
    Members entry(item, task.where() + ": metric_list");
    TaskMetric metric{.name = entry.text("metric").value_or("")};
    const MetricRow& row = find_metric(metric.name, entry.where());
    entry.refuse("hf_evaluate", "metrics of the package evaluate are not run");
    metric.aggregation = entry.text("aggregation").value_or(row.aggregation);
    check_aggregation(metric.aggregation, row, entry.where());
    metric.higher_is_better = entry.flag("higher_is_better", row.higher_is_better);
    if (metric.name == "exact_match") {
      metric.ignore_case = entry.flag("ignore_case");
      metric.ignore_punctuation = entry.flag("ignore_punctuation");
      metric.ignore_numbers = entry.flag("ignore_numbers");
      metric.regexes_to_ignore = entry.texts("regexes_to_ignore");
    }
    entry.end();
    if (row.is_of(config.output))
      config.metrics.push_back(std::move(metric));
    else
      log_warning("{}: {} is left out: not a metric of output_type {}", entry.where(), metric.name,
                  task_output_name(config.output));
  }
  check(!config.metrics.empty(), ErrorCode::kInvalidArgument, "{}: no metric of output_type {} is named", task.where(),
        task_output_name(config.output));
}

void read_filters(Members& task, TaskConfig& config) {
  const ordered_json& given = task.any("filter_list");
  if (given.is_null()) {
    config.filters = {{"none", {{"take_first", ordered_json::object()}}}};
    return;
  }
  if (!given.is_array() || given.empty()) task.fail_at("filter_list", "a list of filters");
  for (const ordered_json& item : given) {
    Members entry(item, task.where() + ": filter_list");
    TaskFilter filter{.name = entry.text("name").value_or("")};
    check(!filter.name.empty(), ErrorCode::kInvalidArgument, "{}: a filter without a name", entry.where());
    for (const ordered_json& step : entry.any("filter")) {
      check(step.is_object() && step.contains("function") && step["function"].is_string(), ErrorCode::kInvalidArgument,
            "{}: {}: {} (want function: a filter's name)", entry.where(), filter.name, step.dump());
      ordered_json arguments = step;
      arguments.erase("function");
      filter.steps.push_back({step["function"].get<std::string>(), std::move(arguments)});
    }
    entry.end();
    check_filter(filter, config.output, entry.where());
    config.filters.push_back(std::move(filter));
  }
}

void check_forms(const TaskConfig& config) {
  const auto want = [&](bool holds, const char* key, const char* what) {
    check(holds, ErrorCode::kInvalidArgument, "{}: {} (want {})", config.where, key, what);
  };
  for (const TaskForm* form : {&config.form, &config.fewshot_form}) {
    want(form->text.is_null() || form->text.is_string() || form->text.is_number_integer(), "doc_to_text",
         "a field, template or number");
    want(form->target.is_string() || form->target.is_number_integer() || form->target.is_array(), "doc_to_target",
         "a field, template, number or list");
    want(form->choice.is_null() || form->choice.is_string() || form->choice.is_array() || form->choice.is_object(),
         "doc_to_choice", "a field, template or list");
    want(form->gen_prefix.is_null() || form->gen_prefix.is_string(), "gen_prefix", "a field or template");
  }
  want(config.output == TaskOutput::kRolling || !config.form.text.is_null(), "doc_to_text is missing", "a template");
  want(config.output != TaskOutput::kMultipleChoice || !config.form.choice.is_null(), "doc_to_choice is missing",
       "the choices");
  want(config.test_split || config.validation_split, "neither test_split nor validation_split is there", "one");
}

}  // namespace

TaskConfig parse_task(const ordered_json& json, const std::string& where, bool hooks) {
  Members task(json, where);
  TaskConfig config{.name = task.text("task").value_or(""), .where = where};
  check(!config.name.empty(), ErrorCode::kInvalidArgument, "{}: no name (want task: NAME)", where);
  config.alias = task.text("task_alias").value_or(config.name);
  for (const char* key : {"process_docs", "process_results", "custom_dataset"})
    task.refuse(key, "hooks in Python are not run (docs/evaluation.md)");
  for (const char* key : {"doc_to_image", "doc_to_audio"}) task.refuse(key, "images and audio are not supported");
  task.refuse("use_prompt", "prompts of promptsource are not supported: write doc_to_text and doc_to_target");
  task.refuse("unsafe_code", "generated code is not run (docs/evaluation.md)");
  // What tells about a task and changes nothing in its results.
  task.ignore({"tag", "group", "metadata", "dataset_name", "should_decontaminate", "doc_to_decontamination_query"});
  if (hooks) {
    const std::string hook = task.text("octet_hook").value_or("");
    config.hook = static_cast<TaskHook>(std::ranges::find(kHooks, hook) - std::begin(kHooks));
  }
  config.output = output_of(task);
  config.dataset_path = task.text("dataset_path").value_or("");
  config.dataset = task.any("dataset_kwargs");
  config.training_split = task.text("training_split");
  config.validation_split = task.text("validation_split");
  config.test_split = task.text("test_split");
  config.fewshot_split = task.text("fewshot_split");
  config.description = task.text("description").value_or("");
  config.num_fewshot = task.integer("num_fewshot", 0);
  config.repeats = task.integer("repeats", 1).value_or(1);
  read_form(task, config.form);
  read_fewshot(task, config);
  read_generation(task, config);
  read_metrics(task, config);
  read_filters(task, config);
  task.end();
  check_forms(config);
  return config;
}

}  // namespace octet
