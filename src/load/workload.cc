#include "load/workload.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"

namespace octet {
namespace {

constexpr int64_t kLargestTrace = int64_t{1} << 30;  // bytes
constexpr int32_t kFirstToken = 3;                   // lower ids are special tokens in many vocabularies

int64_t parse_count(std::string_view text, const std::string& where) {
  int64_t value = -1;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc{} && value >= 0, ErrorCode::kCorrupt, "{}: '{}' is not a count of tokens", where, text);
  return value;
}

// Seconds of "2023-11-16 18:15:46.6805900" since the start of the month; traces do not span months.
double parse_time(const std::string& text, const std::string& where) {
  int year = 0, month = 0, day = 0, hour = 0, minute = 0;
  double second = 0;
  check(std::sscanf(text.c_str(), "%d-%d-%d %d:%d:%lf", &year, &month, &day, &hour, &minute, &second) == 6,
        ErrorCode::kCorrupt, "{}: '{}' is not a time like 2023-11-16 18:15:46.68", where, text);
  return ((day * 24.0 + hour) * 60 + minute) * 60 + second;
}

LoadRequest azure_request(const std::string& line, const std::string& where) {
  const size_t first = line.find(','), second = line.find(',', first + 1);
  check(first != std::string::npos && second != std::string::npos, ErrorCode::kCorrupt,
        "{}: '{}' does not have three fields", where, line);
  size_t end = line.find_last_not_of("\r\n ") + 1;
  return {.arrival = parse_time(line.substr(0, first), where),
          .prompt_tokens = parse_count(std::string_view(line).substr(first + 1, second - first - 1), where),
          .output_tokens = parse_count(std::string_view(line).substr(second + 1, end - second - 1), where)};
}

LoadRequest mooncake_request(const std::string& line, const std::string& where) {
  const nlohmann::json json = parse_json(line, where);
  return {.arrival = json_get<double>(json, "timestamp", where) / 1000,
          .prompt_tokens = json_get<int64_t>(json, "input_length", where),
          .output_tokens = json_get<int64_t>(json, "output_length", where),
          .prefix_blocks = json_get<std::vector<int64_t>>(json, "hash_ids", where)};
}

int64_t sum_of(const std::vector<LoadRequest>& requests, int64_t LoadRequest::*field) {
  return std::accumulate(requests.begin(), requests.end(), int64_t{0},
                         [&](int64_t sum, const LoadRequest& request) { return sum + request.*field; });
}

int32_t token_from(uint32_t bits, int64_t vocab) {
  const auto choices = static_cast<uint32_t>(std::max<int64_t>(1, vocab - kFirstToken));
  return static_cast<int32_t>(bits % choices) + (vocab > kFirstToken ? kFirstToken : 0);
}

}  // namespace

int64_t Workload::prompt_tokens() const { return sum_of(requests, &LoadRequest::prompt_tokens); }
int64_t Workload::output_tokens() const { return sum_of(requests, &LoadRequest::output_tokens); }

Workload fixed_workload(int64_t requests, int64_t prompt_tokens, int64_t output_tokens) {
  Workload workload{.name = fmt::format("{} x {}/{}", requests, prompt_tokens, output_tokens), .requests = {}};
  workload.requests.resize(static_cast<size_t>(requests),
                           {.prompt_tokens = prompt_tokens, .output_tokens = output_tokens});
  return workload;
}

Workload read_trace(const std::string& path, int64_t limit) {
  std::istringstream lines(read_file(path, kLargestTrace));
  Workload workload{.name = path.substr(path.find_last_of('/') + 1), .requests = {}};
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    if (limit > 0 && static_cast<int64_t>(workload.requests.size()) >= limit) break;
    if (line.find_first_not_of(" \r\t") == std::string::npos || line.starts_with("TIMESTAMP")) continue;
    const std::string where = fmt::format("{}:{}", path, number);
    LoadRequest request = line.front() == '{' ? mooncake_request(line, where) : azure_request(line, where);
    check(request.prompt_tokens > 0 && request.output_tokens > 0, ErrorCode::kCorrupt,
          "{}: {} prompt and {} output tokens (both must be positive)", where, request.prompt_tokens,
          request.output_tokens);
    workload.requests.push_back(std::move(request));
  }
  check(!workload.requests.empty(), ErrorCode::kCorrupt,
        "{}: contains no requests (want an Azure CSV or Mooncake JSON lines)", path);
  std::stable_sort(workload.requests.begin(), workload.requests.end(),
                   [](const LoadRequest& a, const LoadRequest& b) { return a.arrival < b.arrival; });
  const double start = workload.requests.front().arrival;
  for (LoadRequest& request : workload.requests) request.arrival -= start;
  return workload;
}

void set_poisson_arrivals(Workload& workload, double rate, uint64_t seed) {
  Philox random(seed, 0xA881);
  double time = 0;
  for (LoadRequest& request : workload.requests) {
    request.arrival = time;
    if (rate > 0) time -= std::log(1 - random.uniform()) / rate;
  }
}

void scale_arrivals(Workload& workload, double factor) {
  for (LoadRequest& request : workload.requests) request.arrival /= factor;
}

void spread_lengths(Workload& workload, double ratio, uint64_t seed) {
  Philox random(seed, 0x1E57);
  for (LoadRequest& request : workload.requests)
    for (int64_t* length : {&request.prompt_tokens, &request.output_tokens}) {
      const double factor = 1 + ratio * (2 * random.uniform() - 1);
      *length = std::max<int64_t>(std::llround(static_cast<double>(*length) * factor), 1);
    }
}

int64_t drop_longer_than(Workload& workload, int64_t context) {
  return static_cast<int64_t>(std::erase_if(workload.requests, [&](const LoadRequest& request) {
    return request.prompt_tokens + request.output_tokens > context;
  }));
}

std::vector<int32_t> prompt_of(const Workload& workload, size_t index, int64_t vocab, uint64_t seed) {
  const LoadRequest& request = workload.requests[index];
  std::vector<int32_t> ids;
  ids.reserve(static_cast<size_t>(request.prompt_tokens));
  for (int64_t block : request.prefix_blocks) {  // random stream keyed by the block id only
    Philox random(seed ^ 0x9E3779B97F4A7C15ull, static_cast<uint64_t>(block));
    for (int64_t i = 0; i < kPrefixBlock && static_cast<int64_t>(ids.size()) < request.prompt_tokens; ++i)
      ids.push_back(token_from(random.next_u32(), vocab));
  }
  Philox random(seed, index);
  while (static_cast<int64_t>(ids.size()) < request.prompt_tokens) ids.push_back(token_from(random.next_u32(), vocab));
  return ids;
}

}  // namespace octet
