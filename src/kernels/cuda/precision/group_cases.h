// Cases of update_scales_group and maximum_group, for their test and their speed.
#pragma once

#include "kernels/cpu/testing/cases.h"

namespace octet::cuda {

// `count` tensors with histories of `length`, formats in turn; every third has no reader of its scale_inv or history.
// finite: nothing, or whether the step is finite (1 or 0), the operand of all members.
cpu::Case update_scales_group_case(int count, int64_t length, const std::string& algo,
                                   const std::vector<double>& finite = {});
// `count` pairs of single values, the last of them with a NaN on its right.
cpu::Case maximum_group_case(int count);

}  // namespace octet::cuda
