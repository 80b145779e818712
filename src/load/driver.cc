// One thread submits, by time or by free places, and takes events of all open streams in turn.
#include "load/driver.h"

#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "load/energy.h"

namespace octet {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPause = std::chrono::microseconds(200);  // between rounds that found nothing: the resolution of times
constexpr double kProgressSeconds = 0.1;

struct Open {
  size_t index;
  GenerationStream stream;
};

class Drive {
 public:
  Drive(Engine& engine, const Workload& workload, const DriveOptions& options)
      : engine_(engine), workload_(workload), options_(options), start_(Clock::now()) {
    result_.records.resize(workload.requests.size());
    result_.before = engine.stats();
    prompts_.reserve(workload.requests.size());
    for (size_t i = 0; i < workload.requests.size(); ++i)
      prompts_.push_back(prompt_of(workload, i, engine.vocab_size(), options.seed));
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

  bool due() const {
    if (next_ >= prompts_.size()) return false;
    if (options_.concurrency > 0) return static_cast<int64_t>(open_.size()) < options_.concurrency;
    return workload_.requests[next_].arrival <= now();
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
      request.ignore_eos = true;
      request.timeout_seconds = options_.timeout_seconds;
      result_.records[i].submitted = now();
      open_.push_back({i, engine_.submit(std::move(request))});
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
        finished = record(open_[i].index, event);
      }
      if (!finished) {
        ++i;
        continue;
      }
      const RequestTimes times = open_[i].stream.times();
      RequestRecord& entry = result_.records[open_[i].index];
      entry.prompt_tokens = times.prompt_tokens;
      entry.cached_tokens = times.cached_tokens;
      entry.preemptions = times.preemptions;
      std::swap(open_[i], open_.back());
      open_.pop_back();
      ++done_;
    }
    return taken;
  }

  // Whether the request's only text is finished.
  bool record(size_t index, const GenerationEvent& event) {
    RequestRecord& entry = result_.records[index];
    const auto count = static_cast<int64_t>(event.ids.size());
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
    entry.finished = event.finished;
    entry.error = event.error;
    return true;
  }

  Engine& engine_;
  const Workload& workload_;
  const DriveOptions& options_;
  Clock::time_point start_;
  DriveResult result_;
  std::vector<std::vector<int32_t>> prompts_;
  std::vector<Open> open_;
  size_t next_ = 0;
  int64_t done_ = 0, tokens_ = 0;
};

}  // namespace

DriveResult drive(Engine& engine, const Workload& workload, const DriveOptions& options,
                  const DriveProgress& progress) {
  return Drive(engine, workload, options).run(progress);
}

}  // namespace octet
