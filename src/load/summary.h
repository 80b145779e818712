// What a drive amounts to: percentiles of latencies, rates, goodput, energy and cost; as text, JSON and a page.
#pragma once

#include <string>
#include <vector>

#include "load/driver.h"

namespace octet {

struct Spread {  // of a list of seconds or rates; zeros when it is empty
  double mean = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;
};
// Percentiles by linear interpolation between order statistics.
Spread spread_of(std::vector<double> values);

struct Objectives {                         // of a request that counts as good; 0 = any
  double first_token = 0, inter_token = 0;  // seconds: TTFT, and the mean of its gaps
};

struct LoadSummary {
  int64_t requests = 0, finished = 0, failed = 0;  // finished: kLength or kStop
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0, preemptions = 0, steps = 0;
  double seconds = 0;
  double output_rate = 0, total_rate = 0, request_rate = 0;  // tokens/s made, made and read, requests/s
  double goodput = 0, good_share = 0;                        // requests/s that met the objectives, their share
  Spread first_token, inter_token, end_to_end, request_output_rate;
  double joules_per_token = -1;         // output tokens; negative: energy not known
  double cost_per_million_tokens = -1;  // output tokens, of a given price per hour; negative: no price given
  double host_seconds_per_step = 0, step_seconds = 0, padding = 0;  // padding: share of padded tokens in all run
  std::string first_error;
};

LoadSummary summarize(const DriveResult& result, const Objectives& objectives, double price_per_hour);

std::string to_text(const LoadSummary& summary);
// `facts`: name and value of what was run (model, device, recipe, workload ...), kept beside the figures.
using Facts = std::vector<std::pair<std::string, std::string>>;
std::string to_json(const LoadSummary& summary, const Facts& facts);
// A page with the figures and plots: tokens/s over time, distributions of TTFT, ITL and end-to-end time.
std::string to_page(const LoadSummary& summary, const DriveResult& result, const Facts& facts);

}  // namespace octet
