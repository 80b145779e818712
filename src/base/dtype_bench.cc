// Array conversion speed, one core, in gigabytes read plus written per second. 64 Ki elements stay in the L2 cache.
#include <benchmark/benchmark.h>

#include <vector>

#include "base/dtype.h"
#include "base/rng.h"

namespace octet {
namespace {

void BM_convert(benchmark::State& state, DType from, DType to) {
  const int64_t count = state.range(0);
  std::vector<float> numbers(static_cast<size_t>(count));
  Philox random(1);
  for (float& number : numbers) number = static_cast<float>(random.normal());
  std::vector<float> source(numbers.size()), destination(numbers.size());
  convert(DType::kF32, numbers.data(), from, source.data(), count);
  for (auto _ : state) {
    convert(from, source.data(), to, destination.data(), count);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * count * (dtype_bytes(from) + dtype_bytes(to)));
  state.SetItemsProcessed(state.iterations() * count);
}

BENCHMARK_CAPTURE(BM_convert, f32_to_bf16, DType::kF32, DType::kBF16)->Arg(1 << 16);
BENCHMARK_CAPTURE(BM_convert, bf16_to_f32, DType::kBF16, DType::kF32)->Arg(1 << 16);
BENCHMARK_CAPTURE(BM_convert, f32_to_e4m3, DType::kF32, DType::kE4M3)->Arg(1 << 16);
BENCHMARK_CAPTURE(BM_convert, f32_to_e5m2, DType::kF32, DType::kE5M2)->Arg(1 << 16);
BENCHMARK_CAPTURE(BM_convert, bf16_to_e4m3, DType::kBF16, DType::kE4M3)->Arg(1 << 16);
BENCHMARK_CAPTURE(BM_convert, e4m3_to_f32, DType::kE4M3, DType::kF32)->Arg(1 << 16);
BENCHMARK_CAPTURE(BM_convert, e4m3_to_bf16, DType::kE4M3, DType::kBF16)->Arg(1 << 16);
BENCHMARK_CAPTURE(BM_convert, e5m2_to_bf16, DType::kE5M2, DType::kBF16)->Arg(1 << 16);
BENCHMARK_CAPTURE(BM_convert, f16_to_f32, DType::kF16, DType::kF32)->Arg(1 << 16);

}  // namespace
}  // namespace octet
