#include "kernels/cuda/bench_cases.h"

namespace octet::cuda {

using cpu::x;

std::vector<cpu::Case> shape_bench_cases() {
  const std::vector<DType> bf16 = {DType::kBF16};
  const Shape inner{8192, 16384}, hidden{8192, 4096};
  std::vector<cpu::Case> cases;
  const auto reduce = [](const char* kind, const char* axis) {
    return Attrs{{"reduction", std::string(kind)}, {"axis", std::string(axis)}};
  };
  cases.push_back({.op = Op::kReduce,
                   .name = "bias_grad_hidden",
                   .inputs = {x(hidden)},
                   .attrs = reduce("sum", "rows"),
                   .dtypes = bf16});
  cases.push_back({.op = Op::kReduce,
                   .name = "bias_grad_inner",
                   .inputs = {x(inner)},
                   .attrs = reduce("sum", "rows"),
                   .dtypes = bf16});
  cases.push_back({.op = Op::kReduce,
                   .name = "amax_hidden",
                   .inputs = {x(hidden)},
                   .attrs = reduce("amax", "all"),
                   .dtypes = bf16});
  cases.push_back(
      {.op = Op::kReduce, .name = "amax_inner", .inputs = {x(inner)}, .attrs = reduce("amax", "all"), .dtypes = bf16});
  cases.push_back({.op = Op::kReduce,
                   .name = "amax_small",
                   .inputs = {x({1024, 1024})},
                   .attrs = reduce("amax", "all"),
                   .dtypes = bf16});
  cases.push_back({.op = Op::kReduce,
                   .name = "amax_weight",
                   .inputs = {x({16384, 4096})},
                   .attrs = reduce("amax", "all"),
                   .dtypes = {DType::kF32}});
  cases.push_back({.op = Op::kReduce,
                   .name = "sum_losses",
                   .inputs = {x({8192})},
                   .attrs = reduce("sum", "all"),
                   .dtypes = {DType::kF32}});
  cases.push_back({.op = Op::kSlice,
                   .name = "third_of_qkv",
                   .inputs = {x({8192, 12288})},
                   .attrs = {{"axis", int64_t{1}}, {"begin", int64_t{4096}}, {"end", int64_t{8192}}},
                   .dtypes = bf16});
  cases.push_back({.op = Op::kConcat,
                   .name = "qkv",
                   .inputs = {x(hidden), x(hidden), x(hidden)},
                   .attrs = {{"axis", int64_t{1}}},
                   .dtypes = bf16});
  cases.push_back(
      {.op = Op::kTranspose, .name = "hidden", .inputs = {x(hidden)}, .dtypes = {DType::kBF16, DType::kF32}});
  cases.push_back({.op = Op::kSelectRows,
                   .name = "1024_of_hidden",
                   .inputs = {x(hidden), cpu::integers(DType::kI32, {1024}, 0, 8192)},
                   .dtypes = bf16});
  return cases;
}

}  // namespace octet::cuda
