// Few-row GEMMs at the sizes of a 1B Llama with uncached weights, compared with a plain read: B/s counts the weights'
// bytes.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/threads.h"
#include "kernels/cpu/matmul/gemm.h"
#include "kernels/cpu/matmul/group_gemm.h"
#include "kernels/cpu/simd.h"

namespace octet::cpu {
namespace {

constexpr int64_t kPoolBytes = int64_t{600} << 20;

// Weights of all cases, read in turn, in huge pages like an arena. All bytes are 0x3c: small numbers in every type.
const std::byte* pool() {
  static const std::byte* const bytes = [] {
    void* memory = std::aligned_alloc(size_t{2} << 20, static_cast<size_t>(kPoolBytes));
    madvise(memory, static_cast<size_t>(kPoolBytes), MADV_HUGEPAGE);
    return static_cast<const std::byte*>(std::memset(memory, 0x3c, static_cast<size_t>(kPoolBytes)));
  }();
  return bytes;
}

void read(benchmark::State& state) {
  const std::byte* bytes = pool();
  for (auto _ : state) {
    parallel_for(kPoolBytes / 4096, 1, [&](int64_t begin, int64_t end) {
      simd::Ints sums[4] = {};
      for (int64_t i = begin * 4096; i < end * 4096; i += static_cast<int64_t>(sizeof sums)) {
        simd::Ints run[4];
        std::memcpy(&run, bytes + i, sizeof run);
        for (int k = 0; k < 4; ++k) sums[k] ^= run[k];
      }
      benchmark::DoNotOptimize(simd::sum(sums[0] ^ sums[1] ^ sums[2] ^ sums[3]));
    });
  }
  state.SetBytesProcessed(state.iterations() * kPoolBytes);
}

void few_rows(benchmark::State& state, DType a_type, DType b_type, int64_t m, int64_t n, int64_t k) {
  const int64_t bytes = n * k * dtype_bytes(b_type), matrices = kPoolBytes / bytes;
  std::vector<std::byte> a(static_cast<size_t>(m * k * dtype_bytes(a_type)), std::byte{0x3c});
  std::vector<std::byte> scratch(static_cast<size_t>(gemv_scratch_bytes(m, k)));
  std::vector<float> out(static_cast<size_t>(m * n)), scales(static_cast<size_t>(n), 0.01f);
  const GemmOutput output{.data = out.data(), .col_scale = b_type == DType::kI8 ? scales.data() : nullptr};
  int64_t at = 0;
  for (auto _ : state) {
    gemv({.data = a.data(), .dtype = a_type, .rows = m, .cols = k},
         {.data = pool() + at++ % matrices * bytes, .dtype = b_type, .rows = n, .cols = k, .transposed = true}, output,
         scratch);
  }
  state.SetBytesProcessed(state.iterations() * bytes);
}

// Weights of 4 bits in groups of 128; many rows are a prefill's.
void grouped_rows(benchmark::State& state, int64_t m, int64_t n, int64_t k) {
  const int64_t bytes = n * k / 2, matrices = kPoolBytes / bytes;
  GroupedWeights weights{.outputs = n, .depth = k, .group = 128};
  std::vector<int8_t> x(static_cast<size_t>(m * k), 3);
  std::vector<std::byte> scratch(static_cast<size_t>(group_gemm_scratch_bytes((m + 7) / 8 * 8, weights)));
  std::vector<float> out(static_cast<size_t>(m * n)), scales(static_cast<size_t>(n * k / 128), 0.01f);
  const GemmOutput output{.data = out.data()};
  weights.scales = scales.data();
  int64_t at = 0;
  for (auto _ : state) {
    weights.codes = pool() + at++ % matrices * bytes;
    group_gemm(x.data(), m, weights, output, scratch);
  }
  state.SetBytesProcessed(state.iterations() * bytes);
  state.counters["ops"] =
      benchmark::Counter(2e0 * static_cast<double>(m * n * k), benchmark::Counter::kIsIterationInvariantRate);
}

[[maybe_unused]] const bool kRegistered = [] {
  benchmark::RegisterBenchmark("read", read)->UseRealTime();
  struct Types {
    const char* name;
    DType a, b;
  };
  for (const Types& t : {Types{"bf16", DType::kBF16, DType::kBF16}, Types{"f32_bf16", DType::kF32, DType::kBF16},
                         Types{"i8", DType::kI8, DType::kI8}}) {
    for (auto [n, k] : {std::pair<int64_t, int64_t>{2048, 2048}, {8192, 2048}, {2048, 8192}, {128256, 2048}}) {
      for (int64_t m : {1, 4, 8}) {
        benchmark::RegisterBenchmark(fmt::format("gemv/{}/{}x{}x{}", t.name, m, n, k).c_str(),
                                     [=](benchmark::State& state) { few_rows(state, t.a, t.b, m, n, k); })
            ->UseRealTime();
      }
    }
  }
  for (auto [n, k] : {std::pair<int64_t, int64_t>{2048, 2048}, {8192, 2048}, {2048, 8192}})
    for (int64_t m : {1, 4, 8, 64, 512})
      benchmark::RegisterBenchmark(fmt::format("groups/i4/{}x{}x{}", m, n, k).c_str(), [=](benchmark::State& state) {
        grouped_rows(state, m, n, k);
      })->UseRealTime();
  return true;
}();

}  // namespace
}  // namespace octet::cpu
