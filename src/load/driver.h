// Puts a workload on an engine and records what every request got, as a client would see it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "load/workload.h"
#include "octet/engine.h"

namespace octet {

struct DriveOptions {
  int64_t concurrency = 0;  // > 0: so many requests at a time, the next when one ends; else by arrival times
  uint64_t seed = 1;        // of prompts and sampling
  SamplingOptions sampling = {.temperature = 0};
  double timeout_seconds = 0;   // of a request; 0 = none
  std::string pci_bus_id = "";  // of the GPU whose energy is measured; "" = none
};

struct RequestRecord {  // times in seconds after the start of the drive; negative: did not happen
  double submitted = -1, first_token = -1, last_token = -1;
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0, preemptions = 0;
  FinishReason finished = FinishReason::kNone;
  std::string error;
  std::vector<float> gaps;  // between tokens, the first excepted; tokens that came together share their gap
};

struct DriveResult {
  std::vector<RequestRecord> records;
  double seconds = 0;  // from the first submission to the last token
  double joules = -1;  // of the GPU meanwhile; negative: not known
  EngineStats before, after;
};

// Called about ten times a second with requests done and tokens made so far.
using DriveProgress = std::function<void(int64_t done, int64_t tokens)>;

DriveResult drive(Engine& engine, const Workload& workload, const DriveOptions& options,
                  const DriveProgress& progress = {});

}  // namespace octet
