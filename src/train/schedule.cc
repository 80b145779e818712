#include "train/schedule.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace octet {
namespace {

// The steps of the decay, from `begin` before `end`, of which `step` is one.
struct Decay {
  const OptimizerConfig& config;
  double least;
  int64_t step, begin, end;

  double progress() const {
    return static_cast<double>(step - begin) / static_cast<double>(std::max<int64_t>(1, end - begin));
  }
};

struct ScheduleRow {
  const char* name;
  bool ends;        // at decay_steps, at the least rate
  bool least_6e_5;  // what kDefaultMinLr stands for; else 0
  double (*rate)(const Decay& decay);
};

int64_t parse_decay_step(const std::string& text) {
  int64_t step = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  check(error == std::errc() && stop == text.data() + text.size() && step > 0, ErrorCode::kInvalidArgument,
        "optimizer.decay_at: '{}' (want steps, as in 3000,6000)", text);
  return step;
}

double polynomial(const Decay& d, double power) {
  return d.least + std::pow(1 - d.progress(), power) * (d.config.lr - d.least);
}

// decayed `times` times, no lower than the least rate
double geometric(const Decay& d, int64_t times) {
  return std::max(d.least, d.config.lr * std::pow(d.config.decay_factor, static_cast<double>(times)));
}

constexpr ScheduleRow kSchedules[] = {
    {"cosine", true, true,
     [](const Decay& d) {
       return d.least + 0.5 * (1 + std::cos(std::numbers::pi * d.progress())) * (d.config.lr - d.least);
     }},
    {"constant", false, false, [](const Decay& d) { return d.config.lr; }},
    {"linear", true, false, [](const Decay& d) { return polynomial(d, 1); }},
    {"polynomial", true, false, [](const Decay& d) { return polynomial(d, d.config.decay_power); }},
    {"steps", false, false,
     [](const Decay& d) {
       return geometric(d, std::ranges::count_if(d.config.decay_at, [&](const std::string& text) {
                          return parse_decay_step(text) <= d.step;
                        }));
     }},
    {"exponential", false, false,
     [](const Decay& d) { return geometric(d, (d.step - d.begin) / std::max<int64_t>(1, d.config.decay_every)); }},
};

const ScheduleRow& schedule_row(const OptimizerConfig& config) {
  for (const ScheduleRow& row : kSchedules)
    if (config.schedule == row.name) return row;
  fail(ErrorCode::kInvalidArgument, "optimizer.schedule is '{}' (want {})", config.schedule,
       fmt::join(schedule_names(), ", "));
}

double least_of(const ScheduleRow& row, const OptimizerConfig& c) {
  if (c.min_lr != kDefaultMinLr) return c.min_lr;
  return row.least_6e_5 ? std::min(6e-5, c.lr) : 0;
}

int64_t decay_origin(const OptimizerConfig& c) { return c.decay_from == kWarmupEnd ? c.warmup_steps : c.decay_from; }

}  // namespace

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const ScheduleRow& row : kSchedules) names.emplace_back(row.name);
  return names;
}

void validate_schedule(const OptimizerConfig& c) {
  const ScheduleRow& row = schedule_row(c);
  check(c.min_lr >= 0 || c.min_lr == kDefaultMinLr, ErrorCode::kInvalidArgument,
        "optimizer.min_lr {}: want 0 or more, or {} for 6e-5 or optimizer.lr, whichever is less", c.min_lr,
        kDefaultMinLr);
  check(c.min_lr <= c.lr, ErrorCode::kInvalidArgument, "optimizer.min_lr {} exceeds optimizer.lr {}", c.min_lr, c.lr);
  for (const std::string& text : c.decay_at) parse_decay_step(text);
  const bool steps = c.schedule == "steps", exponential = c.schedule == "exponential";
  check(!steps || !c.decay_at.empty(), ErrorCode::kInvalidArgument,
        "optimizer.schedule=steps needs optimizer.decay_at, as in 3000,6000");
  check(steps || c.decay_at.empty(), ErrorCode::kInvalidArgument,
        "optimizer.decay_at is of optimizer.schedule=steps; the schedule is {}", c.schedule);
  check(exponential || c.decay_every == 0, ErrorCode::kInvalidArgument,
        "optimizer.decay_every={} is of optimizer.schedule=exponential; the schedule is {}", c.decay_every, c.schedule);
  check(c.decay_power == 1 || c.schedule == "polynomial", ErrorCode::kInvalidArgument,
        "optimizer.decay_power={} is of optimizer.schedule=polynomial; the schedule is {}", c.decay_power, c.schedule);
  check(c.decay_from == kWarmupEnd || row.ends || exponential, ErrorCode::kInvalidArgument,
        "optimizer.decay_from={}: optimizer.schedule={} has no beginning of a decay", c.decay_from, c.schedule);
  check(c.decay_steps == 0 || row.ends, ErrorCode::kInvalidArgument,
        "optimizer.decay_steps={}: optimizer.schedule={} has no end of a decay", c.decay_steps, c.schedule);
}

int64_t decay_begin(const OptimizerConfig& c) { return std::max(c.warmup_steps, decay_origin(c)); }

int64_t decay_end(const OptimizerConfig& c, int64_t total_steps) {
  if (!schedule_row(c).ends) return kNever;
  return c.decay_steps > 0 ? c.decay_steps : total_steps;
}

double learning_rate(const OptimizerConfig& c, int64_t total_steps, int64_t step) {
  const int64_t iteration = step - 1, end = decay_end(c, total_steps), begin = decay_origin(c);
  const ScheduleRow& row = schedule_row(c);
  if (iteration < c.warmup_steps)
    return c.lr * static_cast<double>(iteration - c.warmup_from) / static_cast<double>(c.warmup_steps - c.warmup_from);
  const double least = least_of(row, c);
  if (iteration >= end) return least;
  return iteration < begin ? c.lr : row.rate({c, least, iteration, begin, end});
}

}  // namespace octet
