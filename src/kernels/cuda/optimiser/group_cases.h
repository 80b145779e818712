// Cases of adamw_group, for its test and its speed.
#pragma once

#include "kernels/cpu/testing/cases.h"

namespace octet::cuda {

// Parameters of these shapes; every second one has a bf16 copy, every third an amax. finite 0: nothing changes.
cpu::Case adamw_group_case(const std::vector<Shape>& shapes, double finite);

}  // namespace octet::cuda
