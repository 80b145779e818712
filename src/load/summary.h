// Summary of a benchmark: latency percentiles, throughput, goodput, energy and cost; as text, JSON and an HTML page.
#pragma once

#include <string>
#include <vector>

#include "load/driver.h"

namespace octet {

struct Spread {  // statistics of a list of seconds or rates; zeros if it is empty
  double mean = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;
};
// Percentiles by linear interpolation between order statistics.
Spread spread_of(std::vector<double> values);

struct Objectives {  // service level objectives for goodput, in seconds; 0 = none
  double first_token = 0, inter_token = 0, end_to_end = 0;  // TTFT, the request's mean ITL, its whole time
};

struct LoadSummary {
  int64_t requests = 0, finished = 0, failed = 0;  // finished: kLength or kStop
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0, preemptions = 0, steps = 0;
  double seconds = 0;
  double output_rate = 0, total_rate = 0, request_rate = 0;  // output tokens/s, output + prompt tokens/s, requests/s
  double goodput = 0, good_share = 0;  // requests/s that met the objectives; their fraction of all requests
  Spread first_token, inter_token, end_to_end, request_output_rate;
  Spread per_token;              // TPOT: of each request, its time behind the first token by the number of other tokens
  double joules_per_token = -1;  // per output token; negative: energy not known
  double cost_per_million_tokens = -1;  // output tokens, from a price per hour; negative: no price given
  double host_seconds_per_step = 0, step_seconds = 0, padding = 0;  // padding: fraction of computed tokens
  int64_t drafts = 0, drafted_tokens = 0, accepted_tokens = 0;      // of speculation
  std::vector<int64_t> accepted_at = {};                            // by the place of a token among those of a step
  std::string first_error;
};

LoadSummary summarize(const DriveResult& result, const Objectives& objectives, double price_per_hour);

std::string to_text(const LoadSummary& summary);
// `facts`: names and values that describe the run (model, device, recipe, workload ...), stored with the figures.
using Facts = std::vector<std::pair<std::string, std::string>>;
std::string to_json(const LoadSummary& summary, const Facts& facts);
// HTML page with the figures and plots: tokens/s over time, distributions of TTFT, ITL and end-to-end latency.
std::string to_page(const LoadSummary& summary, const DriveResult& result, const Facts& facts);

}  // namespace octet
