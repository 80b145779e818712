#include "io/mlperf_log.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"

namespace octet {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Rules 3.0.0 (github.com/mlcommons/logging, compliance_checker/training_3.0.0; runs and drops: rcp_checker).
constexpr MlperfBenchmark kBenchmarks[] = {
    {"bert", 10, 1, 0.720, 1, true},  {"dlrm_dcnv2", 10, 1, 0.80275, 1 + 1e-15, true},
    {"gpt3", 3, 1, 2.69, 2.6, false}, {"maskrcnn", 5, 1, 0.377, 1, true},
    {"resnet", 5, 1, 0.759, 1, true}, {"rnnt", 10, 1, 0.058, 0, false},
    {"ssd", 5, 1, 0.340, 1, true},    {"unet3d", 40, 4, 0.908, INFINITY, true},
};
constexpr double kSegmTarget = 0.339;  // of maskrcnn

enum : uint32_t { kBert = 1, kDlrm = 2, kGpt3 = 4, kMaskRcnn = 8, kResnet = 16, kRnnt = 32, kSsd = 64, kUnet3d = 128 };
constexpr uint32_t kAll = 255;

// Rules: "=A|B" one of these numbers or words; ">A", ">=A"; "multiple A"; "multiple or part A": the second for a
// batch below 16; "doubling A": A times a power of two; "list N"; "integer".
struct KeyRow {
  const char* name;
  uint32_t benchmarks;
  const char* rule;
};
constexpr KeyRow kKeys[] = {
    {"gradient_accumulation_steps", kAll, ">0"},
    {"global_batch_size", kMaskRcnn | kResnet, ">0"},
    {"global_batch_size", kAll & ~(kMaskRcnn | kResnet), ""},
    {"seed", kUnet3d, ""},
    // optimisers
    {"opt_name", kDlrm, "=adagrad"},
    {"opt_name", kGpt3 | kSsd, "=adam"},
    {"opt_name", kResnet, "=sgd|lars"},
    {"opt_name", kRnnt, "=lamb"},
    {"opt_name", kUnet3d, ""},
    {"opt_base_learning_rate", kGpt3, "=2e-5|3e-5"},
    {"opt_base_learning_rate", kMaskRcnn, "multiple or part 0.02"},
    {"opt_base_learning_rate", kSsd, ">=0"},
    {"opt_base_learning_rate", kBert | kDlrm | kRnnt | kUnet3d, ""},
    {"opt_end_learning_rate", kGpt3, ""},
    {"opt_weight_decay", kDlrm | kSsd, "=0"},
    {"opt_weight_decay", kRnnt, "=1e-3"},
    {"opt_weight_decay", kUnet3d, ""},
    {"opt_momentum", kUnet3d, ""},
    {"opt_gradient_clip_norm", kGpt3, "=1"},
    {"opt_gradient_clip_norm", kRnnt, "=1|inf"},
    {"opt_adagrad_learning_rate_decay", kDlrm, "=0"},
    {"opt_adagrad_initial_accumulator_value", kDlrm, "=0"},
    {"opt_adagrad_epsilon", kDlrm, "=1e-8"},
    {"opt_adam_beta_1", kGpt3, "=0.9"},
    {"opt_adam_beta_2", kGpt3, "=0.95"},
    {"opt_adam_epsilon", kGpt3, "=1e-8"},
    {"opt_lamb_epsilon", kBert, ""},
    {"opt_lamb_epsilon", kRnnt, "=1e-9"},
    {"opt_lamb_beta_1", kBert | kRnnt, ""},
    {"opt_lamb_beta_2", kBert | kRnnt, ""},
    {"opt_lamb_weight_decay_rate", kBert, ""},
    // schedules
    {"opt_learning_rate_training_steps", kBert, ""},
    {"num_warmup_steps", kBert, ""},
    {"start_warmup_step", kBert, ""},
    {"opt_learning_rate_warmup_steps", kDlrm, "=0"},
    {"opt_learning_rate_warmup_steps", kMaskRcnn, ">=0"},
    {"opt_learning_rate_warmup_steps", kBert | kGpt3, ""},
    {"opt_learning_rate_warmup_epochs", kSsd | kUnet3d, ">=0"},
    {"opt_learning_rate_warmup_epochs", kRnnt, ""},
    {"opt_learning_rate_warmup_factor", kMaskRcnn, ">0"},
    {"opt_learning_rate_warmup_factor", kSsd, ">=0"},
    {"opt_learning_rate_decay_start_step", kDlrm, "=0"},
    {"opt_learning_rate_decay_steps", kDlrm, "=0"},
    {"opt_learning_rate_decay_steps", kMaskRcnn, "list 2"},
    {"opt_learning_rate_decay_steps", kGpt3, ""},
    {"opt_learning_rate_decay_schedule", kGpt3, "=cosine with linear warmup"},
    {"opt_learning_rate_decay_factor", kMaskRcnn, "=0.1"},
    {"opt_learning_rate_decay_factor", kUnet3d, ""},
    {"opt_learning_rate_decay_boundary_epochs", kUnet3d, ""},
    {"opt_lamb_learning_rate_decay_poly_power", kRnnt, ""},
    {"opt_lamb_learning_rate_hold_epochs", kRnnt, ""},
    {"opt_lamb_learning_rate_min", kRnnt, "=1e-5"},
    {"opt_learning_rate_alt_decay_func", kRnnt, "=true"},
    {"opt_learning_rate_alt_warmup_func", kRnnt, "=true"},
    // data and models
    {"train_samples", kUnet3d, "=168"},
    {"eval_samples", kDlrm, "=89137319"},
    {"eval_samples", kRnnt, "=2703"},
    {"eval_samples", kUnet3d, "=42"},
    {"max_sequence_length", kGpt3, "=2048"},
    {"init_checkpoint_step", kGpt3, ">0"},
    {"num_image_candidates", kMaskRcnn, "multiple 1000"},
    {"min_image_size", kMaskRcnn, ">=0"},
    {"max_image_size", kMaskRcnn, ">=0"},
    {"data_train_max_duration", kRnnt, ""},
    {"data_train_num_buckets", kRnnt, "integer"},
    {"data_speed_perturbaton_min", kRnnt, "=0.85"},
    {"data_speed_perturbaton_max", kRnnt, "=1.15"},
    {"data_spec_augment_freq_n", kRnnt, "=2"},
    {"data_spec_augment_freq_min", kRnnt, "=0"},
    {"data_spec_augment_freq_max", kRnnt, "=20"},
    {"data_spec_augment_time_n", kRnnt, "=10"},
    {"data_spec_augment_time_min", kRnnt, "=0"},
    {"data_spec_augment_time_max", kRnnt, "=0.03"},
    {"model_eval_ema_factor", kRnnt, ""},
    {"eval_max_prediction_symbols", kRnnt, "=300"},
    {"oversampling", kUnet3d, ""},
    {"training_input_shape", kUnet3d, ""},
    {"validation_input_shape", kUnet3d, ""},
    {"validation_overlap", kUnet3d, ""},
};
// Of resnet by its optimizer.
constexpr KeyRow kLarsKeys[] = {
    {"lars_opt_base_learning_rate", kResnet, ""},
    {"lars_opt_end_learning_rate", kResnet, "=0.0001"},
    {"lars_opt_learning_rate_decay_poly_power", kResnet, "=2"},
    {"lars_opt_learning_rate_decay_steps", kResnet, ""},
    {"lars_epsilon", kResnet, "=0"},
    {"lars_opt_learning_rate_warmup_epochs", kResnet, ""},
    {"lars_opt_momentum", kResnet, ""},
    {"lars_opt_weight_decay", kResnet, "doubling 0.0001"},
};
constexpr KeyRow kSgdKeys[] = {
    {"sgd_opt_base_learning_rate", kResnet, "multiple 0.001"},
    {"sgd_opt_end_learning_rate", kResnet, "=0.0001"},
    {"sgd_opt_learning_rate_decay_poly_power", kResnet, ""},
    {"sgd_opt_learning_rate_decay_steps", kResnet, ""},
    {"sgd_opt_weight_decay", kResnet, "doubling 0.0001"},
    {"sgd_opt_momentum", kResnet, ""},
    {"model_bn_span", kResnet, ""},
    {"opt_learning_rate_warmup_epochs", kResnet, ""},
};

// Of every run, closed or open: exactly once.
constexpr std::pair<const char*, const char*> kOnce[] = {
    {"submission_org", "text"},
    {"submission_platform", "text"},
    {"submission_division", "=closed|open"},
    {"submission_status", "=cloud|onprem|preview|research"},
    {"submission_benchmark", ""},
    {"init_stop", ""},
    {"run_start", ""},
    {"run_stop", ""},
    {"train_samples", "text"},
    {"eval_samples", "text"},
};

// Python's json writes Infinity and NaN, which JSON has not.
OrderedJson parse_value(const std::string& json) {
  if (json == "Infinity") return INFINITY;
  if (json == "-Infinity") return -INFINITY;
  if (json == "NaN") return NAN;
  return OrderedJson::parse(json, nullptr, /*allow_exceptions=*/false);
}

std::optional<double> number_of(const OrderedJson& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;  // as Python compares them
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

bool is_whole(double value) { return std::abs(std::round(value) - value) < 1e-5; }

bool equals(const OrderedJson& value, const std::string& word) {
  if (word == "true") return number_of(value) == 1;
  const std::optional<double> number = number_of(value);
  char* end = nullptr;
  const double wanted = std::strtod(word.c_str(), &end);
  if (*end == '\0' && !word.empty()) return number == wanted;
  return value.is_string() && value.get<std::string>() == word;
}

bool obeys(const OrderedJson& value, const std::string& rule, std::optional<double> batch) {
  if (rule.empty()) return true;
  if (rule == "text") return !value.is_string() || !value.get<std::string>().empty();
  if (rule == "integer") return value.is_number_integer();
  if (rule.starts_with("list ")) return value.is_array() && std::to_string(value.size()) == rule.substr(5);
  if (rule[0] == '=') {
    for (size_t begin = 1, end = 0; begin <= rule.size(); begin = end + 1) {
      end = std::min(rule.find('|', begin), rule.size());
      if (equals(value, rule.substr(begin, end - begin))) return true;
    }
    return false;
  }
  const std::optional<double> number = number_of(value);
  if (!number) return false;
  const double operand = std::strtod(rule.c_str() + rule.find_first_of("0123456789"), nullptr);
  if (rule.starts_with(">=")) return *number >= operand;
  if (rule.starts_with(">")) return *number > operand;
  if (rule.starts_with("doubling")) return *number > 0 && is_whole(std::log2(*number / operand));
  const bool part = rule.starts_with("multiple or part") && batch && *batch < 16 && *number != 0;
  return is_whole(*number / operand) || (part && is_whole(operand / *number));
}

bool within(double accuracy, double target, double limit, bool higher) {
  return higher ? accuracy >= target && accuracy < limit : accuracy <= target && accuracy > limit;
}

// What check_mlperf_log collects.
class Checker {
 public:
  explicit Checker(std::string_view text) : lines_(parse_mlperf_log(text, faults_)) {}

  std::vector<MlperfFault> run() {
    for (const MlperfLine& line : lines_) by_key_[line.key].push_back(&line);
    for (const auto& [key, rule] : kOnce) once(key, rule);
    for (const char* key : {"cache_clear", "init_start", "eval_accuracy"}) at_least_one({key});
    at_least_one({"block_start", "epoch_start"}), at_least_one({"block_stop", "epoch_stop"});
    at_least_one({"eval_start", "block_start"}), at_least_one({"eval_stop", "block_stop"});
    order();
    benchmark();
    return std::move(faults_);
  }

 private:
  template <typename... Args>
  void fault(int64_t line, fmt::format_string<const Args&...> text, const Args&... args) {
    faults_.push_back({.line = line, .text = fmt::format(text, args...)});
  }
  const std::vector<const MlperfLine*>& of(const std::string& key) const {
    static const std::vector<const MlperfLine*> kNoLines;
    const auto found = by_key_.find(key);
    return found == by_key_.end() ? kNoLines : found->second;
  }
  std::optional<OrderedJson> value_of(const std::string& key) const {
    return of(key).empty() ? std::nullopt : std::optional(parse_value(of(key)[0]->value.json()));
  }
  std::string text_of(const std::string& key) const {
    const auto value = value_of(key);
    return value && value->is_string() ? value->get<std::string>() : "";
  }

  void once(const std::string& key, const std::string& rule) {
    const auto& found = of(key);
    if (found.empty()) fault(0, "{} is missing (want one)", key);
    if (found.size() > 1)
      faults_.push_back({found[1]->number, fmt::format("{} is there {} times (want one)", key, found.size()), true});
    const auto batch = value_of("global_batch_size");
    for (const MlperfLine* line : found)
      if (!obeys(parse_value(line->value.json()), rule, batch ? number_of(*batch) : std::nullopt))
        fault(line->number, "{} is {} (want {})", key, line->value.json(),
              rule == "text"   ? "some text"
              : rule[0] == '=' ? rule.substr(1)
                               : rule);
  }
  void at_least_one(const std::vector<std::string>& keys) {
    if (std::ranges::all_of(keys, [&](const std::string& key) { return of(key).empty(); }))
      fault(0, "{} is missing (want at least one)", fmt::format("{}", fmt::join(keys, " or ")));
  }
  void wants(const MlperfLine& line, const char* field) {
    if (!line.metadata.contains(field)) fault(line.number, "{} has no {} in its metadata", line.key, field);
  }

  void order() {
    const int64_t minutes = text_of("submission_division") == "open" ? 240 : 30;
    bool begun = false, ready = false, running = false;
    int64_t first = 0;
    for (const MlperfLine& line : lines_) {
      const auto in_order = [&](bool holds, const char* want) {
        if (!holds) fault(line.number, "{} {}", line.key, want);
      };
      if (line.key == "init_start") {
        in_order(!ready && !running, "comes behind init_stop or run_start");
        first = begun ? std::min(first, line.time_ms) : line.time_ms, begun = true;
      } else if (line.key == "init_stop") {
        in_order(begun && !running, "comes before init_start or behind run_start");
        if (begun && line.time_ms - first >= minutes * 60000)
          fault(line.number, "init took {:.1f} minutes (want less than {})",
                static_cast<double>(line.time_ms - first) / 6e4, minutes);
        ready = true;
      } else if (line.key == "run_start") {
        in_order(ready, "comes before init_stop"), running = true;
      } else if (line.key == "run_stop") {
        in_order(running, "comes before run_start"), wants(line, "status");
      } else if (line.key == "block_start") {
        in_order(running, "comes before run_start"), wants(line, "first_epoch_num"), wants(line, "epoch_count");
        const auto count = line.metadata.find("epoch_count");
        if (count != line.metadata.end() && number_of(parse_value(count->second.json())).value_or(0) <= 0)
          fault(line.number, "epoch_count is {} (want more than 0)", count->second.json());
      } else if (line.key == "block_stop") {
        wants(line, "first_epoch_num");
      } else if (std::set<std::string>{"epoch_start", "epoch_stop", "eval_start", "eval_stop", "eval_accuracy"}
                     .contains(line.key)) {
        wants(line, "epoch_num");
      }
    }
  }

  void benchmark() {
    const std::string name = text_of("submission_benchmark");
    const MlperfBenchmark* known = find_mlperf_benchmark(name);
    if (known == nullptr) {
      if (!of("submission_benchmark").empty())
        fault(of("submission_benchmark")[0]->number, "submission_benchmark is \"{}\" (want one of the eight of 3.0.0)",
              name);
      return;
    }
    if (text_of("submission_division") != "closed") return;
    for (const MlperfKey& key : closed_keys(*known, text_of("opt_name"))) once(key.name, key.rule);
    const auto& evaluations = of("eval_accuracy");
    if (!evaluations.empty() &&
        std::ranges::none_of(evaluations, [&](const MlperfLine* line) { return reaches_target(*known, line->value); }))
      fault(evaluations.back()->number, "eval_accuracy never reached the target of {} ({} {}): the last is {}", name,
            known->higher_is_better ? "at least" : "at most", known->target, evaluations.back()->value.json());
  }

  std::vector<MlperfFault> faults_;
  std::vector<MlperfLine> lines_;
  std::map<std::string, std::vector<const MlperfLine*>> by_key_;
};

}  // namespace

std::span<const MlperfBenchmark> mlperf_benchmarks() { return kBenchmarks; }

const MlperfBenchmark* find_mlperf_benchmark(std::string_view name) {
  const auto* found = std::ranges::find(kBenchmarks, name, &MlperfBenchmark::name);
  return found == std::end(kBenchmarks) ? nullptr : found;
}

bool reaches_target(const MlperfBenchmark& b, const MlperfValue& accuracy) {
  const OrderedJson value = parse_value(accuracy.json());
  const auto reaches = [&](const OrderedJson& of, double target) {
    const std::optional<double> number = number_of(of);
    return number && within(*number, target, b.limit, b.higher_is_better);
  };
  if (std::string_view(b.name) != "maskrcnn") return reaches(value, b.target);
  return value.is_object() && value.contains("BBOX") && value.contains("SEGM") && reaches(value["BBOX"], b.target) &&
         reaches(value["SEGM"], kSegmTarget);
}

std::vector<MlperfKey> closed_keys(const MlperfBenchmark& benchmark, const std::string& optimizer) {
  const uint32_t bit = 1U << static_cast<uint32_t>(&benchmark - kBenchmarks);
  std::vector<MlperfKey> keys;
  const auto add = [&](std::span<const KeyRow> rows) {
    for (const KeyRow& row : rows)
      if ((row.benchmarks & bit) != 0) keys.push_back({row.name, row.rule});
  };
  add(kKeys);
  if (bit == kResnet && optimizer == "lars") add(kLarsKeys);
  if (bit == kResnet && optimizer == "sgd") add(kSgdKeys);
  return keys;
}

bool obeys(const MlperfKey& key, const MlperfValue& value, int64_t global_batch) {
  return obeys(parse_value(value.json()), key.rule, static_cast<double>(global_batch));
}

std::vector<MlperfLine> parse_mlperf_log(std::string_view text, std::vector<MlperfFault>& faults) {
  std::vector<MlperfLine> lines;
  int64_t number = 0;
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    std::string_view line = text.substr(0, newline);
    text = newline == std::string_view::npos ? std::string_view() : text.substr(newline + 1);
    ++number;
    const size_t token = line.find(kMlperfToken);
    if (token == std::string_view::npos) continue;
    line.remove_prefix(token + kMlperfToken.size());
    std::string written(line);  // Python's numbers that JSON has not, as text
    for (const std::string_view word : {": -Infinity", ": Infinity", ": NaN"})
      for (size_t at = written.find(word); at != std::string::npos; at = written.find(word, at))
        written.replace(at, word.size(), fmt::format(": \"{}\"", word.substr(2)));
    const OrderedJson json = OrderedJson::parse(written, nullptr, /*allow_exceptions=*/false);
    const auto member = [&](const char* name) -> const OrderedJson* {
      return json.is_object() && json.contains(name) ? &json[name] : nullptr;
    };
    const OrderedJson *key = member("key"), *time = member("time_ms"), *value = member("value"),
                      *metadata = member("metadata"), *type = member("event_type");
    if (key == nullptr || !key->is_string() || time == nullptr || !time->is_number() || value == nullptr) {
      faults.push_back({.line = number, .text = "the line is cut, or not a JSON object of key, time_ms and value"});
      continue;
    }
    const auto of = [](const OrderedJson& json) {
      const bool word = json.is_string() && std::set<std::string>{"Infinity", "-Infinity", "NaN"}.contains(json);
      return MlperfValue::of_json(word ? json.get<std::string>()
                                       : json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
    };
    MlperfLine& made =
        lines.emplace_back(MlperfLine{.number = number,
                                      .time_ms = static_cast<int64_t>(time->get<double>()),
                                      .type = type != nullptr && type->is_string() ? type->get<std::string>() : "",
                                      .key = key->get<std::string>(),
                                      .value = of(*value)});
    if (metadata != nullptr && metadata->is_object())
      for (const auto& [name, field] : metadata->items()) made.metadata[name] = of(field);
  }
  return lines;
}

std::vector<MlperfFault> check_mlperf_log(std::string_view text) { return Checker(text).run(); }

}  // namespace octet
