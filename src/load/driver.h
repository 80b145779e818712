// Runs a workload on an engine and records the latencies of every request as a client sees them; and estimates
// how long one takes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "load/workload.h"
#include "octet/engine.h"

namespace octet {

// Static batching, for comparison: a batch is formed of the requests that have arrived, up to the engine's
// max_sequences and `kv_tokens`, and the next one is submitted when the last request of this one has ended.
enum class Batching : uint8_t {
  kInFlight,      // requests join and leave the running batch between steps
  kStatic,        // requests keep their own lengths
  kPaddedStatic,  // prompts and outputs are padded to the longest of the batch
};

struct DriveOptions {
  Batching batching = Batching::kInFlight;
  int64_t kv_tokens = 0;  // static batching: capacity of the KV cache (EnginePlan::kv_tokens); 0 = no limit
  int64_t concurrency =
      0;              // > 0: number of requests in flight, the next is submitted when one ends; 0: by arrival time
  uint64_t seed = 1;  // of prompt tokens and sampling
  SamplingOptions sampling = {.temperature = 0};
  int64_t samples = 1;  // texts of a request, whose tokens count together; more than one only in flight
  int64_t beams = 0;    // > 0: they are the texts of a beam search of this width instead
  std::vector<std::string> adapters = {};  // of requests in turn; empty: none
  double adapter_zipf = 0;                 // > 0: drawn by Zipf's law, the k-th in proportion to 1 / k^adapter_zipf
  double timeout_seconds = 0;              // per request; 0 = none
  std::string pci_bus_id = "";             // GPU whose energy is measured; "" = none
};

struct RequestRecord {  // times in seconds since the start; negative: did not happen
  double submitted = -1, first_token = -1, last_token = -1;
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0, preemptions = 0;
  FinishReason finished = FinishReason::kNone;
  std::string error;
  std::vector<float> gaps;  // inter-token times; tokens of one event share its gap equally
};

struct DriveResult {
  std::vector<RequestRecord> records;
  double seconds = 0;         // from the first submission to the last token
  double joules = -1;         // GPU energy; negative: not known
  int64_t padded_tokens = 0;  // Batching::kPaddedStatic: prompt and output tokens that pad a batch
  EngineStats before, after;
};

// Called about ten times a second with the requests finished and tokens generated so far.
using DriveProgress = std::function<void(int64_t done, int64_t tokens)>;

// The adapter of each of so many requests, as an index of options.adapters, which are not empty.
std::vector<size_t> adapters_of(const DriveOptions& options, size_t requests);

DriveResult drive(Engine& engine, const Workload& workload, const DriveOptions& options,
                  const DriveProgress& progress = {});

struct DeviceRates {
  double bytes_per_second = 0;  // memory read bandwidth
  double flops_per_second = 0;  // GEMMs in the recipe's precision
};

struct LoadEstimate {
  int64_t texts = 0;        // sequences decoded per step
  double step_seconds = 0;  // of one decode step
  double seconds = 0;       // for the whole workload
};

// Estimates how long a workload takes from an engine's plan (bytes read, GEMM FLOPs), before weights are loaded. A
// lower bound: attention, sampling and cache traffic are not counted.
// A decode step takes the longer of reading every weight once and computing its GEMMs; prefill is compute bound.
// `texts`: maximum number of running sequences, reduced to what the cache holds. The estimate is at least the last
// arrival time.
LoadEstimate estimate_load(const EnginePlan& plan, const DeviceRates& rates, const Workload& workload, int64_t texts);

}  // namespace octet
