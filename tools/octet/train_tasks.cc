#include "octet/train_tasks.h"

#include "base/error.h"
#include "base/log.h"
#include "io/tokenizer.h"
#include "tasks/task_evaluation.h"

namespace octet {
namespace {

class TrainingTasks final : public TaskEvaluation {
 public:
  TrainingTasks(const RunConfig& config, const TaskPlace& place)
      : selection_(select_tasks(config.eval_tasks, config.eval_tasks_data)),
        tokenizer_(load_tokenizer(place.tokenizer)),
        length_(place.length) {
    for (const TaskConfig& task : selection_.tasks)
      check(
          task.output != TaskOutput::kGenerate, ErrorCode::kUnsupported,
          "eval.tasks: {} is of output_type {}, and only log-likelihoods are computed in training (want {}, {} or {}; "
          "octet eval RUN --tasks {} runs it on a checkpoint)",
          task.name, task_output_name(task.output), task_output_name(TaskOutput::kMultipleChoice),
          task_output_name(TaskOutput::kLoglikelihood), task_output_name(TaskOutput::kRolling), task.name);
    // No errors: a progress line has none, and bootstrapping takes longer than small tasks.
    TaskRunOptions how{.limit = config.eval_tasks_limit, .draws = 0, .samples = false};
    if (config.eval_tasks_shots >= 0) how.shots = config.eval_tasks_shots;
    runner_.emplace(selection_, how);
    // What cannot be asked, such as a continuation longer than a row, ends the run before its first step.
    TrainingTasks::run(
        [](const std::vector<ScoredSequence>& texts) { return std::vector<SequenceScore>(texts.size()); });
    if (place.first)
      log_info("eval.tasks: {} tasks, {} texts at each evaluation, of at most {} tokens", selection_.tasks.size(),
               runner_->requests(), length_);
  }

  std::vector<Value> run(const ScoreSequences& score) override {
    const auto score_tokens = [&](std::vector<ScoredTokens> texts) {
      std::vector<ScoredSequence> sequences;
      sequences.reserve(texts.size());
      for (ScoredTokens& text : texts) sequences.push_back({.ids = std::move(text.ids), .from = text.from});
      std::vector<Likelihood> likelihoods;
      for (const SequenceScore& one : score(sequences)) likelihoods.push_back({.sum = one.sum, .greedy = one.greedy});
      return likelihoods;
    };
    ModelCalls calls(score_tokens, *tokenizer_, length_);
    const TaskRun run = runner_->run(calls);
    std::vector<Value> values;
    for (const auto& [task, results] : run.results.items())
      for (const auto& [key, value] : results.items()) {
        const size_t comma = key.find(',');
        if (comma == std::string::npos || key.substr(0, comma).ends_with("_stderr") || !value.is_number()) continue;
        const std::string filter = key.substr(comma + 1);
        values.push_back({.name = task + "/" + key.substr(0, comma) + (filter == "none" ? "" : "." + filter),
                          .value = value.get<double>()});
      }
    return values;
  }

 private:
  TaskSelection selection_;
  std::unique_ptr<Tokenizer> tokenizer_;
  int64_t length_;
  std::optional<TaskRunner> runner_;
};

}  // namespace

std::unique_ptr<TaskEvaluation> open_training_tasks(const RunConfig& config, const TaskPlace& place) {
  return std::make_unique<TrainingTasks>(config, place);
}

}  // namespace octet
