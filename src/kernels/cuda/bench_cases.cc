#include "kernels/cuda/bench_cases.h"

namespace octet::cuda {

std::vector<cpu::Case> all_bench_cases() {
  std::vector<cpu::Case> all;
  for (auto family :
       {matmul_bench_cases, norm_bench_cases, elementwise_bench_cases, activation_bench_cases, precision_bench_cases,
        attention_bench_cases, position_bench_cases, embedding_bench_cases, loss_bench_cases, shape_bench_cases,
        optimiser_bench_cases, experts_bench_cases, inference_bench_cases, sampling_bench_cases}) {
    for (cpu::Case& c : family()) all.push_back(std::move(c));
  }
  return all;
}

}  // namespace octet::cuda
