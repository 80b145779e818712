#include "train/trainer.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "train/diagnose.h"
#include "train/run.h"
#include "train/schedule.h"
#include "train/signals.h"

namespace octet {

bool Run::stop_wanted() const { return SignalGuard::raised() || (hooks_.stop && hooks_.stop()); }

void Run::evaluate_now(int64_t step) {
  if (!validation_data_ || last_evaluated_ == step) return;
  auto started = std::chrono::steady_clock::now();
  bool stopped = false;
  LossSum loss = evaluate_dataset(*stepper_, validation_data_, config_.eval_tokens, config_.separate_documents,
                                  [&] { return stopped = stopped || stop_wanted(); });
  if (stopped) return log_info("evaluation left unfinished");
  last_evaluated_ = step;
  result_.last_eval_loss = loss.mean();
  const bool first = result_.run.best_step == 0;
  if (std::isfinite(loss.mean()) && (first || loss.mean() < result_.run.best_loss)) {
    result_.run.best_loss = loss.mean();
    result_.run.best_step = step;
  }
  log_->evaluation(step, loss.mean(), loss.tokens, seconds_since(started));
  const std::string best = result_.run.best_loss > 0 || result_.run.best_step > 0
                               ? fmt::format(", best {:.4f} at {}", result_.run.best_loss, result_.run.best_step)
                               : "";
  log_info("step {}: validation loss {:.4f}, perplexity {:.2f} ({} tokens, {:.1f} s){}", step, loss.mean(),
           std::exp(loss.mean()), loss.tokens, seconds_since(started), best);
}

void Run::save(int64_t step) {
  if (last_saved_ == step) return;
  CheckpointContent content = checkpoint_content(config_);
  content.model = model_;
  content.special = special_;
  content.run = result_.run;
  content.tokenizer_folder = tokenizer_folder_;
  const auto started = std::chrono::steady_clock::now();
  result_.checkpoint = write_checkpoint(config_.out, stepper_->executor(), content);
  last_saved_ = step;
  if (const double seconds = seconds_since(started); seconds > 1)
    log_info("step {}: {} written in {:.1f} s", step, result_.checkpoint, seconds);
  log_->event(step, "checkpoint", result_.checkpoint);
  // Weights that make nothing finite must not push out sound ones.
  if (skipped_in_a_row_ == 0) prune_checkpoints(config_.out, config_.checkpoint_keep, result_.run.best_step);
}

// Data that turns out to be damaged ends the run, not what it has learnt.
std::vector<HostBatch> Run::next_batches(Prefetcher& prefetcher, int64_t step) {
  try {
    return prefetcher.take(step, [&] { return stop_wanted(); });
  } catch (const Error&) {
    if (step > 1) save(step - 1);
    throw;
  }
}

// Where the numbers that are not finite came from, as far as can be told.
std::string Run::guilty(std::span<const HostBatch> micro_batches) {
  try {
    for (const HostBatch& batch : micro_batches) {
      const std::string value = first_non_finite_value(model_, options_, stepper_->executor(), batch);
      if (!value.empty()) return "in the forward pass, " + value;
    }
  } catch (const Error& error) {  // no memory for a second look
    log_debug("the forward pass was not looked at: {}", error.message());
  }
  const std::string gradient = last_non_finite_gradient(stepper_->executor());
  return gradient.empty() ? "in no parameter" : "in the backward pass, the gradient of " + gradient;
}

void Run::watch_finite(const StepResult& result, std::span<const HostBatch> micro_batches, int64_t step) {
  if (result.finite) {
    skipped_in_a_row_ = 0;
    return;
  }
  ++result_.run.skipped_steps;
  ++skipped_in_a_row_;
  log_->event(step, "skip", fmt::format("gradient norm {}", result.grad_norm));
  log_warning("step {}: gradients are not finite (norm {}), step skipped ({} in a row)", step, result.grad_norm,
              skipped_in_a_row_);
  if (skipped_in_a_row_ < config_.max_skipped_steps) return;
  const std::string where = guilty(micro_batches);
  log_->event(step, "stop", "numbers that are not finite, first " + where);
  const std::string before = result_.checkpoint.empty() ? resume_from_.value_or("") : result_.checkpoint;
  save(step);  // the weights are those of the last step that was taken
  const std::string sound =
      before.empty() ? "" : fmt::format("; resume={} goes on from the one before steps were skipped", before);
  fail(ErrorCode::kInvalidArgument,
       "{} steps in a row had non-finite gradients at step {}, first {}: lower optimizer.lr or choose a wider "
       "precision.recipe; the last checkpoint is {}{}",
       skipped_in_a_row_, step, where, result_.checkpoint, sound);
}

TrainResult Run::loop() {
  SignalGuard signals(hooks_.handle_signals);
  Progress progress({.title = "train", .unit = "step", .total = config_.steps, .start = result_.run.step});
  std::vector<double> speeds;
  Prefetcher prefetcher(*batches_, config_.accumulation(), result_.run.step + 1);
  if (result_.run.step == 0 && config_.eval_interval > 0) evaluate_now(0);
  while (result_.run.step < config_.steps) {
    int64_t step = result_.run.step + 1;
    if (timeline_) timeline_->step_begins(step);
    auto started = std::chrono::steady_clock::now();
    double lr = learning_rate(config_.optimizer, config_.steps, step);
    std::vector<HostBatch> micro_batches = next_batches(prefetcher, step);
    const double waited = seconds_since(started);
    result_.data_seconds += waited;
    StepResult done{.left = true};
    if (!micro_batches.empty())
      done = stepper_->step(micro_batches, lr, step, static_cast<uint64_t>(config_.seed), auto_ && auto_->due(step),
                            [&] { return stop_wanted(); });
    if (done.left) {
      log_info("step {} was left unfinished", step);
      result_.interrupted = true;
      break;
    }
    double seconds = seconds_since(started);
    result_.seconds += seconds;
    result_.run.step = step;
    result_.run.tokens += done.tokens;
    result_.last_loss = done.loss;
    speeds.push_back(static_cast<double>(done.tokens) / seconds);
    if (hooks_.on_step) hooks_.on_step(result_.run, done);
    watch_finite(done, micro_batches, step);
    if (!done.statistics.empty()) decide_precision(done, step);
    if (step % config_.log_interval == 0 || step == config_.steps)
      log_->step({.step = step,
                  .tokens = result_.run.tokens,
                  .loss = done.loss,
                  .grad_norm = done.grad_norm,
                  .lr = lr,
                  .seconds = seconds,
                  .tokens_per_second = speeds.back(),
                  .data_seconds = waited,
                  .finite = done.finite});
    progress.update(step, fmt::format("loss {:.4f}  {:.0f} tok/s", done.loss, speeds.back()));
    bool last = step == config_.steps;
    if (timeline_ && last) timeline_->finish();
    if (last || (config_.eval_interval > 0 && step % config_.eval_interval == 0)) evaluate_now(step);
    const bool stop = stop_wanted();
    bool due = config_.checkpoint_interval > 0 && step % config_.checkpoint_interval == 0;
    bool best = config_.checkpoint_best && result_.run.best_step == step;
    const bool sound = skipped_in_a_row_ == 0;  // else the next sound step's checkpoint will do
    if (last || ((due || best) && sound)) save(step);
    if (stop && !last) {
      result_.interrupted = true;
      break;
    }
  }
  if (result_.interrupted && result_.run.step > 0) save(result_.run.step);
  if (timeline_) timeline_->finish();
  progress.finish();
  report_now(/*last=*/true);
  if (!speeds.empty()) {
    std::nth_element(speeds.begin(), speeds.begin() + static_cast<ptrdiff_t>(speeds.size() / 2), speeds.end());
    result_.tokens_per_second = speeds[speeds.size() / 2];
  }
  return result_;
}

TrainResult train(const RunConfig& config, const TrainHooks& hooks) { return Run(config, hooks).loop(); }

LossSum evaluate_dataset(Stepper& stepper, std::shared_ptr<const TokenDataset> data, int64_t max_tokens,
                         bool separate_documents, const std::function<bool()>& stop) {
  const BatchShape& shape = stepper.eval_shape();
  int64_t length = shape.max_length, sequences = shape.tokens / length;
  TokenSampler sampler(std::move(data), {.length = length, .order = SampleOrder::kSequential});
  BatchPacker packer(sequences, length, separate_documents);
  LossSum total;
  TokenSample sample;
  int64_t count = sampler.samples_per_epoch();
  for (int64_t first = 0; first < count && (max_tokens == 0 || total.tokens < max_tokens); first += sequences) {
    if (stop && stop()) break;
    packer.clear();
    for (int64_t i = first; i < std::min(count, first + sequences); ++i) {
      sampler.get(i, sample);
      packer.add(sample.tokens, sample.segments);
    }
    LossSum part = stepper.evaluate(packer.finish());
    total.sum += part.sum;
    total.tokens += part.tokens;
  }
  return total;
}

}  // namespace octet
