// Grouped products of Mixtral-8x7B (8 experts) and Qwen3-30B-A3B (128), FP8 and bf16, and their gradients, with 1, 16,
// 128 and 512 tokens an expert; the routing of 8192 tokens.
#include "kernels/cuda/bench_cases.h"

namespace octet::cuda {
namespace {

using cpu::Case;
using cpu::normal;

cpu::CaseInput offsets(int64_t experts, int64_t tokens) {
  std::vector<double> values;
  for (int64_t e = 0; e <= experts; ++e) values.push_back(static_cast<double>(e * tokens));
  return cpu::given(DType::kI32, {experts + 1}, std::move(values));
}

cpu::CaseInput ones(Shape shape) {
  return {.dtype = DType::kF32, .shape = std::move(shape), .fill = [](Philox&, auto&) {}};
}

void add_products(std::vector<Case>& cases, int64_t experts, int64_t in, int64_t out, int64_t tokens) {
  const int64_t rows = experts * tokens;
  const std::string name = fmt::format("{}_experts_{}x{}_{}_tokens", experts, out, in, tokens);
  cases.push_back({.op = Op::kScaledGroupedMatmul,
                   .name = name,
                   .inputs = {normal(DType::kE4M3, {rows, in}), ones({rows}), normal(DType::kE4M3, {experts * out, in}),
                              ones({experts * out}), offsets(experts, tokens)},
                   .attrs = {{"trans_b", true},
                             {"scaling_a", std::string("row")},
                             {"scaling_b", std::string("row")},
                             {"to", std::string("bf16")}},
                   .dtypes = {DType::kE4M3}});
  cases.push_back({.op = Op::kScaledGroupedMatmul,
                   .name = name + "_int4",
                   .inputs = {normal(DType::kE4M3, {rows, in}),
                              ones({rows}),
                              {.dtype = DType::kI4, .shape = {experts * out, in}, .fill = [](Philox&, auto&) {}},
                              ones({in / 128, experts * out}),
                              offsets(experts, tokens)},
                   .attrs = {{"trans_b", true},
                             {"scaling_a", std::string("row")},
                             {"scaling_b", std::string("1x128")},
                             {"order", std::string("wgmma_x8")},
                             {"to", std::string("bf16")}},
                   .dtypes = {DType::kE4M3}});
  cases.push_back({.op = Op::kGroupedMatmul,
                   .name = name,
                   .inputs = {normal(DType::kBF16, {rows, in}), normal(DType::kBF16, {experts * out, in}),
                              offsets(experts, tokens)},
                   .attrs = {{"trans_b", true}},
                   .dtypes = {DType::kBF16}});
  cases.push_back({.op = Op::kGroupedMatmul,
                   .name = name + "_dgrad",
                   .inputs = {normal(DType::kBF16, {rows, out}), normal(DType::kBF16, {experts * out, in}),
                              offsets(experts, tokens)},
                   .dtypes = {DType::kBF16}});
  cases.push_back(
      {.op = Op::kGroupedMatmulWgrad,
       .name = name,
       .inputs = {normal(DType::kBF16, {rows, out}), normal(DType::kBF16, {rows, in}), offsets(experts, tokens)},
       .dtypes = {DType::kBF16}});
}

}  // namespace

std::vector<cpu::Case> experts_bench_cases() {
  std::vector<Case> cases;
  for (int64_t tokens : {1, 16, 128, 512}) {
    add_products(cases, 8, 4096, 14336, tokens);
    add_products(cases, 8, 14336, 4096, tokens);
    add_products(cases, 128, 2048, 768, tokens);
    add_products(cases, 128, 768, 2048, tokens);
  }
  cases.push_back({.op = Op::kTopK,
                   .name = "8192x128_8",
                   .inputs = {normal(DType::kF32, {8192, 128})},
                   .attrs = {{"k", int64_t{8}}, {"renormalize", true}},
                   .dtypes = {DType::kF32}});
  cases.push_back({.op = Op::kGroupRows,
                   .name = "8192x8_of_128",
                   .inputs = {cpu::integers(DType::kI32, {8192, 8}, 0, 128)},
                   .attrs = {{"groups", int64_t{128}}},
                   .dtypes = {DType::kF32}});
  return cases;
}

}  // namespace octet::cuda
