// A device timeline over some steps of a run as it is: batches, logs and read-backs included (profile.timeline).
#pragma once

#include <memory>
#include <vector>

#include "exec/timeline.h"
#include "train/run_config.h"

namespace octet {

class RunTimeline {
 public:
  // Before the executor is made. Throws kInvalidArgument for a run on the CPU, kUnsupported where the library is
  // missing.
  explicit RunTimeline(const RunConfig& config);
  // Called when the host begins the step. If the device was ahead, the boundary between two steps lies just before, and
  // idle time there is counted within steps.
  void step_begins(int64_t step);
  // Whether recording begins or ends with the next step_begins().
  bool at_border() const;
  // Writes the trace and logs its summary, once; also when the run made fewer steps.
  void finish();

 private:
  const RunConfig& config_;
  std::unique_ptr<DeviceTimeline> device_;  // null: finished
  int64_t steps_ = 0, first_step_ = 0;      // begun in this process; the first of the timeline
  std::vector<double> marks_;               // when its steps began
};

}  // namespace octet
