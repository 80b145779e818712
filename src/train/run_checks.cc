// What settings of a run must be together, whatever the model.
#include <fmt/ranges.h>

#include <numeric>

#include "base/error.h"
#include "passes/pipeline_schedule.h"
#include "train/run_config.h"
#include "train/schedule.h"
#include "train/workload.h"

namespace octet {
namespace {

void validate_objective(const RunConfig& c) {
  if (c.objective != "dpo")
    return check(c.dpo == PreferenceSettings{}, ErrorCode::kInvalidArgument,
                 "dpo.* are set, but train.objective={}: set train.objective=dpo, or leave them out", c.objective);
  check(c.workload == "language", ErrorCode::kInvalidArgument,
        "train.objective=dpo is of language models, and workload={}: leave one of them out", c.workload);
  validate(c.dpo);
  check(!c.adapter.is_prompt(), ErrorCode::kUnsupported,
        "train.objective=dpo: adapter.method={} puts vectors in front of sequences, of which a row of pairs has two: "
        "use lora or dora",
        c.adapter.method);
  check(c.pipeline == 1, ErrorCode::kUnsupported,
        "train.objective=dpo: parallel.pipeline={}: the reference is not cut into stages: use parallel.data, "
        "parallel.shard or parallel.tensor",
        c.pipeline);
  check(c.balance_loss == 0 && c.z_loss == 0, ErrorCode::kUnsupported,
        "train.objective=dpo: model.balance_loss {} and model.z_loss {} are of next tokens: leave them at 0",
        c.balance_loss, c.z_loss);
}

}  // namespace

void validate(const RunConfig& c) {
  check(!c.out.empty(), ErrorCode::kInvalidArgument, "out is empty: name the folder of checkpoints and logs");
  bool resumable = c.resume == "auto" || c.resume == "never" || is_folder(c.resume);
  check(resumable, ErrorCode::kInvalidArgument, "resume = '{}': want auto, never or a checkpoint folder", c.resume);
  int64_t global = c.global_batch > 0 ? c.global_batch : c.micro_batch;
  check(global % c.micro_batch == 0, ErrorCode::kInvalidArgument,
        "train.global_batch {} is not a multiple of train.micro_batch {}", global, c.micro_batch);
  const int32_t data_ranks = c.mesh()[Axis::kData];
  check(global / c.micro_batch % data_ranks == 0, ErrorCode::kInvalidArgument,
        "train.global_batch {} is {} micro-batches of {}, which parallel.data={} ranks cannot share equally: want a "
        "multiple of {} sequences, or parallel.data among {}",
        global, global / c.micro_batch, c.micro_batch, data_ranks, c.micro_batch * data_ranks,
        fmt::join(divisors(global / c.micro_batch), ", "));
  schedule(c.chunks > 1 ? PipelineKind::kInterleaved : PipelineKind::k1F1B, static_cast<int32_t>(c.pipeline), 0,
           static_cast<int32_t>(c.chunks), static_cast<int32_t>(global / c.micro_batch / data_ranks));
  check(c.pipeline == 1 || c.recipe != "auto", ErrorCode::kUnsupported,
        "parallel.pipeline={}: precision.recipe=auto needs the graphs of the whole model: choose a recipe", c.pipeline);
  int64_t tokens = 0;
  check(!__builtin_mul_overflow(c.micro_batch, c.sequence_length, &tokens) && tokens < (int64_t{1} << 31),
        ErrorCode::kInvalidArgument, "train.micro_batch {} x data.sequence_length {} tokens do not fit int32",
        c.micro_batch, c.sequence_length);
  const int64_t parts = int64_t{c.mesh()[Axis::kContext]} * (c.sequence ? c.mesh()[Axis::kTensor] : 1);
  check(
      tokens % parts == 0, ErrorCode::kInvalidArgument,
      "train.micro_batch {} x data.sequence_length {} are {} tokens, which {} ranks (parallel.context, and "
      "parallel.tensor under parallel.sequence) cannot share equally: want a sequence length that is a multiple of {}",
      c.micro_batch, c.sequence_length, tokens, parts, parts / std::gcd(parts, c.micro_batch));
  check(c.policy.leave_db <= c.policy.return_db && c.policy.return_underflow <= c.policy.leave_underflow,
        ErrorCode::kInvalidArgument,
        "auto.min_snr_db {} above auto.return_snr_db {}, or auto.return_underflow {} above auto.max_underflow {}: "
        "GEMMs would switch back and forth",
        c.policy.leave_db, c.policy.return_db, c.policy.return_underflow, c.policy.leave_underflow);
  const bool has_tasks = !c.eval_tasks.empty();
  check(has_tasks || (c.eval_tasks_data.empty() && c.eval_tasks_limit == 0 && c.eval_tasks_shots == -1),
        ErrorCode::kInvalidArgument,
        "eval.tasks_data, eval.tasks_limit and eval.tasks_shots are of tasks, and eval.tasks "
        "names none");
  check(c.eval_target == 0 || !c.validation_data.empty(), ErrorCode::kInvalidArgument,
        "eval.target={} is of evaluations, of which there are none: set data.validation", c.eval_target);
  check(c.eval_patience == 0 || (c.eval_interval > 0 && !c.validation_data.empty()), ErrorCode::kInvalidArgument,
        "eval.patience={} counts evaluations, of which there are none: set {}", c.eval_patience,
        c.eval_interval > 0 ? "data.validation" : "eval.interval");
  validate(c.optimizer);
  validate(c.adapter);
  validate_objective(c);
}

}  // namespace octet
