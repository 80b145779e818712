// Checks a Plan by walking its graphs as an executor would: no result is written over bytes that are still to be read.
#pragma once

#include "ir/plan.h"

namespace octet {

// Throws kInternal naming the graph, the node and both values. Independent of how the plan was made; about as fast as
// planning, so compile() runs it whenever it verifies.
void check_plan(const Plan& plan);

}  // namespace octet
