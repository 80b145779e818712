// GPTQ: rounds the columns of a weight one after the other, each column's error taken up by those that follow.
// Groups are clipped to 1 .. 0.6 of their range, whichever loses least.
// Source: Frantar et al., arXiv 2210.17323; order by activations from the authors' code.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compress/group_codes.h"

namespace octet {

enum class ColumnOrder : uint8_t {
  kAsStored,
  kActivation,        // inputs of most energy first; groups are formed in that order (GroupCodes::group_of)
  kActivationStatic,  // the same order, groups as stored, their grids fitted beforehand
};

// What the linears of one input share: the order of its columns and the Cholesky factor of the inverse of its second
// moments in that order.
struct InputFactor {
  ColumnOrder kind = ColumnOrder::kAsStored;
  std::vector<int32_t> order;  // [K]: the column at each place
  std::vector<float> upper;    // [K, K], U^T U = (X^T X + damping)^-1
};
// `gram`: X^T X [K, K]. `damping`: added to the diagonal, of its mean.
InputFactor factor_inputs(std::span<const float> gram, int64_t cols, double damping, ColumnOrder kind);

GroupCodes gptq(std::span<const float> weights, int64_t rows, int64_t cols, const CodeRule& rule,
                const InputFactor& inputs);

}  // namespace octet
