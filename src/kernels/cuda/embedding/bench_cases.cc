// Sizes of real models: 8192 tokens of a table of 51200 x 4096, and positions.
#include "kernels/cuda/bench_cases.h"

namespace octet::cuda {

std::vector<cpu::Case> embedding_bench_cases() {
  using namespace cpu;
  std::vector<Case> cases;
  struct Size {
    const char* name;
    int64_t tokens, rows, cols;
  };
  for (const Size& s : {Size{"words", 8192, 51200, 4096}, Size{"positions", 8192, 2048, 4096},
                        Size{"gpt2_124m", 16384, 50257, 768}, Size{"wide", 4096, 128256, 8192}}) {
    const CaseInput ids = integers(DType::kI32, {s.tokens}, 0, s.rows);
    cases.push_back({.op = Op::kEmbedding, .name = s.name, .inputs = {ids, x({s.rows, s.cols})}});
    const Attrs attrs = {{"rows", s.rows}};
    cases.push_back({.op = Op::kEmbeddingGrad, .name = s.name, .inputs = {ids, x({s.tokens, s.cols})}, .attrs = attrs});
    cases.push_back({.op = Op::kEmbeddingGrad,
                     .name = std::string(s.name) + "_add",
                     .inputs = {ids, x({s.tokens, s.cols}), normal(DType::kF32, {s.rows, s.cols})},
                     .attrs = attrs});
  }
  // Text's commonest words: one row of many tokens.
  cases.push_back({.op = Op::kEmbeddingGrad,
                   .name = "few_words",
                   .inputs = {integers(DType::kI32, {8192}, 0, 16), x({8192, 4096})},
                   .attrs = {{"rows", int64_t{51200}}}});
  return cases;
}

}  // namespace octet::cuda
