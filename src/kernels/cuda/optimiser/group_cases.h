// Cases of groups of updates, for their test and their speed.
#pragma once

#include "kernels/cpu/testing/cases.h"

namespace octet::cuda {

// Parameters of these shapes; every second one has a bf16 copy, every third an amax. finite 0: nothing changes.
cpu::Case update_group_case(Op op, const std::vector<Shape>& shapes, double finite);

}  // namespace octet::cuda
