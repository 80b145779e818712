// Cases of the table lookup and its scatter gradient, with repeated ids, and of the middle part of a table.
#include "kernels/cpu/testing/cases.h"

namespace octet::cpu {

std::vector<Case> embedding_cases() {
  std::vector<Case> cases;
  struct Size {
    int64_t tokens, rows, cols;
    bool large;
  };
  for (const Size& s : {Size{1, 1, 1, false}, Size{9, 5, 7, false}, Size{20, 33, 65, false}, Size{600, 50, 130, false},
                        Size{300, 7, 64, false}, Size{20, 33, 2064, false}, Size{4096, 50257, 768, true}}) {
    const std::string name = fmt::format("{}x{}_of_{}", s.tokens, s.cols, s.rows);
    const CaseInput ids = integers(DType::kI32, {s.tokens}, 0, s.rows);
    cases.push_back({.op = Op::kEmbedding, .name = name, .inputs = {ids, x({s.rows, s.cols})}, .large = s.large});
    const Tolerance sums = accumulated(s.tokens);
    const CaseInput all_ids = integers(DType::kI32, {s.tokens}, 0, 3 * s.rows), dy = x({s.tokens, s.cols});
    if (!s.large) {
      cases.push_back({.op = Op::kEmbedding,
                       .name = name + "_part",
                       .inputs = {all_ids, x({s.rows, s.cols})},
                       .attrs = {{"first", s.rows}},
                       .gradient = false});
      const Attrs part = {{"rows", s.rows}, {"first", s.rows}};
      for (const auto& [suffix, c] :
           {std::pair{"_part", absent()}, {"_part_add", normal(DType::kF32, {s.rows, s.cols})}})
        cases.push_back({.op = Op::kEmbeddingGrad,
                         .name = name + suffix,
                         .inputs = {all_ids, dy, c},
                         .attrs = part,
                         .tolerance = sums});
    }
    // The table's gradient is f32 whatever the activations are.
    cases.push_back({.op = Op::kEmbeddingGrad,
                     .name = name,
                     .inputs = {ids, dy},
                     .attrs = {{"rows", s.rows}},
                     .tolerance = sums,
                     .large = s.large});
    cases.push_back({.op = Op::kEmbeddingGrad,
                     .name = name + "_add",
                     .inputs = {ids, dy, normal(DType::kF32, {s.rows, s.cols})},
                     .attrs = {{"rows", s.rows}},
                     .tolerance = sums,
                     .large = s.large});
  }
  return cases;
}

}  // namespace octet::cpu
