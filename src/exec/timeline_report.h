// What a device timeline says: how long the device was idle, which kernels took the time inside replayed graphs, where
// it waited for the host, and a file for a trace viewer.
#pragma once

#include <string>

#include "exec/timeline.h"

namespace octet {

// `steps` repetitions of one piece of work; `top`: kernels listed.
std::string timeline_text(const std::vector<DeviceActivity>& activities, int64_t steps, int64_t top);
// The same of steps that began when `marks` say, gaps between them included: shares of busy and idle time, of it
// between steps, and the `top` largest gaps with what ran around them. `first_step` is the number of the first mark's.
std::string run_timeline_text(const std::vector<DeviceActivity>& activities, const std::vector<double>& marks,
                              int64_t first_step, int64_t top);
// Chrome's trace event format: chrome://tracing, ui.perfetto.dev.
std::string timeline_json(const std::vector<DeviceActivity>& activities);

}  // namespace octet
