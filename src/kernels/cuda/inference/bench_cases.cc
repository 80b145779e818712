#include "kernels/cuda/bench_cases.h"

namespace octet::cuda {
namespace {

// `sequences` of `length` keys, each with `queries` new ones at the end.
cpu::Case paged(const char* name, int64_t sequences, int64_t queries, int64_t length, int64_t kv_heads, DType cache) {
  constexpr int64_t kHeads = 32, kDim = 128, kBlock = 16;
  const int64_t tokens = sequences * queries, blocks = (length + kBlock - 1) / kBlock;
  std::vector<double> starts, lengths, table;
  for (int64_t s = 0; s <= sequences; ++s) starts.push_back(static_cast<double>(s * queries));
  lengths.assign(static_cast<size_t>(sequences), static_cast<double>(length));
  for (int64_t i = 0; i < sequences * blocks; ++i)
    table.push_back(static_cast<double>(i * 7919 % (sequences * blocks)));
  const cpu::CaseInput kv = cpu::normal(cache, {sequences * blocks * kBlock, kv_heads * kDim});
  return {
      .op = Op::kPagedAttention,
      .name = fmt::format("{}_{}x{}_32x128_kv{}_{}", name, sequences, length, kv_heads, dtype_name(cache)),
      .inputs = {cpu::x({tokens, kHeads * kDim}), kv, kv, cpu::given(DType::kI32, {sequences + 1}, starts),
                 cpu::given(DType::kI32, {sequences}, lengths), cpu::given(DType::kI32, {sequences, blocks}, table)},
      .attrs = {{"heads", kHeads},
                {"kv_heads", kv_heads},
                {"head_dim", kDim},
                {"scale", 0.088388347648318447},
                {"block_size", kBlock},
                {"max_length", blocks * kBlock}},
      .dtypes = {DType::kBF16}};
}

}  // namespace

std::vector<cpu::Case> inference_bench_cases() {
  std::vector<cpu::Case> cases;
  for (const DType cache : {DType::kBF16, DType::kE4M3}) {
    cases.push_back(paged("decode", 64, 1, 2048, 8, cache));
    cases.push_back(paged("decode", 1, 1, 8192, 8, cache));
    cases.push_back(paged("decode", 16, 1, 2048, 32, cache));
  }
  cases.push_back(paged("prefill", 1, 2048, 2048, 8, DType::kBF16));
  std::vector<double> slots;
  for (int i = 0; i < 8192; ++i) slots.push_back(i * 5 % 16384);
  for (const DType cache : {DType::kBF16, DType::kE4M3}) {
    cases.push_back(
        {.op = Op::kKvAppend,
         .name = std::string("8192x1024_") + dtype_name(cache),
         .inputs = {cpu::normal(cache, {16384, 1024}), cpu::x({8192, 1024}), cpu::given(DType::kI32, {8192}, slots)},
         .dtypes = {DType::kBF16}});
  }
  return cases;
}

}  // namespace octet::cuda
