// Cases of softmax cross-entropy: ignored targets, one class, logits that overflow exp, parts of the classes.
#include "kernels/cpu/testing/cases.h"

namespace octet::cpu {
namespace {

void log_sum_exp(const Node& node, std::vector<RefTensor>& inputs) {
  std::vector<RefTensor> out = {inputs[2], inputs[2]};
  const std::vector<const RefTensor*> in = {&inputs[0], &inputs[1]};
  reference::cross_entropy(node, in, out);
  inputs[2].values = out[1].values;
}

}  // namespace

std::vector<Case> loss_cases() {
  std::vector<Case> cases;
  struct Size {
    int64_t tokens, classes;
    double std;
    bool large;
  };
  for (const Size& s : {Size{5, 11, 1, false}, Size{3, 1, 1, false}, Size{33, 130, 3, false}, Size{4, 9, 1000, false},
                        Size{70, 5003, 2, false}, Size{512, 50257, 1, true}}) {
    const std::string name = fmt::format("{}x{}_std{}", s.tokens, s.classes, s.std);
    const CaseInput logits = x({s.tokens, s.classes}, s.std), row = normal(DType::kF32, {s.tokens});
    const CaseInput targets = integers(DType::kI32, {s.tokens}, -1, s.classes);
    const Tolerance tolerance{.relative = 2e-6,
                              .absolute = 2e-6 * std::fmax(1.0, s.std / 10),
                              .reason = "float32 exp and log; lse - logit cancels at the size of the logits"};
    cases.push_back({.op = Op::kCrossEntropy,
                     .name = name,
                     .inputs = {logits, targets},
                     .tolerance = tolerance,
                     .large = s.large,
                     .gradient = s.std < 100 && s.classes < 1000});
    // Its gradient includes the path through the log-sum-exp: exec/gradient_test.cc.
    cases.push_back({.op = Op::kCrossEntropy,
                     .name = name + "_given",
                     .inputs = {logits, targets, normal(DType::kF32, {s.tokens}, s.std)},
                     .tolerance = {.relative = 1e-6,
                                   .absolute = 1e-6 * s.std,
                                   .reason = "one float32 difference, which cancels at the size of the logits"},
                     .large = s.large,
                     .gradient = false});
    cases.push_back({.op = Op::kRowLse, .name = name, .inputs = {logits}, .tolerance = tolerance, .large = s.large});
    // exp(x - lse) carries the float32 rounding of x - lse: its absolute size times 2^-24.
    cases.push_back({.op = Op::kCrossEntropyGrad,
                     .name = name,
                     .inputs = {logits, targets, row, row},
                     .tolerance = {.relative = 4e-6,
                                   .absolute = 2e-6 + 1e-7 * s.std,
                                   .reason = "float32 exp of x - lse, rounded at the size of the logits"},
                     .prepare = log_sum_exp,
                     .large = s.large});
  }
  // Columns 9 and 10 are padding.
  const Attrs padded = {{"classes", int64_t{9}}};
  const CaseInput logits = x({5, 11}), row = normal(DType::kF32, {5}), targets = integers(DType::kI32, {5}, -1, 9);
  const Tolerance tolerance{.relative = 4e-6, .absolute = 2e-6, .reason = "float32 exp and log"};
  cases.push_back({.op = Op::kCrossEntropy,
                   .name = "padded",
                   .inputs = {logits, targets},
                   .attrs = padded,
                   .tolerance = tolerance,
                   .gradient = true});
  cases.push_back({.op = Op::kCrossEntropyGrad,
                   .name = "padded",
                   .inputs = {logits, targets, row, row},
                   .attrs = padded,
                   .tolerance = tolerance,
                   .prepare = log_sum_exp});
  // Parts of the classes: targets before, in and after them; with padding; with nothing but padding.
  struct Part {
    const char* name;
    int64_t tokens, columns, first, classes;  // classes 0: no padding
  };
  for (const Part& p :
       {Part{"part", 33, 130, 130, 0}, Part{"first_part", 9, 11, 0, 0}, Part{"part_padded", 9, 11, 4, 9},
        Part{"part_of_padding", 5, 11, 20, 9}, Part{"part_long", 40, 5003, 5003, 0}}) {
    Attrs attrs = {{"first", p.first}};
    if (p.classes > 0) attrs.set("classes", p.classes);
    const CaseInput columns = x({p.tokens, p.columns}), lse = uniform(DType::kF32, {p.tokens}, 2, 8);
    const CaseInput ids = integers(DType::kI32, {p.tokens}, -1, p.classes > 0 ? p.classes : p.first + 2 * p.columns);
    const auto add = [&](Op op, std::vector<CaseInput> inputs) {
      cases.push_back({.op = op,
                       .name = p.name,
                       .inputs = std::move(inputs),
                       .attrs = attrs,
                       .tolerance = tolerance,
                       .gradient = false});
    };
    add(Op::kRowLse, {columns});
    add(Op::kCrossEntropy, {columns, ids, lse});
    add(Op::kCrossEntropyGrad, {columns, ids, lse, normal(DType::kF32, {p.tokens})});
  }
  cases.push_back({.op = Op::kCrossEntropy,
                   .name = "all_ignored",
                   .inputs = {x({3, 5}), given(DType::kI32, {3}, {-1, -1, -1})},
                   .tolerance = {.relative = 2e-6, .absolute = 2e-6, .reason = "float32 exp and log"}});
  return cases;
}

}  // namespace octet::cpu
