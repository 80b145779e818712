// Placing pieces whose lives have no structure: the worst case for plan_memory's time.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>
#include <vector>

#include "passes/arena.h"

namespace octet {
namespace {

void place_random_lives(benchmark::State& state) {
  std::mt19937 random(1);
  auto times = static_cast<int32_t>(state.range(0));
  std::vector<ArenaItem> items(static_cast<size_t>(times));
  for (ArenaItem& item : items) {
    item.first = static_cast<int32_t>(random() % static_cast<uint32_t>(times));
    uint32_t longest = random() % 8 == 0 ? static_cast<uint32_t>(times) / 4 : 20;
    item.last = std::min(times - 1, item.first + static_cast<int32_t>(random() % longest));
    item.bytes = 64 * (1 + static_cast<int64_t>(random() % 1000));
  }
  ArenaSize size;
  for (auto _ : state) size = place_in_arena(items, times);
  state.counters["over_bound"] = static_cast<double>(size.bytes) / static_cast<double>(size.live_bytes);
}
BENCHMARK(place_random_lives)->Arg(2000)->Arg(20000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace octet
