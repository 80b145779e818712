#include "kernels/cuda/bench_cases.h"

namespace octet::cuda {

// Causal, all segments of one length; the last one is small for the float32 kernels' sake.
std::vector<cpu::Case> attention_bench_cases() {
  struct Size {
    int64_t batch, heads, kv_heads, length, dim;
    std::vector<DType> dtypes;
    double dropout;
  };
  std::vector<cpu::Case> cases;
  for (const Size& s : {Size{4, 32, 32, 2048, 128, {DType::kBF16}, 0}, Size{4, 32, 8, 2048, 128, {DType::kBF16}, 0},
                        Size{1, 32, 8, 8192, 128, {DType::kBF16}, 0}, Size{8, 12, 12, 1024, 64, {DType::kBF16}, 0},
                        Size{8, 12, 12, 1024, 64, {DType::kF32, DType::kBF16}, 0.1}}) {
    const int64_t tokens = s.batch * s.length;
    std::vector<double> starts;
    for (int64_t i = 0; i <= s.batch; ++i) starts.push_back(static_cast<double>(i * s.length));
    const cpu::CaseInput q = cpu::x({tokens, s.heads * s.dim}), kv = cpu::x({tokens, s.kv_heads * s.dim});
    const cpu::CaseInput segments = cpu::given(DType::kI32, {s.batch + 1}, starts);
    Attrs attrs = {{"heads", s.heads},       {"kv_heads", s.kv_heads},
                   {"head_dim", s.dim},      {"scale", 1 / std::sqrt(static_cast<double>(s.dim))},
                   {"max_length", s.length}, {"equal_length", s.length},
                   {"dropout", s.dropout}};
    cpu::Case forward{.op = Op::kAttention,
                      .name = fmt::format("b{}_h{}_kv{}_s{}_d{}{}", s.batch, s.heads, s.kv_heads, s.length, s.dim,
                                          s.dropout > 0 ? "_dropout" : ""),
                      .inputs = {q, kv, kv, segments},
                      .attrs = attrs,
                      .dtypes = s.dtypes};
    cpu::Case backward = forward;
    backward.op = Op::kAttentionGrad;
    backward.inputs = {q, kv, kv, segments, q, cpu::normal(DType::kF32, {tokens, s.heads}), q};
    for (cpu::Case* c : {&forward, &backward}) {
      if (s.dropout == 0) continue;
      c->attrs.set("key", int64_t{9});
      c->inputs.push_back(cpu::rng_state());
    }
    cases.push_back(forward);
    cases.push_back(backward);
  }
  return cases;
}

}  // namespace octet::cuda
