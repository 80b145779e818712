#include "kernels/cuda/bench_cases.h"

namespace octet::cuda {
namespace {

constexpr int64_t kVocab = 128256;

cpu::Case sample(const char* name, int64_t rows, double temperature, int64_t top_k, double top_p, double min_p) {
  std::vector<double> params, ks, seeds;
  for (int64_t r = 0; r < rows; ++r) {
    params.insert(params.end(), {temperature, top_p, min_p});
    ks.push_back(static_cast<double>(top_k));
    seeds.insert(seeds.end(), {1.0, static_cast<double>(r), 7.0});
  }
  return {.op = Op::kSample,
          .name = fmt::format("{}_{}x{}", name, rows, kVocab),
          .inputs = {cpu::x({rows, kVocab}), cpu::given(DType::kF32, {rows, 3}, params),
                     cpu::given(DType::kI32, {rows}, ks), cpu::given(DType::kI64, {rows, 3}, seeds)},
          .dtypes = {DType::kBF16}};
}

}  // namespace

std::vector<cpu::Case> sampling_bench_cases() {
  std::vector<cpu::Case> cases;
  for (const int64_t rows : {1, 64, 512}) {
    cases.push_back(sample("greedy", rows, 0, 0, 1, 0));
    cases.push_back(sample("temperature", rows, 0.8, 0, 1, 0));
    cases.push_back(sample("top_k50", rows, 1, 50, 1, 0));
    cases.push_back(sample("top_p0.9", rows, 1, 0, 0.9, 0));
    cases.push_back(sample("min_p0.05", rows, 1, 0, 1, 0.05));
    cases.push_back(sample("together", rows, 0.8, 50, 0.9, 0.02));
    cases.push_back({.op = Op::kTopLogprobs,
                     .name = fmt::format("k20_{}x{}", rows, kVocab),
                     .inputs = {cpu::x({rows, kVocab})},
                     .attrs = {{"k", int64_t{20}}},
                     .dtypes = {DType::kBF16}});
  }
  return cases;
}

}  // namespace octet::cuda
