// Large instances of the ops for the speed of CUDA rows (rows_bench.cc): sizes of real models. One list a family, in
// <family>/bench_cases.cc; a fusion's case gives its body.
#pragma once

#include <vector>

#include "kernels/cpu/testing/cases.h"

namespace octet::cuda {

std::vector<cpu::Case> matmul_bench_cases();
std::vector<cpu::Case> norm_bench_cases();
std::vector<cpu::Case> elementwise_bench_cases();
std::vector<cpu::Case> activation_bench_cases();
std::vector<cpu::Case> precision_bench_cases();
std::vector<cpu::Case> attention_bench_cases();
std::vector<cpu::Case> position_bench_cases();
std::vector<cpu::Case> embedding_bench_cases();
std::vector<cpu::Case> loss_bench_cases();
std::vector<cpu::Case> shape_bench_cases();
std::vector<cpu::Case> optimiser_bench_cases();
std::vector<cpu::Case> experts_bench_cases();
std::vector<cpu::Case> inference_bench_cases();
std::vector<cpu::Case> sampling_bench_cases();

// All of them. Random values: floats by fill_random, integers by the case's own fill.
std::vector<cpu::Case> all_bench_cases();

}  // namespace octet::cuda
