// How long a workload takes on an engine that is only planned: from bytes read and products made, before any weight is.
// At least so long: attention, sampling and the caches are not counted.
#pragma once

#include "load/workload.h"
#include "octet/engine.h"

namespace octet {

struct DeviceRates {
  double bytes_per_second = 0;  // of reading
  double flops_per_second = 0;  // of the recipe's products
};

struct LoadEstimate {
  int64_t texts = 0;        // decoded together
  double step_seconds = 0;  // of a token of each of them
  double seconds = 0;       // of the workload
};

// A step reads every weight once and multiplies every text's token with it, whichever is slower; prompts are products
// alone. `texts`: running at once at most, for which the cache must have room. The last request does not end before it
// arrives.
LoadEstimate estimate_load(const EnginePlan& plan, const DeviceRates& rates, const Workload& workload, int64_t texts);

}  // namespace octet
