// Cases of the table lookup and its gradient, dense and as rows, with repeated ids, and of the middle part of a table.
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
  const auto coalesce = [&](const std::string& name, std::vector<CaseInput> inputs, int64_t capacity,
                            bool large = false) {
    cases.push_back({.op = Op::kCoalesceRows,
                     .name = name,
                     .inputs = std::move(inputs),
                     .attrs = {{"capacity", capacity}},
                     .tolerance = accumulated(64),
                     .large = large});
  };
  const DType i = DType::kI32;
  coalesce("distinct", {given(i, {3}, {7, 0, 4}), x({3, 5})}, 3);
  coalesce("none", {given(i, {2}, {-1, -1}), x({2, 3})}, 4);
  coalesce("unused_ids", {given(i, {6}, {5, -1, 5, 2, -1, 2}), x({6, 1})}, 4);
  coalesce("repeated", {integers(i, {200}, -1, 40), x({200, 67})}, 40);
  coalesce("of_before",
           {given(i, {4}, {9, 1, 3, 1}), x({4, 33}), given(i, {5}, {1, 2, 9, -1, -1}), normal(DType::kF32, {5, 33})},
           5);
  coalesce("many_before",
           {integers(i, {300}, 0, 50), x({300, 130}), integers(i, {90}, -1, 50), normal(DType::kF32, {90, 130})}, 90);
  coalesce("8192_of_50257", {integers(i, {8192}, 0, 50257), x({8192, 768})}, 8192, true);
  return cases;
}

}  // namespace octet::cpu
