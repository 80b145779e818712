// What --timeline of a benchmark says: how long the device was idle, which kernels took the time inside replayed
// graphs, and a file for a trace viewer.
#pragma once

#include <string>

#include "exec/timeline.h"

namespace octet {

// `steps` repetitions of one piece of work; `top`: kernels listed.
std::string timeline_text(const std::vector<DeviceActivity>& activities, int64_t steps, int64_t top);
// Chrome's trace event format: chrome://tracing, ui.perfetto.dev.
std::string timeline_json(const std::vector<DeviceActivity>& activities);

}  // namespace octet
