#include "kernels/cuda/bench_cases.h"

namespace octet::cuda {

std::vector<cpu::Case> precision_bench_cases() { return {}; }

}  // namespace octet::cuda
