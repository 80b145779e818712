#include "tasks/task_metrics.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "io/tokenizer_steps.h"
#include "tasks/python_regex.h"
#include "tasks/python_text.h"

namespace octet {

using nlohmann::ordered_json;

namespace {

constexpr uint8_t bit(TaskOutput output) { return static_cast<uint8_t>(1 << static_cast<int>(output)); }
constexpr uint8_t kLog = bit(TaskOutput::kLoglikelihood), kRoll = bit(TaskOutput::kRolling);
constexpr uint8_t kPick = bit(TaskOutput::kMultipleChoice), kText = bit(TaskOutput::kGenerate);

constexpr MetricRow kMetrics[] = {
    {"acc", "mean", true, kLog | kPick},
    {"acc_norm", "mean", true, kPick},
    {"acc_bytes", "mean", true, kPick},
    {"acc_mutual_info", "mean", true, kPick},
    {"exact_match", "mean", true, kPick | kText},
    {"f1", "f1", true, kPick},
    {"mcc", "matthews_corrcoef", true, kPick},
    {"brier_score", "brier_score", false, kPick},
    {"perplexity", "perplexity", false, kLog},
    {"word_perplexity", "weighted_perplexity", false, kRoll},
    {"byte_perplexity", "weighted_perplexity", false, kRoll},
    {"bits_per_byte", "bits_per_byte", false, kRoll},
};

size_t greatest(const std::vector<double>& values) {
  return static_cast<size_t>(std::ranges::max_element(values) - values.begin());
}

// The right choices by their numbers; -100 for one that is not there.
std::vector<int64_t> gold_numbers(const ordered_json& gold, const std::vector<std::string>& choices) {
  std::vector<int64_t> numbers;
  const ordered_json list = gold.is_array() ? gold : ordered_json::array({gold});
  for (const ordered_json& one : list) {
    int64_t number = -100;
    if (one.is_boolean()) number = one.get<bool>() ? 1 : 0;
    if (one.is_number_integer()) number = one.get<int64_t>();
    if (one.is_string()) {
      const auto found = std::ranges::find(choices, one.get_ref<const std::string&>());
      if (found != choices.end()) number = found - choices.begin();
    }
    numbers.push_back(number < std::ssize(choices) ? number : -100);
  }
  return numbers;
}

bool is_greedy(const std::vector<Likelihood>& likelihoods, size_t choices, int64_t number) {
  if (number < 0) number += static_cast<int64_t>(choices);  // as Python's lists
  return number >= 0 && number < static_cast<int64_t>(choices) && likelihoods[static_cast<size_t>(number)].greedy;
}

ordered_json softmax(const std::vector<double>& sums) {
  std::vector<double> shares;
  double total = 0;
  for (const double sum : sums) total += shares.emplace_back(std::exp(sum - *std::ranges::max_element(sums)));
  for (double& share : shares) share /= total;
  return shares;
}

bool exact_match(const TaskMetric& metric, std::string reply, std::string gold) {
  for (std::string* text : {&reply, &gold}) {
    for (const std::string& pattern : metric.regexes_to_ignore)
      *text = PythonRegex(pattern, metric.name).replace(*text, "");
    if (metric.ignore_case) *text = lowercase(*text);
    if (metric.ignore_punctuation) std::erase_if(*text, [](char c) { return c > 0 && std::ispunct(c) != 0; });
    if (metric.ignore_numbers) std::erase_if(*text, [](char c) { return c >= '0' && c <= '9'; });
  }
  return reply == gold;
}

}  // namespace

const MetricRow& find_metric(const std::string& name, const std::string& where) {
  const auto* found =
      std::ranges::find(kMetrics, name, [](const MetricRow& row) { return std::string_view(row.name); });
  if (found != std::end(kMetrics)) return *found;
  std::vector<std::string> names;
  for (const MetricRow& row : kMetrics) names.emplace_back(row.name);
  fail(ErrorCode::kInvalidArgument, "{}: unknown metric '{}'{} (known: {})", where, name,
       if_near(name, names, ", nearest: {}"), fmt::join(names, ", "));
}

std::vector<const MetricRow*> default_metrics(TaskOutput output) {
  std::vector<const MetricRow*> rows;
  const bool picks = output == TaskOutput::kMultipleChoice;
  for (const MetricRow& row : kMetrics) {
    const std::string_view name = row.name;
    if (row.is_of(output) && (!picks || name == "acc" || name == "acc_norm")) rows.push_back(&row);
  }
  return rows;
}

DocumentMetrics choice_metrics(const TaskConfig& task, const std::vector<std::string>& choices,
                               const std::vector<Likelihood>& likelihoods, const ordered_json& gold, bool many_gold) {
  const size_t count = choices.size();
  std::vector<double> sums, by_length, by_bytes, mutual;
  for (size_t i = 0; i < count; ++i) {
    sums.push_back(likelihoods[i].sum);
    by_length.push_back(sums[i] / static_cast<double>(character_count(choices[i])));
    by_bytes.push_back(sums[i] / static_cast<double>(choices[i].size()));
    if (likelihoods.size() == 2 * count) mutual.push_back(sums[i] - likelihoods[count + i].sum);
  }
  const std::vector<int64_t> right = gold_numbers(gold, choices);
  const auto hit = [&](const std::vector<double>& values) {
    return std::ranges::find(right, static_cast<int64_t>(greatest(values))) != right.end() ? 1.0 : 0.0;
  };
  const ordered_json label = gold.is_array() ? ordered_json(right) : ordered_json(right[0]);
  const auto value_of = [&](const std::string& name) -> ordered_json {
    if (name == "acc") return hit(sums);
    if (name == "acc_norm") return hit(by_length);
    if (name == "acc_bytes") return hit(by_bytes);
    if (name == "acc_mutual_info") return gold.is_array() ? 0.0 : hit(mutual);  // the harness knows one right choice
    if (name == "exact_match") {
      const bool any =
          std::ranges::any_of(right, [&](int64_t n) { return n != -100 && is_greedy(likelihoods, count, n); });
      return any ? 1 : 0;
    }
    if (name == "brier_score") return ordered_json::array({label, softmax(sums)});
    return ordered_json::array({label, static_cast<int64_t>(greatest(sums))});  // f1, mcc
  };
  check(many_gold || !gold.is_array(), ErrorCode::kInvalidArgument,
        "{}: a list of targets, where the first document has one target: {}", task.where, gold.dump());
  DocumentMetrics metrics;
  for (const TaskMetric& metric : task.metrics) metrics.emplace_back(metric.name, value_of(metric.name));
  return metrics;
}

DocumentMetrics continuation_metrics(const TaskConfig& task, const Likelihood& likelihood) {
  DocumentMetrics metrics;
  for (const TaskMetric& metric : task.metrics)
    metrics.emplace_back(metric.name,
                         metric.name == "acc" ? ordered_json(likelihood.greedy ? 1 : 0) : ordered_json(likelihood.sum));
  return metrics;
}

DocumentMetrics rolling_metrics(const TaskConfig& task, double sum, const std::string& text) {
  DocumentMetrics metrics;
  for (const TaskMetric& metric : task.metrics) {
    const int64_t weight = metric.name == "word_perplexity" ? word_count(text) : std::ssize(text);
    metrics.emplace_back(metric.name, ordered_json::array({sum, weight}));
  }
  return metrics;
}

DocumentMetrics truthful_mass(const std::vector<Likelihood>& likelihoods, const ordered_json& labels) {
  double right = 0, all = 0;
  for (size_t i = 0; i < likelihoods.size(); ++i) {
    const double chance = std::exp(likelihoods[i].sum);
    all += chance;
    if (labels.at(i) == 1) right += chance;
  }
  return {{"acc", right / all}};
}

DocumentMetrics reply_metrics(const TaskConfig& task, const ordered_json& reply, const ordered_json& gold,
                              bool many_gold) {
  const ordered_json list = many_gold && gold.is_array() ? gold : ordered_json::array({gold});
  DocumentMetrics metrics;
  for (const TaskMetric& metric : task.metrics) {  // exact_match: the only metric of texts
    const bool any = std::ranges::any_of(
        list, [&](const ordered_json& one) { return exact_match(metric, python_str(reply), python_str(one)); });
    metrics.emplace_back(metric.name, any ? 1.0 : 0.0);
  }
  return metrics;
}

}  // namespace octet
