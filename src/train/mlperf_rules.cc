#include "train/mlperf_rules.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/integers.h"
#include "train/bert.h"
#include "train/language_model.h"
#include "train/schedule.h"

namespace octet {
namespace {

constexpr int64_t kGpt3EvalSequences = 24576;

struct Difference {
  std::vector<std::string>& all;

  template <typename Value, typename Wanted>
  void expect(const std::string& what, const Value& value, const Wanted& wanted) {
    if (value != static_cast<Value>(wanted))
      all.push_back(fmt::format("{} is {} (the reference's: {})", what, value, wanted));
  }
};

void compare_sizes(Difference& to, const ModelConfig& model, const std::string& reference) {
  const ModelConfig wanted = named_model(reference);
  to.expect("the model's family", model.architecture, wanted.architecture);
  to.expect("model.layers", model.layers, wanted.layers);
  to.expect("model.hidden", model.hidden, wanted.hidden);
  to.expect("model.heads", model.heads, wanted.heads);
  to.expect("model.intermediate", model.intermediate_size(), wanted.intermediate_size());
  to.expect("the model's vocabulary", model.vocab_size, wanted.vocab_size);
}

double last_rate(const RunConfig& c) {
  const int64_t end = decay_end(c.optimizer, c.steps);
  return learning_rate(c.optimizer, c.steps, end == kNever ? c.steps : end + 1);
}

// --- bert

RunConfig bert_settings() {
  RunConfig config = default_settings("bert");
  config.model_size = "bert-large";
  config.optimizer.schedule = "linear", config.optimizer.warmup_steps = 0, config.optimizer.decay_from = 0;
  return config;
}

MlperfFields bert_keys(const RunConfig& c) {
  const OptimizerConfig& o = c.optimizer;
  const int64_t end = decay_end(o, c.steps);
  const int64_t warm = o.warmup_steps > 0 ? o.warmup_steps - o.warmup_from : 0;  // as the reference counts it
  return {{"opt_name", o.name},
          {"opt_base_learning_rate", o.lr},
          {"opt_end_learning_rate", last_rate(c)},
          {"opt_lamb_epsilon", o.eps},
          {"opt_lamb_beta_1", o.beta1},
          {"opt_lamb_beta_2", o.beta2},
          {"opt_lamb_weight_decay_rate", o.weight_decay},
          {"opt_learning_rate_training_steps", end == kNever ? c.steps : end},
          {"opt_learning_rate_warmup_steps", warm},
          {"num_warmup_steps", warm},
          {"start_warmup_step", warm > 0 ? o.warmup_from : 0},
          {"max_sequence_length", c.sequence_length}};
}

void bert_differences(Difference& to, const RunConfig& c, const TrainingWorkload& workload) {
  if (const auto* bert = dynamic_cast<const BertPretraining*>(&workload))
    compare_sizes(to, bert->model(), "bert-large");
  to.expect("model.dropout", c.dropout, 0.1);
  to.expect("data.sequence_length", c.sequence_length, 512);
  to.expect("sequences of data.validation", workload.units_of(DataSplit::kValidation), 10000);
  to.expect("optimizer.name", c.optimizer.name, "lamb");
  to.expect("optimizer.clip", c.optimizer.clip, 1.0);
  const bool linear =
      c.optimizer.schedule == "linear" || (c.optimizer.schedule == "polynomial" && c.optimizer.decay_power == 1);
  to.expect("optimizer.schedule", linear ? "linear" : c.optimizer.schedule, "linear");
  to.expect("the least learning rate", last_rate(c), 0.0);
  if (c.model_from.empty())
    to.all.emplace_back("model.from is not set (the reference's: checkpoint model.ckpt-28252 of phase 1)");
}

// --- gpt3

RunConfig gpt3_settings() {
  RunConfig config = default_settings("language");
  config.model_size = "gpt3-175b", config.sequence_length = 2048;
  config.optimizer.lr = 2e-5, config.optimizer.min_lr = 2e-6, config.optimizer.weight_decay = 0.1;
  return config;
}

MlperfFields gpt3_keys(const RunConfig& c) {
  const OptimizerConfig& o = c.optimizer;
  const int64_t end = decay_end(o, c.steps);
  return {{"opt_name", o.name == "adamw" ? "adam" : o.name},
          {"opt_base_learning_rate", o.lr},
          {"opt_end_learning_rate", last_rate(c)},
          {"opt_weight_decay", o.weight_decay},
          {"opt_gradient_clip_norm", o.clip},
          {"opt_adam_beta_1", o.beta1},
          {"opt_adam_beta_2", o.beta2},
          {"opt_adam_epsilon", o.eps},
          {"opt_learning_rate_warmup_steps", o.warmup_steps},
          {"opt_learning_rate_decay_steps", end == kNever ? c.steps : end},
          {"opt_learning_rate_decay_schedule",
           o.schedule == "cosine" ? "cosine with linear warmup" : o.schedule + " with linear warmup"},
          {"max_sequence_length", c.sequence_length},
          {"init_checkpoint_step", 0}};
}

void gpt3_differences(Difference& to, const RunConfig& c, const TrainingWorkload& workload) {
  if (const auto* language = dynamic_cast<const LanguageModel*>(&workload))
    compare_sizes(to, language->model(), "gpt3-175b");
  const int64_t batch = c.accumulation() * c.micro_batch;
  const auto steps_of = [&](int64_t at_1536) { return ceil_div(at_1536 * 1536, batch); };
  to.expect("model.dropout", c.dropout, 0.0);
  to.expect("optimizer.weight_decay", c.optimizer.weight_decay, 0.1);
  to.expect("optimizer.lr", c.optimizer.lr, batch < 4096 ? 2e-5 : 3e-5);
  to.expect("optimizer.min_lr", last_rate(c), 0.1 * c.optimizer.lr);
  to.expect("optimizer.warmup_steps", c.optimizer.warmup_steps, steps_of(265));
  to.expect("optimizer.decay_steps", decay_end(c.optimizer, c.steps), steps_of(108600));
  to.expect("tokens of data.validation", workload.units_of(DataSplit::kValidation), 11590004);
  to.expect("train.objective", c.objective, "next_token");
  to.all.push_back(
      fmt::format("the run begins at step 0 (the reference's: at step {} of its checkpoint, with the moments, which no "
                  "setting of this build loads)",
                  steps_of(4000)));
}

struct Row {
  const char* benchmark;
  const char* workload;
  RunConfig (*settings)();
  MlperfFields (*keys)(const RunConfig&);
  void (*differences)(Difference&, const RunConfig&, const TrainingWorkload&);
  const char* promises;
};
constexpr Row kRows[] = {
    {"bert", "bert", bert_settings, bert_keys, bert_differences,
     "data.train has the reference's examples of Wikipedia of 2020-01-01, data.validation its eval_10k, and model.from "
     "the weights of its checkpoint model.ckpt-28252"},
    {"gpt3", "language", gpt3_settings, gpt3_keys, gpt3_differences, "data.train and data.validation are those of C4"},
};

const Row& row_of(const std::string& benchmark) {
  for (const Row& row : kRows)
    if (benchmark == row.benchmark) return row;
  std::vector<std::string> all, trained;
  for (const MlperfBenchmark& known : mlperf_benchmarks()) all.emplace_back(known.name);
  for (const Row& row : kRows) trained.emplace_back(row.benchmark);
  check(find_mlperf_benchmark(benchmark) != nullptr, ErrorCode::kInvalidArgument,
        "{} is no benchmark of MLPerf Training 3.0 (they are {})", benchmark, fmt::join(all, ", "));
  fail(ErrorCode::kUnsupported, "benchmark {}: no workload of this build trains it; there are workloads for {}",
       benchmark, fmt::join(trained, " and "));
}

}  // namespace

RunConfig mlperf_settings(const std::string& benchmark) {
  RunConfig config = row_of(benchmark).settings();
  config.eval_interval = 0, config.checkpoint_interval = 0, config.checkpoint_best = false;
  return config;
}

int64_t mlperf_global_batch(const RunConfig& config, const TrainingWorkload& workload) {
  const int64_t rows = config.accumulation() * config.micro_batch;
  const auto* bert = dynamic_cast<const BertPretraining*>(&workload);
  if (bert == nullptr || bert->samples_per_epoch() == 0) return rows;
  const auto sequences = static_cast<double>(bert->units_of(DataSplit::kTraining));
  return std::max<int64_t>(
      1, std::llround(static_cast<double>(rows) * sequences / static_cast<double>(bert->samples_per_epoch())));
}

int64_t mlperf_eval_interval(const std::string& benchmark, int64_t global_batch) {
  if (benchmark == "gpt3") return ceil_div(kGpt3EvalSequences, global_batch);
  const double samples = std::floor(0.05 * (230.23 * static_cast<double>(global_batch) + 3e6) / 25000) * 25000;
  return std::max<int64_t>(1, std::llround(samples / static_cast<double>(global_batch)));
}

MlperfFields mlperf_keys(const std::string& benchmark, const RunConfig& config, const TrainingWorkload& workload) {
  const int64_t ranks = config.mesh()[Axis::kData];
  MlperfFields keys = {{"seed", config.seed},
                       {"global_batch_size", mlperf_global_batch(config, workload)},
                       {"gradient_accumulation_steps", ceil_div(config.accumulation(), ranks)},
                       {"train_samples", workload.units_of(DataSplit::kTraining)},
                       {"eval_samples", workload.units_of(DataSplit::kValidation)}};
  const MlperfFields own = row_of(benchmark).keys(config);
  keys.insert(keys.end(), own.begin(), own.end());
  return keys;
}

std::vector<std::string> closed_differences(const std::string& benchmark, const RunConfig& config,
                                            const TrainingWorkload& workload) {
  const MlperfBenchmark& known = *find_mlperf_benchmark(benchmark);
  std::vector<std::string> differences;
  Difference to{differences};
  row_of(benchmark).differences(to, config, workload);
  const int64_t batch = mlperf_global_batch(config, workload), interval = mlperf_eval_interval(benchmark, batch);
  to.expect("eval.interval", config.eval_interval, interval);
  to.expect("eval.tokens", config.eval_tokens, 0);
  to.expect("the target", config.eval_target, known.target);
  const MlperfFields keys = mlperf_keys(benchmark, config, workload);
  for (const MlperfKey& key : closed_keys(known)) {
    const auto found = std::ranges::find(keys, key.name, &MlperfFields::value_type::first);
    if (found != keys.end() && !obeys(key, found->second, batch))
      differences.push_back(fmt::format("{} is {} (the rules': {})", key.name, found->second.json(), key.rule));
  }
  return differences;
}

std::string closed_promises(const std::string& benchmark) { return row_of(benchmark).promises; }

}  // namespace octet
