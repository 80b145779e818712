// Decisions of recipe auto during a run, and the page that shows them.
#include <algorithm>
#include <new>

#include "base/error.h"
#include "base/log.h"
#include "train/report.h"
#include "train/run.h"

namespace octet {

// After a round of statistics: what the policy switches holds from the next step on.
void Run::decide_precision(const StepResult& result, int64_t step) {
  StatsTable statistics = result.statistics;
  if (config_.adapter.is_on()) auto_->add_frozen(statistics, config_.model_from, links_.ranks);
  log_->statistics(step, statistics);
  if (!result.finite) return;  // a skipped step: what is not finite has reached tensors of every layer
  const std::string before = auto_->policy().state();
  std::vector<Switch> made = auto_->policy().observe(step, statistics);
  if (!made.empty()) {
    try {
      plan_again(made, step);
    } catch (const Error& error) {  // the run keeps its plan, and tries again after the next round
      if (error.code() != ErrorCode::kOutOfMemory) throw;
      auto_->policy().restore(before, "the decisions before", step);
      log_->event(step, "replan", fmt::format("{} switches undone: {}", made.size(), error.message()));
      log_warning("step {}: {} precision switches undone: {}", step, made.size(), error.message());
    }
  }
  log_->levels(step, auto_->policy());
  result_.run.precision = auto_->policy().state();
  report_now(/*last=*/false);
}

// Moves the run to the plan of the policy's decisions. Throws kOutOfMemory with the stepper as it was.
void Run::plan_again(const std::vector<Switch>& made, int64_t step) {
  auto started = std::chrono::steady_clock::now();
  bool cached = false;
  const Plan& plan = auto_->plan(&cached);
  const Plan old = stepper_->plan();
  TrainingState state;
  try {
    state = take_state(stepper_->executor());
  } catch (const std::bad_alloc&) {
    fail(ErrorCode::kOutOfMemory, "the host's memory cannot hold the weights and moments while the plan changes");
  }
  stepper_.reset();  // its memory first: two executors need not fit side by side
  try {
    check(plan.target.memory_bytes == 0 || plan.total_bytes() <= plan.target.memory_bytes, ErrorCode::kOutOfMemory,
          "the new plan needs {} bytes, but {} has {}", plan.total_bytes(), plan.target.name, plan.target.memory_bytes);
    start_stepper(plan, state);
  } catch (const Error&) {
    start_stepper(old, state);
    throw;
  }
  result_.planned_bytes = std::max(result_.planned_bytes, plan.total_bytes());
  result_.allocated_bytes = std::max(result_.allocated_bytes, stepper_->executor().allocated_bytes());
  log_->switches(made);
  std::string cost = fmt::format("{} GEMMs switched, replanned in {:.0f} ms{}", made.size(),
                                 1e3 * seconds_since(started), cached ? " (plan known)" : "");
  log_->event(step, "replan", cost);
  constexpr size_t kShown = 6;
  for (size_t i = 0; i < std::min(kShown, made.size()); ++i)
    log_info("step {}: {} from {} to {}: {}", step, made[i].gemm, precision_level_name(made[i].from),
             precision_level_name(made[i].to), made[i].reason);
  if (made.size() > kShown) log_info("and {} more: {}/log.jsonl", made.size() - kShown, config_.out);
  log_info("step {}: {}\n{}", step, cost, precision_map(auto_->policy()));
}

// A frozen base is read again, in the forms that this plan holds it in.
void Run::start_stepper(const Plan& plan, const TrainingState& state) {
  stepper_ = std::make_unique<Stepper>(plan, options_);
  if (config_.adapter.is_on()) workload_->load(config_.model_from, stepper_->executor(), {});
  put_state(stepper_->executor(), state);
}

// The page grows with the run: it is skipped while writing it would take more than 1 % of the time.
void Run::report_now(bool last) {
  if (!auto_ || !is_first() || (!last && seconds_since(reported_) < 100 * report_seconds_)) return;
  auto started = std::chrono::steady_clock::now();
  write_report(config_.out);
  reported_ = std::chrono::steady_clock::now();
  report_seconds_ = seconds_since(started);
}

}  // namespace octet
