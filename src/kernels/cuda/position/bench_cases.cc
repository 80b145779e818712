#include "kernels/cuda/bench_cases.h"

namespace octet::cuda {

std::vector<cpu::Case> position_bench_cases() { return {}; }

}  // namespace octet::cuda
