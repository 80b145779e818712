#include "kernels/cuda/pair_cases.h"

namespace octet::cuda {

std::vector<cpu::Case> position_bench_cases() {
  std::vector<cpu::Case> cases;
  for (const bool interleaved : {false, true}) {
    for (const int64_t heads : {32, 8}) {
      const int64_t tokens = 8192, dim = 128;
      cases.push_back(
          {.op = Op::kRope,
           .name = fmt::format("8192_{}x128{}", heads, interleaved ? "_interleaved" : ""),
           .inputs = {cpu::x({tokens, heads * dim}), cpu::integers(DType::kI32, {tokens}, 0, 8192)},
           .attrs = {{"heads", heads}, {"head_dim", dim}, {"theta", 500000.0}, {"interleaved", interleaved}},
           .dtypes = {DType::kBF16}});
    }
  }
  cpu::Case amax = rope_amax_case({.tokens = 8192, .heads = 32});
  amax.dtypes = {DType::kBF16};
  cases.push_back(std::move(amax));
  return cases;
}

}  // namespace octet::cuda
