#include "kernels/cuda/bench_cases.h"

namespace octet::cuda {

// Causal but where said, segments of one length; packed: documents of four lengths in each, as many allowed for as
// there are tokens (the FLOPs still count whole segments).
std::vector<cpu::Case> attention_bench_cases() {
  struct Size {
    int64_t batch, heads, kv_heads, length, dim;
    std::vector<DType> dtypes;
    double dropout;
    bool packed = false;
    bool causal = true;
    int64_t bits = 32;
  };
  std::vector<cpu::Case> cases;
  for (const Size& s :
       {Size{4, 32, 32, 2048, 128, {DType::kBF16}, 0}, Size{4, 32, 8, 2048, 128, {DType::kBF16}, 0},
        Size{1, 32, 8, 8192, 128, {DType::kBF16}, 0}, Size{8, 12, 12, 1024, 64, {DType::kBF16}, 0},
        Size{8, 12, 12, 1024, 64, {DType::kF32, DType::kBF16}, 0.1}, Size{4, 32, 32, 2048, 128, {DType::kBF16}, 0.1},
        Size{4, 32, 8, 2048, 128, {DType::kBF16}, 0.1}, Size{4, 32, 8, 2048, 128, {DType::kBF16}, 0.1, true},
        Size{4, 32, 8, 2048, 128, {DType::kBF16}, 0, true}, Size{48, 16, 16, 512, 64, {DType::kBF16}, 0, false, false},
        Size{48, 16, 16, 512, 64, {DType::kBF16}, 0.1, false, false},
        Size{48, 16, 16, 512, 64, {DType::kBF16}, 0.1, false, false, 8},
        Size{8, 12, 12, 1024, 64, {DType::kBF16}, 0.1, false, true, 8},
        Size{4, 32, 32, 2048, 128, {DType::kBF16}, 0.1, false, true, 8}}) {
    const int64_t tokens = s.batch * s.length;
    std::vector<double> starts;
    for (int64_t i = 0; i < s.batch; ++i) {
      for (const int64_t sixteenths : {0, 1, 4, 9}) {
        if (sixteenths == 0 || s.packed)
          starts.push_back(static_cast<double>(i * s.length + s.length * sixteenths / 16));
      }
    }
    starts.resize(static_cast<size_t>(s.packed ? tokens : s.batch) + 1, static_cast<double>(tokens));
    const cpu::CaseInput q = cpu::x({tokens, s.heads * s.dim}), kv = cpu::x({tokens, s.kv_heads * s.dim});
    const cpu::CaseInput segments = cpu::given(DType::kI32, {static_cast<int64_t>(starts.size())}, starts);
    Attrs attrs = {{"heads", s.heads},       {"kv_heads", s.kv_heads},
                   {"head_dim", s.dim},      {"scale", 1 / std::sqrt(static_cast<double>(s.dim))},
                   {"max_length", s.length}, {"equal_length", s.packed ? 0 : s.length},
                   {"dropout", s.dropout}};
    if (!s.causal) attrs.set("causal", false);
    if (s.bits != 32) attrs.set("bits", s.bits);
    cpu::Case forward{.op = Op::kAttention,
                      .name = fmt::format("b{}_h{}_kv{}_s{}_d{}{}{}{}", s.batch, s.heads, s.kv_heads, s.length, s.dim,
                                          s.packed ? "_packed" : "", s.causal ? "" : "_not_causal",
                                          s.dropout == 0 ? ""
                                          : s.bits == 8  ? "_dropout_bytes"
                                                         : "_dropout"),
                      .inputs = {q, kv, kv, segments},
                      .attrs = attrs,
                      .dtypes = s.dtypes};
    cpu::Case backward = forward;
    backward.op = Op::kAttentionGrad;
    backward.inputs = {q, kv, kv, segments, q, cpu::normal(DType::kF32, {tokens, s.heads}), q};
    for (cpu::Case* c : {&forward, &backward}) {
      if (s.dropout == 0) continue;
      c->attrs.set("key", int64_t{9});
      if (s.bits == 32) c->attrs.set("library_mask", true);  // so that cuDNN's kernel runs as well as our own
      c->inputs.push_back(cpu::rng_state());
    }
    cases.push_back(forward);
    cases.push_back(backward);
  }
  return cases;
}

}  // namespace octet::cuda
