// Cross-entropy at the vocabularies of models.
#include "kernels/cuda/bench_cases.h"

namespace octet::cuda {

std::vector<cpu::Case> loss_bench_cases() {
  std::vector<cpu::Case> cases;
  struct Size {
    int64_t tokens, classes;
  };
  for (const Size& s : {Size{8192, 51200}, Size{8192, 50257}, Size{4096, 128256}}) {
    const std::string name = fmt::format("{}x{}", s.tokens, s.classes);
    const cpu::CaseInput logits = cpu::x({s.tokens, s.classes}), row = cpu::normal(DType::kF32, {s.tokens}),
                         targets = cpu::integers(DType::kI32, {s.tokens}, -1, s.classes);
    cases.push_back({Op::kCrossEntropy, name, {logits, targets}, {}, {}, {DType::kBF16}});
    cases.push_back({Op::kCrossEntropyGrad, name, {logits, targets, row, row}, {}, {}, {DType::kBF16}});
  }
  return cases;
}

}  // namespace octet::cuda
