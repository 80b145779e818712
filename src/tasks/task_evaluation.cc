#include "tasks/task_evaluation.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "tasks/python_text.h"
#include "tasks/task_filters.h"

namespace octet {

using nlohmann::ordered_json;

// A task's documents and what is asked about each.
struct TaskRunner::Prepared {
  struct Document {
    size_t first = 0, count = 0;       // of the requests
    std::vector<std::string> choices;  // multiple_choice
    ordered_json gold;                 // what the metrics compare with
    ordered_json target;
  };
  const TaskConfig& task;
  TaskDocuments docs;
  int64_t shots = 0, original = 0;
  bool many_gold = false, contexts_differ = false;
  std::vector<Document> documents;
  std::vector<ScoredText> scored;      // loglikelihood, multiple_choice
  std::vector<std::string> texts;      // loglikelihood_rolling
  std::vector<GeneratedText> replies;  // generate_until; repeats of one follow one another

  size_t requests() const { return scored.size() + texts.size() + replies.size(); }
  void add(size_t index, TaskPrompts& prompts);
  void add_choices(Document& document, const ordered_json& doc, const std::vector<std::string>& contexts,
                   TaskPrompts& prompts);
  ordered_json arguments(const Document& document) const;
  DocumentMetrics metrics(const Document& document, const ordered_json& doc, const std::vector<ordered_json>& filtered,
                          const std::vector<Likelihood>& likelihoods) const;
};

namespace {

bool has_metric(const TaskConfig& task, std::string_view name) {
  return std::ranges::find(task.metrics, name, [](const TaskMetric& m) { return std::string_view(m.name); }) !=
         task.metrics.end();
}

int64_t shots_of(const TaskConfig& task, const std::optional<int64_t>& asked) {
  const int64_t own = task.num_fewshot.value_or(0);
  if (task.output == TaskOutput::kRolling) {
    if (asked.value_or(own) > 0) log_warning("{}: whole texts are scored, without shots", task.name);
    return 0;
  }
  if (!asked) return own;
  if (task.num_fewshot == 0 && *asked > 0) {
    log_warning("{}: --shots {} is not followed: the task says num_fewshot: 0", task.name, *asked);
    return 0;
  }
  return *asked;
}

const std::string& text_of(const ordered_json& target, const std::string& where) {
  check(target.is_string(), ErrorCode::kInvalidArgument, "{}: doc_to_target gives no text: {}", where, target.dump());
  return target.get_ref<const std::string&>();
}

}  // namespace

// The target delimiter stands between context and choice; a chat's turn has it only behind a prefix of the answer.
void TaskRunner::Prepared::add_choices(Document& document, const ordered_json& doc,
                                       const std::vector<std::string>& contexts, TaskPrompts& prompts) {
  document.choices = prompts.fields().choices(doc, task.form);
  const ordered_json& prefix = task.form.gen_prefix;
  const bool apart = prefix.is_string() && prefix != "" && !ends_with_space(prefix.get_ref<const std::string&>());
  const std::string delimiter = prompts.chat() && !apart ? "" : task.form.target_delimiter;
  for (size_t i = 0; i < document.choices.size(); ++i)
    scored.push_back(contexts_differ ? ScoredText{contexts[i], delimiter + python_str(document.target)}
                                     : ScoredText{contexts[0], delimiter + document.choices[i]});
  if (has_metric(task, "acc_mutual_info"))
    for (const std::string& choice : document.choices) scored.push_back({"", delimiter + choice});
  document.gold = contexts_differ ? prompts.fields().text(doc, task.form) : document.target;
}

void TaskRunner::Prepared::add(size_t index, TaskPrompts& prompts) {
  const ordered_json& doc = docs.docs[index];
  Document& document = documents.emplace_back();
  document.first = requests();
  document.gold = document.target = prompts.fields().target(doc, task.form);
  if (index == 0) many_gold = document.target.is_array();
  if (task.output == TaskOutput::kRolling) {
    texts.push_back(text_of(document.target, task.where));
  } else {
    const std::vector<std::string> contexts = prompts.contexts(doc);
    if (task.output == TaskOutput::kMultipleChoice) {
      add_choices(document, doc, contexts, prompts);
    } else if (task.output == TaskOutput::kLoglikelihood) {
      scored.push_back({contexts[0], text_of(document.target, task.where)});
    } else {
      for (int64_t k = 0; k < task.repeats; ++k)
        replies.push_back(
            {contexts[0], &task.generation, static_cast<uint64_t>(index) * 1000 + static_cast<uint64_t>(k)});
      if (!task.form.choice.is_null()) {
        const std::vector<std::string> choices = prompts.fields().choices(doc, task.form);
        const int64_t number = document.gold.is_number_integer() ? document.gold.get<int64_t>() : -1;
        check(number >= 0 && number < std::ssize(choices), ErrorCode::kInvalidArgument,
              "{}: doc_to_target gives {} (want a choice's number below {})", task.where, document.gold.dump(),
              choices.size());
        document.gold = choices[static_cast<size_t>(number)];
      }
    }
  }
  document.count = requests() - document.first;
}

ordered_json TaskRunner::Prepared::arguments(const Document& document) const {
  ordered_json list = ordered_json::array();
  for (size_t i = document.first; i < document.first + document.count; ++i) {
    if (task.output == TaskOutput::kRolling)
      list.push_back({texts[i]});
    else if (task.output == TaskOutput::kGenerate)
      list.push_back({replies[i].context, task.generation.given});
    else
      list.push_back({scored[i].context, scored[i].continuation});
    if (task.output == TaskOutput::kGenerate) break;  // repeats are one request
  }
  return list;
}

DocumentMetrics TaskRunner::Prepared::metrics(const Document& document, const ordered_json& doc,
                                              const std::vector<ordered_json>& filtered,
                                              const std::vector<Likelihood>& likelihoods) const {
  switch (task.output) {
    case TaskOutput::kLoglikelihood: return continuation_metrics(task, likelihoods[0]);
    case TaskOutput::kRolling: {
      // WikiText counts words and bytes of the page as it was published.
      const char* field = "page";
      const std::string text =
          task.hook == TaskHook::kWikitext ? doc.at(field).get<std::string>() : document.target.get<std::string>();
      return rolling_metrics(task, filtered[0].get<double>(), text);
    }
    case TaskOutput::kGenerate: return reply_metrics(task, filtered[0], document.gold, many_gold);
    case TaskOutput::kMultipleChoice: break;
  }
  if (task.hook == TaskHook::kTruthfulqaMass) return truthful_mass(likelihoods, doc.at("mc2_targets").at("labels"));
  return choice_metrics(task, document.choices, likelihoods, document.gold, many_gold);
}

TaskRunner::TaskRunner(const TaskSelection& selection, const TaskRunOptions& options)
    : selection_(selection), options_(options) {
  for (const TaskConfig& task : selection.tasks) {
    auto prepared = std::make_unique<Prepared>(Prepared{.task = task, .docs = read_documents(task, task.eval_split())});
    prepared->shots = shots_of(task, options.shots);
    prepared->original = std::ssize(prepared->docs.docs);
    TaskPrompts prompts(task, prepared->docs, prepared->shots, options.seed, options.chat);
    prepared->contexts_differ = prompts.contexts_differ();
    const int64_t count = options.limit > 0 ? std::min(options.limit, prepared->original) : prepared->original;
    for (int64_t i = 0; i < count; ++i) prepared->add(static_cast<size_t>(i), prompts);
    tasks_.push_back(std::move(prepared));
  }
}

TaskRunner::~TaskRunner() = default;

ordered_json TaskRunner::first_arguments() const { return tasks_.at(0)->arguments(tasks_[0]->documents.at(0)); }

int64_t TaskRunner::requests() const {
  size_t count = 0;
  for (const auto& task : tasks_) count += task->requests();
  return static_cast<int64_t>(count);
}

namespace {

// A metric's values over the documents, by filter and name, in the order they came.
using Values = std::vector<std::pair<std::pair<std::string, std::string>, std::vector<ordered_json>>>;

void add_values(Values& values, const std::string& filter, const DocumentMetrics& metrics) {
  for (const auto& [name, value] : metrics) {
    const auto key = std::pair(name, filter);
    auto found = std::ranges::find(values, key, [](const auto& one) { return one.first; });
    if (found == values.end()) found = values.insert(values.end(), {key, {}});
    found->second.push_back(value);
  }
}

void put(ordered_json& results, const std::string& metric, const std::string& filter, const Aggregated& value) {
  results[metric + "," + filter] = value.value;
  results[metric + "_stderr," + filter] = value.error ? ordered_json(*value.error) : ordered_json("N/A");
}

ordered_json group_results(const TaskGroup& group, const ordered_json& results) {
  ordered_json out = {{"alias", group.alias}};
  int64_t documents = 0;
  for (const std::string& task : group.tasks) documents += results[task]["sample_len"].get<int64_t>();
  if (!group.metrics.empty()) out["sample_len"] = documents;
  for (const GroupMetric& metric : group.metrics) {
    std::vector<std::string> filters = metric.filters;
    if (filters.empty())
      for (const std::string& task : group.tasks)
        for (const auto& [key, value] : results[task].items())
          if (const std::string begin = metric.name + ","; key.starts_with(begin))
            if (const std::string filter = key.substr(begin.size());
                std::ranges::find(filters, filter) == filters.end())
              filters.push_back(filter);
    std::ranges::sort(filters);
    for (const std::string& filter : filters) {
      std::vector<SubtaskMetric> parts;
      for (const std::string& task : group.tasks) {
        const ordered_json& own = results[task];
        if (!own.contains(metric.name + "," + filter)) continue;
        SubtaskMetric& part = parts.emplace_back();
        part.documents = own["sample_len"].get<int64_t>();
        part.value.value = own[metric.name + "," + filter].get<double>();
        const ordered_json& error = own[metric.name + "_stderr," + filter];
        if (error.is_number()) part.value.error = error.get<double>();
      }
      if (std::ssize(parts) < std::ssize(group.tasks))
        log_warning("group {}: {} of {} tasks have {},{}", group.name, parts.size(), group.tasks.size(), metric.name,
                    filter);
      if (!parts.empty()) put(out, metric.name, filter, aggregate_group(parts, metric.weight_by_size));
    }
    if (filters.empty()) log_warning("group {}: none of its tasks has metric {}", group.name, metric.name);
  }
  return out;
}

}  // namespace

TaskRun TaskRunner::run(ModelCalls& calls) {
  TaskRun run;
  run.results = run.groups = run.shots = run.higher_is_better = run.documents = ordered_json::object();
  for (const auto& prepared : tasks_) {
    const TaskConfig& task = prepared->task;
    std::vector<Likelihood> likelihoods;
    std::vector<ordered_json> replies;  // of each request
    if (task.output == TaskOutput::kRolling) {
      for (const double sum : calls.rolling(prepared->texts)) replies.emplace_back(sum);
    } else if (task.output == TaskOutput::kGenerate) {
      for (std::string& reply : calls.replies(prepared->replies)) replies.emplace_back(std::move(reply));
    } else {
      likelihoods = calls.likelihoods(prepared->scored);
      for (const Likelihood& one : likelihoods) replies.push_back({one.sum, one.greedy});
    }
    Values values;
    for (const TaskFilter& filter : task.filters) {
      for (size_t d = 0; d < prepared->documents.size(); ++d) {
        const Prepared::Document& document = prepared->documents[d];
        const ordered_json& doc = prepared->docs.docs[d];
        const auto begin = static_cast<std::ptrdiff_t>(document.first),
                   end = begin + static_cast<std::ptrdiff_t>(document.count);
        const std::vector<ordered_json> given(replies.begin() + begin, replies.begin() + end);
        ordered_json all = ordered_json::array();  // of each request its repeats
        std::vector<ordered_json> kept;
        if (task.output == TaskOutput::kGenerate) {
          kept.push_back(filtered(filter, given, doc));
          all.push_back(given);
        } else {
          for (const ordered_json& one : given) kept.push_back(one), all.push_back(ordered_json::array({one}));
        }
        std::vector<Likelihood> own;
        if (!likelihoods.empty()) own.assign(likelihoods.begin() + begin, likelihoods.begin() + end);
        const DocumentMetrics metrics = prepared->metrics(document, doc, kept, own);
        add_values(values, filter.name, metrics);
        if (!options_.samples) continue;
        ordered_json sample = {{"task", task.name}, {"doc_id", d}, {"doc", doc}, {"target", document.target}};
        sample["arguments"] = prepared->arguments(document);
        sample["resps"] = std::move(all);
        sample["filtered_resps"] = kept;
        sample["filter"] = filter.name;
        sample["metrics"] = ordered_json::array();
        for (const auto& [name, value] : metrics) sample["metrics"].push_back(name);
        for (const auto& [name, value] : metrics) sample[name] = value;
        run.samples.push_back(std::move(sample));
      }
    }
    ordered_json results = {{"alias", task.alias}, {"sample_len", prepared->documents.size()}};
    for (const auto& [key, list] : values) {
      const auto metric = std::ranges::find(task.metrics, key.first, &TaskMetric::name);
      put(results, key.first, key.second, aggregate(metric->aggregation, list, options_.draws, task.where));
      run.higher_is_better[task.name][key.first] = metric->higher_is_better;
    }
    run.results[task.name] = std::move(results);
    run.shots[task.name] = prepared->shots;
    run.documents[task.name] = {{"original", prepared->original}, {"effective", prepared->documents.size()}};
  }
  for (const TaskGroup& group : selection_.groups)
    run.results[group.name] = run.groups[group.name] = group_results(group, run.results);
  return run;
}

}  // namespace octet
