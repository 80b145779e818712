#include <numeric>

#include "kernels/cuda/bench_cases.h"

namespace octet::cuda {
namespace {

struct Model {
  const char* name;
  int64_t heads, kv_heads, dim;
};
constexpr Model kGptJ{"gptj", 16, 16, 256}, kLlama2{"llama2_7b", 32, 32, 128}, kLlama3{"llama31_8b", 32, 8, 128},
    kFalcon{"falcon_7b", 71, 1, 64};

// `sequences` of `shortest` to `longest` keys, each with `queries` new ones at the end.
cpu::Case paged(const char* step, const Model& m, int64_t sequences, int64_t queries, int64_t shortest, int64_t longest,
                DType cache) {
  constexpr int64_t kBlock = 16;
  const int64_t tokens = sequences * queries, blocks = (longest + kBlock - 1) / kBlock, all = sequences * blocks;
  int64_t step_of_blocks = 7919;  // a permutation of the cache's blocks
  while (std::gcd(step_of_blocks, all) != 1) ++step_of_blocks;
  std::vector<double> starts, lengths, table;
  for (int64_t s = 0; s <= sequences; ++s) starts.push_back(static_cast<double>(s * queries));
  for (int64_t s = 0; s < sequences; ++s) {
    lengths.push_back(static_cast<double>(shortest + s * 7919 % (longest - shortest + 1)));
  }
  for (int64_t i = 0; i < all; ++i) table.push_back(static_cast<double>(i * step_of_blocks % all));
  const bool row_scales = cache == DType::kI8;
  const Shape rows{all * kBlock, m.kv_heads * m.dim};
  const cpu::CaseInput kv = row_scales ? cpu::codes(cache, rows) : cpu::normal(cache, rows);
  cpu::Case c{
      .op = Op::kPagedAttention,
      .name = fmt::format("{}_{}_{}x{}_{}", step, m.name, sequences, longest, dtype_name(cache)),
      .inputs = {cpu::x({tokens, m.heads * m.dim}), kv, kv, cpu::given(DType::kI32, {sequences + 1}, starts),
                 cpu::given(DType::kI32, {sequences}, lengths), cpu::given(DType::kI32, {sequences, blocks}, table)},
      .attrs = {{"heads", m.heads},
                {"kv_heads", m.kv_heads},
                {"head_dim", m.dim},
                {"scale", 1 / std::sqrt(static_cast<double>(m.dim))},
                {"block_size", kBlock}},
      .dtypes = {DType::kBF16}};
  const cpu::CaseInput scale_inv = cpu::uniform(DType::kF32, {all * kBlock, m.kv_heads}, 0.005, 0.02);
  if (row_scales) c.inputs.insert(c.inputs.end(), {scale_inv, scale_inv});
  return c;
}

}  // namespace

std::vector<cpu::Case> inference_bench_cases() {
  std::vector<cpu::Case> cases;
  for (const DType cache : {DType::kBF16, DType::kE4M3, DType::kI8}) {
    cases.push_back(paged("decode", kGptJ, 64, 1, 128, 256, cache));
    cases.push_back(paged("decode", kGptJ, 1024, 1, 128, 256, cache));
    cases.push_back(paged("decode", kLlama2, 64, 1, 128, 256, cache));
    cases.push_back(paged("decode", kLlama2, 256, 1, 128, 256, cache));
    cases.push_back(paged("decode", kLlama2, 1024, 1, 128, 256, cache));
    cases.push_back(paged("decode", kLlama2, 64, 1, 2048, 2048, cache));
    for (int64_t length : {512, 1024, 32768}) cases.push_back(paged("decode", kLlama3, 1, 1, length, length, cache));
    cases.push_back(paged("decode", kLlama3, 16, 1, 1024, 8192, cache));
    cases.push_back(paged("decode", kLlama3, 64, 1, 2048, 2048, cache));
    cases.push_back(paged("decode", kLlama3, 64, 1, 256, 4096, cache));
    cases.push_back(paged("decode", kLlama3, 512, 1, 1024, 2048, cache));
    cases.push_back(paged("decode", kLlama3, 1024, 1, 128, 256, cache));
    cases.push_back(paged("decode", kFalcon, 256, 1, 128, 256, cache));
    cases.push_back(paged("prefill", kLlama3, 1, 2048, 2048, 2048, cache));
    cases.push_back(paged("prefill", kLlama3, 1, 512, 4096, 4096, cache));
    cases.push_back(paged("prefill", kGptJ, 1, 2048, 2048, 2048, cache));
  }
  std::vector<double> slots;
  for (int i = 0; i < 8192; ++i) slots.push_back(i * 5 % 16384);
  for (const DType cache : {DType::kBF16, DType::kE4M3}) {
    cases.push_back(
        {.op = Op::kScatterRows,
         .name = std::string("8192x1024_") + dtype_name(cache),
         .inputs = {cpu::normal(cache, {16384, 1024}), cpu::x({8192, 1024}), cpu::given(DType::kI32, {8192}, slots)},
         .dtypes = {DType::kBF16}});
  }
  std::vector<double> pairs;
  for (int i = 0; i < 256; ++i) pairs.insert(pairs.end(), {static_cast<double>(i), static_cast<double>(i + 256)});
  cases.push_back({.op = Op::kCopyBlocks,
                   .name = "256x16x1024_e4m3",
                   .inputs = {cpu::normal(DType::kE4M3, {8192, 1024}), cpu::given(DType::kI32, {256, 2}, pairs)},
                   .attrs = {{"block_size", int64_t{16}}},
                   .dtypes = {DType::kBF16}});
  return cases;
}

}  // namespace octet::cuda
