// One thread submits requests, by arrival time or concurrency, and polls the open streams in turn.
#include "load/driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/rng.h"

namespace octet {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPause = std::chrono::microseconds(200);  // between polls without events: the resolution of times
constexpr double kProgressSeconds = 0.1;

// Energy consumed by a GPU, read through NVML (libnvidia-ml.so.1, loaded at run time). The functions used are declared
// here because nvml.h is part of the CUDA toolkit.
class EnergyMeter {
 public:
  // "": no GPU.
  explicit EnergyMeter(const std::string& pci_bus_id) {
    void* library = pci_bus_id.empty() ? nullptr : dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    const auto init = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
    const auto handle_of =
        reinterpret_cast<int (*)(const char*, void**)>(dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2"));
    total_energy_ = reinterpret_cast<decltype(total_energy_)>(dlsym(library, "nvmlDeviceGetTotalEnergyConsumption"));
    const bool complete = init != nullptr && handle_of != nullptr && total_energy_ != nullptr;
    if (!complete || init() != 0 || handle_of(pci_bus_id.c_str(), &device_) != 0) device_ = nullptr;
    start_ = millijoules();
  }
  // Since construction; negative: not supported.
  double joules() const {
    const double end = millijoules();
    return start_ < 0 || end < 0 ? -1 : (end - start_) / 1000;
  }

 private:
  // Since the driver was loaded; negative: not known.
  double millijoules() const {
    unsigned long long energy = 0;
    if (device_ == nullptr || total_energy_(device_, &energy) != 0) return -1;
    return static_cast<double>(energy);
  }

  int (*total_energy_)(void* device, unsigned long long* millijoules) = nullptr;
  void* device_ = nullptr;
  double start_ = -1;
};

struct Open {
  size_t index;
  GenerationStream stream;
  int64_t texts = 1;  // that have not finished
};

struct Batch {
  size_t begin = 0, end = 0;                     // requests of the workload
  int64_t prompt_tokens = 0, output_tokens = 0;  // the longest prompt and the longest output
};

class Drive {
 public:
  Drive(Engine& engine, const Workload& workload, const DriveOptions& options)
      : engine_(engine), workload_(workload), options_(options), start_(Clock::now()) {
    check(texts_ == 1 || options.batching == Batching::kInFlight, ErrorCode::kInvalidArgument,
          "{} completions of a request in static batches: want one, or in-flight batching", texts_);
    result_.records.resize(workload.requests.size());
    result_.before = engine.stats();
    prompts_.reserve(workload.requests.size());
    for (size_t i = 0; i < workload.requests.size(); ++i)
      prompts_.push_back(prompt_of(workload, i, engine.vocab_size(), options.seed));
    if (!options.adapters.empty()) adapters_ = adapters_of(options, prompts_.size());
    start_ = Clock::now();
  }

  DriveResult run(const DriveProgress& progress) {
    const EnergyMeter meter(options_.pci_bus_id);
    double reported = 0;
    while (next_ < prompts_.size() || !open_.empty()) {
      bool moved = submit_due();
      moved |= take_events();
      if (progress && now() - reported > kProgressSeconds) {
        reported = now();
        progress(done_, tokens_);
      }
      if (!moved) std::this_thread::sleep_for(kPause);
    }
    if (progress) progress(done_, tokens_);
    result_.joules = meter.joules();
    for (const RequestRecord& record : result_.records) result_.seconds = std::max(result_.seconds, record.last_token);
    result_.after = engine_.stats();
    return std::move(result_);
  }

 private:
  double now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  bool arrived(size_t i) const { return options_.concurrency > 0 || workload_.requests[i].arrival <= now(); }

  bool due() {
    if (next_ >= prompts_.size()) return false;
    if (options_.batching != Batching::kInFlight) {
      if (open_.empty() && next_ == batch_.end) batch_ = next_batch();
      return next_ < batch_.end;
    }
    if (options_.concurrency > 0) return static_cast<int64_t>(open_.size()) < options_.concurrency;
    return arrived(next_);
  }

  // The next batch: as many requests that have arrived as fit max_sequences and the cache together, at least one.
  Batch next_batch() const {
    Batch batch{.begin = next_, .end = next_};
    int64_t most = engine_.options().max_sequences, tokens = 0;
    if (options_.concurrency > 0) most = std::min(most, options_.concurrency);
    const bool padded = options_.batching == Batching::kPaddedStatic;
    for (size_t i = next_; i < prompts_.size() && arrived(i); ++i) {
      const LoadRequest& request = workload_.requests[i];
      const int64_t count = static_cast<int64_t>(i - next_) + 1;
      const int64_t prompt = std::max(batch.prompt_tokens, request.prompt_tokens);
      const int64_t output = std::max(batch.output_tokens, request.output_tokens);
      tokens = padded ? count * (prompt + output) : tokens + request.prompt_tokens + request.output_tokens;
      const bool fits = (options_.kv_tokens == 0 || tokens <= options_.kv_tokens) &&
                        (!padded || prompt + output <= engine_.context());
      if (count > most || (count > 1 && !fits)) break;
      batch = {.begin = next_, .end = i + 1, .prompt_tokens = prompt, .output_tokens = output};
    }
    return batch;
  }

  bool submit_due() {
    bool submitted = false;
    for (; due(); submitted = true) {
      const size_t i = next_++;
      GenerationRequest request;
      request.prompt_ids = std::move(prompts_[i]);
      request.sampling = options_.sampling;
      request.sampling.seed = options_.seed + i;
      request.max_tokens = workload_.requests[i].output_tokens;
      if (options_.batching == Batching::kPaddedStatic) {
        request.prompt_ids.resize(static_cast<size_t>(batch_.prompt_tokens), request.prompt_ids.back());
        request.max_tokens = batch_.output_tokens;
      }
      request.ignore_eos = true;
      request.n = texts_;
      request.beams = options_.beams;
      request.timeout_seconds = options_.timeout_seconds;
      if (!options_.adapters.empty()) request.adapter = options_.adapters[adapters_[i]];
      result_.records[i].submitted = now();
      open_.push_back({i, engine_.submit(std::move(request)), texts_});
    }
    return submitted;
  }

  bool take_events() {
    bool taken = false;
    for (size_t i = 0; i < open_.size();) {
      GenerationEvent event;
      bool finished = false;
      while (!finished && open_[i].stream.try_next(event)) {
        taken = true;
        finished =
            record(open_[i].index, event) && (event.finished >= FinishReason::kCancelled || --open_[i].texts == 0);
      }
      if (!finished) {
        ++i;
        continue;
      }
      const RequestTimes times = open_[i].stream.times();
      RequestRecord& entry = result_.records[open_[i].index];
      entry.prompt_tokens = std::min(times.prompt_tokens, workload_.requests[open_[i].index].prompt_tokens);
      result_.padded_tokens += times.prompt_tokens - entry.prompt_tokens + times.generated_tokens - entry.output_tokens;
      entry.cached_tokens = times.cached_tokens;
      entry.preemptions = times.preemptions;
      std::swap(open_[i], open_.back());
      open_.pop_back();
      ++done_;
    }
    return taken;
  }

  // Returns whether the text has finished. Tokens that pad a batch are not recorded.
  bool record(size_t index, const GenerationEvent& event) {
    RequestRecord& entry = result_.records[index];
    const int64_t count =
        std::min(std::ssize(event.ids), texts_ * workload_.requests[index].output_tokens - entry.output_tokens);
    if (count > 0) {
      const double time = now();
      const bool first = entry.first_token < 0;
      if (first) entry.first_token = time;
      const int64_t gaps = first ? count - 1 : count;
      const double since = first ? 0 : time - entry.last_token;
      for (int64_t i = 0; i < gaps; ++i) entry.gaps.push_back(static_cast<float>(since / static_cast<double>(gaps)));
      entry.last_token = time;
      entry.output_tokens += count;
      tokens_ += count;
    }
    if (event.finished == FinishReason::kNone) return false;
    entry.finished = std::max(entry.finished, event.finished);  // the worst of them
    if (entry.error.empty()) entry.error = event.error;
    return true;
  }

  Engine& engine_;
  const Workload& workload_;
  const DriveOptions& options_;
  const int64_t texts_ = std::max(options_.samples, options_.beams);  // of a request
  Clock::time_point start_;
  DriveResult result_;
  std::vector<std::vector<int32_t>> prompts_;
  std::vector<size_t> adapters_;  // of requests, where there are some
  std::vector<Open> open_;
  Batch batch_;
  size_t next_ = 0;
  int64_t done_ = 0, tokens_ = 0;
};

}  // namespace

std::vector<size_t> adapters_of(const DriveOptions& options, size_t requests) {
  const size_t count = options.adapters.size();
  std::vector<double> until;  // sums of the chances
  for (size_t k = 1; k <= count; ++k)
    until.push_back((until.empty() ? 0 : until.back()) + std::pow(static_cast<double>(k), -options.adapter_zipf));
  Philox random(options.seed, /*stream=*/0xada9);
  std::vector<size_t> chosen;
  for (size_t i = 0; i < requests; ++i) {
    const auto drawn = std::ranges::upper_bound(until, random.uniform() * until.back());
    chosen.push_back(options.adapter_zipf > 0 ? std::min<size_t>(drawn - until.begin(), count - 1) : i % count);
  }
  return chosen;
}

DriveResult drive(Engine& engine, const Workload& workload, const DriveOptions& options,
                  const DriveProgress& progress) {
  return Drive(engine, workload, options).run(progress);
}

LoadEstimate estimate_load(const EnginePlan& plan, const DeviceRates& rates, const Workload& workload, int64_t texts) {
  const auto requests = static_cast<int64_t>(workload.requests.size());
  const int64_t prompt = workload.prompt_tokens(), output = workload.output_tokens();
  if (requests == 0) return {};
  const int64_t length = std::max<int64_t>((prompt + output) / requests, 1);
  LoadEstimate estimate;
  estimate.texts = std::max<int64_t>(std::min({texts, requests, plan.kv_tokens / length}), 1);
  const double token_product_seconds = 2 * static_cast<double>(plan.matrix_elements) / rates.flops_per_second;
  estimate.step_seconds = std::max(static_cast<double>(plan.weight_bytes) / rates.bytes_per_second,
                                   static_cast<double>(estimate.texts) * token_product_seconds);
  const double steps = std::ceil(static_cast<double>(output) / static_cast<double>(estimate.texts));
  estimate.seconds = std::max(steps * estimate.step_seconds + static_cast<double>(prompt) * token_product_seconds,
                              workload.requests.back().arrival);
  return estimate;
}

}  // namespace octet
