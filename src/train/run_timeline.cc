#include "train/run.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "exec/executor.h"
#include "exec/timeline.h"

namespace octet {
namespace {

constexpr int64_t kGapsShown = 10, kKernelsShown = 12;

}  // namespace

RunTimeline::RunTimeline(const RunConfig& config) : config_(config) {
  check(resolve_device(config.device) == Device::kCuda, ErrorCode::kInvalidArgument,
        "profile.timeline shows what a GPU does; this run is on the CPU: leave it out");
  device_ = make_device_timeline();
  // Fails before the first step if the path is not writable; an earlier trace is kept until the new one is written.
  const std::ofstream file(config_.profile_timeline, std::ios::app);
  check(file.good(), ErrorCode::kIo, "profile.timeline={} cannot be written: {}", config_.profile_timeline,
        std::strerror(errno));
}

void RunTimeline::step_begins(int64_t step) {
  if (device_ == nullptr || ++steps_ <= config_.profile_after) return;
  if (std::ssize(marks_) == config_.profile_steps) return finish();
  if (marks_.empty()) {
    first_step_ = step;
    device_->begin();
  }
  marks_.push_back(device_->now());
}

bool RunTimeline::at_border() const {
  if (device_ == nullptr) return false;
  return marks_.empty() ? steps_ == config_.profile_after : std::ssize(marks_) == config_.profile_steps;
}

void RunTimeline::finish() {
  if (device_ == nullptr) return;
  const std::unique_ptr<DeviceTimeline> device = std::move(device_);
  if (marks_.empty())
    return log_warning("profile.timeline: the run ended before step {} of this process, nothing was recorded",
                       config_.profile_after + 1);
  const std::vector<DeviceActivity> activities = device->end();
  write_file(config_.profile_timeline, timeline_json(activities));
  log_info("{}{}", run_timeline_text(activities, marks_, first_step_, kGapsShown),
           timeline_text(activities, std::ssize(marks_), kKernelsShown));
}

}  // namespace octet
