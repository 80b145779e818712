// CRC-32C rate of one core, which bounds checkpoint verification. 1 MiB fits the L2 cache; 256 MiB is read from memory.
#include <benchmark/benchmark.h>

#include <string>

#include "base/crc32c.h"

namespace octet {
namespace {

void BM_crc32c(benchmark::State& state) {
  const std::string data(static_cast<size_t>(state.range(0)), 'x');
  for (auto _ : state) benchmark::DoNotOptimize(crc32c(data.data(), state.range(0)));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_crc32c)->Arg(1 << 20)->Arg(256 << 20);

void BM_crc32c_portable(benchmark::State& state) {
  const std::string data(static_cast<size_t>(state.range(0)), 'x');
  for (auto _ : state) benchmark::DoNotOptimize(crc32c_portable(data.data(), state.range(0)));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_crc32c_portable)->Arg(1 << 20);

}  // namespace
}  // namespace octet
