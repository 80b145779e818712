// Over all documents: means, perplexities, F1, Matthews' correlation, the Brier score; standard errors in closed form
// or by the bootstrap, of lm-evaluation-harness's random numbers.
#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

#include "base/error.h"
#include "base/threads.h"
#include "tasks/python_random.h"
#include "tasks/task_metrics.h"

namespace octet {

using nlohmann::ordered_json;

namespace {

using Pair = std::pair<double, double>;  // a sum and its weight; a right and a given label
using Items = std::vector<Pair>;         // of means the second is 1

double mean(const Items& items) {
  double sum = 0;
  for (const Pair& item : items) sum += item.first;
  return sum / static_cast<double>(items.size());
}

double weighted_mean(const Items& items) {
  double sum = 0, weights = 0;
  for (const auto& [one, weight] : items) sum += one, weights += weight;
  return sum / weights;
}

double nan_mean(const Items& items) {
  Items kept = items;
  std::erase_if(kept, [](const Pair& item) { return std::isnan(item.first); });
  return kept.empty() ? NAN : mean(kept);
}

double median(const Items& items) {
  Items sorted = items;
  std::ranges::sort(sorted);
  return sorted[sorted.size() / 2].first;
}

double perplexity(const Items& items) { return std::exp(-mean(items)); }
double weighted_perplexity(const Items& items) { return std::exp(-weighted_mean(items)); }
double bits_per_byte(const Items& items) { return -weighted_mean(items) / std::numbers::ln2; }

// Of label 1 among 0 and 1.
double f1(const Items& items) {
  double both = 0, either = 0;
  for (const auto& [gold, given] : items) {
    both += gold == 1 && given == 1 ? 1 : 0;
    either += (gold == 1 ? 1 : 0) + (given == 1 ? 1 : 0);
  }
  return either > 0 ? 2 * both / either : 0;
}

// Of any number of labels, as scikit-learn has it.
double matthews(const Items& items) {
  std::map<double, Pair> counts;  // of each label: how often it is right, how often given
  double right = 0, squares = 0, gold_squares = 0, given_squares = 0;
  const auto n = static_cast<double>(items.size());
  for (const auto& [gold, given] : items) {
    ++counts[gold].first, ++counts[given].second;
    right += gold == given ? 1 : 0;
  }
  for (const auto& [label, count] : counts) {
    squares += count.first * count.second;
    gold_squares += count.first * count.first;
    given_squares += count.second * count.second;
  }
  const double spread = (n * n - given_squares) * (n * n - gold_squares);
  return spread == 0 ? 0 : (right * n - squares) / std::sqrt(spread);
}

enum class Takes : uint8_t { kNumbers, kWeighted, kLabels, kShares };

struct AggregationRow {
  const char* name;
  Takes takes;
  double (*of)(const Items& items);
  bool bootstraps;
};

constexpr AggregationRow kAggregations[] = {
    {"mean", Takes::kNumbers, mean, false},
    {"nanmean", Takes::kNumbers, nan_mean, true},
    {"median", Takes::kNumbers, median, true},
    {"perplexity", Takes::kNumbers, perplexity, true},
    {"weighted_perplexity", Takes::kWeighted, weighted_perplexity, false},
    {"bits_per_byte", Takes::kWeighted, bits_per_byte, false},
    {"f1", Takes::kLabels, f1, true},
    {"matthews_corrcoef", Takes::kLabels, matthews, true},
    {"brier_score", Takes::kShares, nullptr, false},
};

const AggregationRow* find_row(const std::string& name) {
  const auto* found =
      std::ranges::find(kAggregations, name, [](const AggregationRow& row) { return std::string_view(row.name); });
  return found == std::end(kAggregations) ? nullptr : found;
}

double brier_score(const std::vector<ordered_json>& values, const std::string& where) {
  double sum = 0;
  for (const ordered_json& value : values) {
    const ordered_json& shares = value[1];
    check(value[0].is_number_integer() && shares.size() == values[0][1].size(), ErrorCode::kInvalidArgument,
          "{}: brier_score wants one right choice and as many choices for every document: {}", where, value.dump());
    const int64_t gold =
        value[0].get<int64_t>() < 0 ? value[0].get<int64_t>() + std::ssize(shares) : value[0].get<int64_t>();
    check(gold >= 0, ErrorCode::kInvalidArgument, "{}: brier_score: no choice {}", where, value[0].dump());
    for (int64_t i = 0; i < std::ssize(shares); ++i) {
      const double off = shares[static_cast<size_t>(i)].get<double>() - (i == gold ? 1 : 0);
      sum += off * off;
    }
  }
  return sum / static_cast<double>(values.size());
}

Items items_of(const AggregationRow& row, const std::vector<ordered_json>& values, const std::string& where) {
  Items items;
  for (const ordered_json& value : values) {
    const bool pair = value.is_array() && value.size() == 2 && value[0].is_number() && value[1].is_number();
    check(row.takes == Takes::kNumbers ? value.is_number() : pair, ErrorCode::kInvalidArgument,
          "{}: {} of {}: want one right choice for every document", where, row.name, value.dump());
    items.push_back(pair ? Pair(value[0].get<double>(), value[1].get<double>()) : Pair(value.get<double>(), 1));
  }
  if (row.of == f1)
    for (const auto& [gold, given] : items)
      check((gold == 0 || gold == 1) && (given == 0 || given == 1), ErrorCode::kInvalidArgument,
            "{}: f1 is of two choices, and there is label {}", where, gold == 0 || gold == 1 ? given : gold);
  return items;
}

double sample_deviation(const std::vector<double>& values) {
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  const double middle = sum / static_cast<double>(values.size());
  for (const double value : values) squares += (value - middle) * (value - middle);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

// Chunks of 1,000 draws, each of its own seed.
double bootstrap_error(double (*of)(const Items&), const Items& items, int64_t draws) {
  const int64_t chunk = std::min<int64_t>(1000, draws), chunks = draws / chunk;
  std::vector<double> results(static_cast<size_t>(chunk * chunks));
  parallel_for(chunks, 1, [&](int64_t begin, int64_t end) {
    Items drawn(items.size());
    for (int64_t c = begin; c < end; ++c) {
      PythonRandom random(static_cast<uint32_t>(c));
      for (int64_t i = 0; i < chunk; ++i) {
        for (Pair& item : drawn) item = items[random.choice(items.size())];
        results[static_cast<size_t>(c * chunk + i)] = of(drawn);
      }
    }
  });
  return sample_deviation(results);
}

}  // namespace

void check_aggregation(const std::string& name, const MetricRow& metric, const std::string& where) {
  const AggregationRow* row = find_row(name);
  const AggregationRow* own = find_row(metric.aggregation);
  std::string names;
  for (const AggregationRow& one : kAggregations)
    if (one.takes == own->takes) names += (names.empty() ? "" : ", ") + std::string(one.name);
  check(row != nullptr && row->takes == own->takes, ErrorCode::kInvalidArgument,
        "{}: {}: aggregation {} (want one of: {})", where, metric.name, name, names);
}

Aggregated aggregate(const std::string& aggregation, const std::vector<ordered_json>& values, int64_t draws,
                     const std::string& where) {
  const AggregationRow& row = *find_row(aggregation);
  if (row.takes == Takes::kShares) return {brier_score(values, where), {}};
  const Items items = items_of(row, values, where);
  Aggregated result{row.of(items), {}};
  if (draws <= 0 || items.size() < 2) return result;
  if (row.of == mean) {
    std::vector<double> numbers;
    for (const Pair& item : items) numbers.push_back(item.first);
    result.error = sample_deviation(numbers) / std::sqrt(static_cast<double>(numbers.size()));
  } else if (row.bootstraps) {
    result.error = bootstrap_error(row.of, items, draws);
  }
  return result;
}

Aggregated aggregate_group(const std::vector<SubtaskMetric>& subtasks, bool weight_by_size) {
  double sum = 0, weights = 0, variance = 0, documents = 0;
  bool known = true;
  for (const SubtaskMetric& task : subtasks) {
    const auto size = static_cast<double>(task.documents);
    const double weight = weight_by_size ? size : 1, error = task.value.error.value_or(0);
    sum += task.value.value * weight;
    weights += weight;
    documents += size;
    variance += weight_by_size ? (size - 1) * error * error * size : error * error;
    known &= task.value.error.has_value();
  }
  const auto count = static_cast<double>(subtasks.size());
  Aggregated result{sum / weights, {}};
  if (known)
    result.error = weight_by_size ? std::sqrt(variance / (documents - count) / documents) : std::sqrt(variance) / count;
  return result;
}

}  // namespace octet
