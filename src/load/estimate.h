// Estimates how long a workload takes from an engine's plan (bytes read, GEMM FLOPs), before weights are loaded. A
// lower bound: attention, sampling and cache traffic are not counted.
#pragma once

#include "load/workload.h"
#include "octet/engine.h"

namespace octet {

struct DeviceRates {
  double bytes_per_second = 0;  // memory read bandwidth
  double flops_per_second = 0;  // GEMMs in the recipe's precision
};

struct LoadEstimate {
  int64_t texts = 0;        // sequences decoded per step
  double step_seconds = 0;  // of one decode step
  double seconds = 0;       // for the whole workload
};

// A decode step takes the longer of reading every weight once and computing its GEMMs; prefill is compute bound.
// `texts`: maximum number of running sequences, reduced to what the cache holds. The estimate is at least the last
// arrival time.
LoadEstimate estimate_load(const EnginePlan& plan, const DeviceRates& rates, const Workload& workload, int64_t texts);

}  // namespace octet
