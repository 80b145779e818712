// What a GPU did and when, kernel by kernel inside replayed graphs too, as NVIDIA's profiling library CUPTI reports it:
// by whatever executor of the process, on that GPU alone.
//
// Make it before the executor whose work it is to see: graphs instantiated earlier are seen as a whole at best.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace octet {

inline constexpr const char* kPeerCopy = "(peer copy)";  // between two GPUs

// A kernel, a copy or a fill.
struct DeviceActivity {
  std::string name;           // of a kernel: without its arguments
  double begin = 0, end = 0;  // seconds of the library's clock
};

class DeviceTimeline {
 public:
  virtual ~DeviceTimeline() = default;
  virtual void begin() = 0;                       // forgets what has been seen so far
  virtual std::vector<DeviceActivity> end() = 0;  // since begin(), in order of their beginnings
  virtual double now() = 0;                       // of the library's clock
};

// Why records of a CUPTI of version `found` cannot be read by structs of version `known` (CUPTI_API_VERSION: 130001 is
// patch 1 of CUDA 13.0); "" when they can: later minor versions append fields, patches change none.
std::string cupti_mismatch(uint32_t found, uint32_t known);

// Of one of the usable devices. Opens the library: throws kUnsupported where it is not found or this build cannot use
// it, with the way out.
std::unique_ptr<DeviceTimeline> make_device_timeline(int device = 0);

// Of activities in order of their beginnings.
struct DeviceUse {
  double span = 0;  // from the first beginning to the last end
  double busy = 0;  // of it, with at least one activity at work
  double idle() const { return span > 0 ? 1 - busy / span : 0; }
};
DeviceUse device_use(const std::vector<DeviceActivity>& activities);

// How long exchanges between GPUs were at work, and of it alone: with no kernel beside them.
struct DeviceExchanges {
  double busy = 0, alone = 0;  // seconds
};
DeviceExchanges device_exchanges(const std::vector<DeviceActivity>& activities);

// Time without any activity, between the ends of all before and the next beginning.
struct DeviceGap {
  double begin = 0, seconds = 0;
  size_t after = 0, before = 0;  // indices of the activity that ended last, and of the one that begins
};
// In order of time.
std::vector<DeviceGap> device_gaps(const std::vector<DeviceActivity>& activities);

// What a device timeline says: how long the device was idle, which kernels took the time inside replayed graphs, where
// it waited for the host, and a file for a trace viewer.

// `steps` repetitions of one piece of work; `top`: kernels listed.
std::string timeline_text(const std::vector<DeviceActivity>& activities, int64_t steps, int64_t top);
// The same of steps that began when `marks` say, gaps between them included: shares of busy and idle time, of it
// between steps, and the `top` largest gaps with what ran around them. `first_step` is the number of the first mark's.
std::string run_timeline_text(const std::vector<DeviceActivity>& activities, const std::vector<double>& marks,
                              int64_t first_step, int64_t top);
// Chrome's trace event format: chrome://tracing, ui.perfetto.dev.
std::string timeline_json(const std::vector<DeviceActivity>& activities);

}  // namespace octet
