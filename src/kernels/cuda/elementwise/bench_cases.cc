#include "kernels/cuda/bench_cases.h"

namespace octet::cuda {

using cpu::x;

std::vector<cpu::Case> elementwise_bench_cases() {
  const std::vector<DType> bf16 = {DType::kBF16};
  const Shape inner{8192, 16384}, hidden{8192, 4096};
  std::vector<cpu::Case> cases;
  cases.push_back({.op = Op::kCast,
                   .name = "weight_f32_to_bf16",
                   .inputs = {x({16384, 4096})},
                   .attrs = {{"to", std::string("bf16")}},
                   .dtypes = {DType::kF32}});
  cases.push_back({.op = Op::kCast,
                   .name = "hidden_bf16_to_f32",
                   .inputs = {x(hidden)},
                   .attrs = {{"to", std::string("f32")}},
                   .dtypes = bf16});
  cases.push_back(
      {.op = Op::kScale, .name = "inner", .inputs = {x(inner)}, .attrs = {{"value", 0.125}}, .dtypes = bf16});
  for (bool tanh_form : {true, false}) {
    const Attrs attrs = {{"approximate", tanh_form}};
    const std::string name = tanh_form ? "inner_tanh" : "inner_erf";
    cases.push_back({.op = Op::kGelu, .name = name, .inputs = {x(inner)}, .attrs = attrs, .dtypes = bf16});
    cases.push_back(
        {.op = Op::kGeluGrad, .name = name, .inputs = {x(inner), x(inner)}, .attrs = attrs, .dtypes = bf16});
  }
  cases.push_back({.op = Op::kSilu, .name = "inner", .inputs = {x(inner)}, .dtypes = bf16});
  cases.push_back({.op = Op::kSiluGrad, .name = "inner", .inputs = {x(inner), x(inner)}, .dtypes = bf16});
  cases.push_back({.op = Op::kAdd, .name = "hidden", .inputs = {x(hidden), x(hidden)}, .dtypes = bf16});
  cases.push_back({.op = Op::kAdd, .name = "inner", .inputs = {x(inner), x(inner)}, .dtypes = bf16});
  cases.push_back(
      {.op = Op::kAdd, .name = "inner_bias", .inputs = {x(inner), cpu::normal(DType::kF32, {16384})}, .dtypes = bf16});
  cases.push_back({.op = Op::kMul, .name = "inner", .inputs = {x(inner), x(inner)}, .dtypes = bf16});
  for (const Shape& shape : {hidden, inner}) {
    cases.push_back({.op = Op::kDropout,
                     .name = shape == hidden ? "hidden" : "inner",
                     .inputs = {x(shape), cpu::rng_state()},
                     .attrs = {{"p", 0.1}, {"key", int64_t{5}}},
                     .dtypes = bf16});
    cases.push_back({.op = Op::kDropout,
                     .name = shape == hidden ? "hidden_bytes" : "inner_bytes",
                     .inputs = {x(shape), cpu::rng_state()},
                     .attrs = {{"p", 0.1}, {"key", int64_t{5}}, {"bits", int64_t{8}}},
                     .dtypes = bf16});
  }
  return cases;
}

}  // namespace octet::cuda
