// Host time of one engine step in the scheduler: schedule() plus commit(), one step ahead of a fake device that
// costs nothing. Arguments: running sequences, cache groups.
#include <benchmark/benchmark.h>

#include "base/rng.h"
#include "infer/scheduler.h"

namespace octet {
namespace {

class Loop {
 public:
  Loop(int64_t sequences, int64_t groups, int64_t output)
      : blocks_({.groups = cache_groups(groups), .block_size = 16}),
        scheduler_({.policy = SchedulingPolicy::kMaxUtilization,
                    .context_length = 1 << 20,
                    .max_sequences = sequences,
                    .token_budget = 8192,
                    .max_queue = 1 << 20},
                   blocks_),
        output_(output) {
    results_.reserve(static_cast<size_t>(sequences));
    for (int64_t i = 0; i < sequences; ++i) submit(i);
    while (scheduler_.stats().waiting > 0) step();
    for (int i = 0; i < 4; ++i) step();
  }

  void step() {
    const StepPlan& plan = scheduler_.schedule(now_ += 1);
    if (!plan.empty()) launched_[plan.step % 2] = &plan;
    const int64_t due = plan.step - 1;
    if (due >= 1) {
      results_.clear();
      for (const ScheduledSequence& s : launched_[due % 2]->sequences)
        if (s.samples) results_.push_back({s.id, static_cast<int32_t>(due % 50'000)});
      scheduler_.commit(due, results_);
    }
    for ([[maybe_unused]] const FinishedSequence& f : scheduler_.take_finished()) submit(++submitted_);
  }

  const SchedulerStats& stats() const { return scheduler_.stats(); }

 private:
  static std::vector<CacheGroup> cache_groups(int64_t count) {
    std::vector<CacheGroup> groups(static_cast<size_t>(count), CacheGroup{.blocks = 1 << 19});
    if (count > 1) groups[1].window = 512;
    return groups;
  }

  // A shared prefix of 256 tokens, then 256 of its own; outputs differ in length so that they do not end together.
  void submit(int64_t seed) {
    SequenceParams params{.prompt = std::vector<int32_t>(512, 7)};
    Philox random(static_cast<uint64_t>(seed));
    for (size_t i = 256; i < 512; ++i) params.prompt[i] = static_cast<int32_t>(random.below(50'000));
    params.max_tokens = output_ + static_cast<int64_t>(random.below(static_cast<uint64_t>(output_)));
    scheduler_.submit(std::move(params), now_);
  }

  BlockManager blocks_;
  Scheduler scheduler_;
  int64_t output_, submitted_ = 1'000'000;
  double now_ = 0;
  const StepPlan* launched_[2] = {};
  std::vector<SampledToken> results_;
};

// Decodes only.
void BM_decode_step(benchmark::State& state) {
  Loop loop(state.range(0), state.range(1), 1 << 18);
  for (auto _ : state) loop.step();
  state.counters["running"] = static_cast<double>(loop.stats().running);
}
BENCHMARK(BM_decode_step)->ArgsProduct({{1, 64, 512, 2048}, {1, 2}})->Unit(benchmark::kMicrosecond)->Iterations(2000);

// Sequences end after 128 to 255 output tokens and new ones arrive with a prefix hit of half their prompt; submission
// is timed too.
void BM_in_flight_step(benchmark::State& state) {
  Loop loop(state.range(0), state.range(1), 128);
  for (auto _ : state) loop.step();
  state.counters["running"] = static_cast<double>(loop.stats().running);
  state.counters["finished"] = static_cast<double>(loop.stats().finished);
}
BENCHMARK(BM_in_flight_step)->ArgsProduct({{64, 512, 2048}, {1, 2}})->Unit(benchmark::kMicrosecond)->Iterations(2000);

}  // namespace
}  // namespace octet
