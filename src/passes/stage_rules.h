// What must not be left after a pass: checked by the pipeline in verify mode, beside the verifier's legality table.
#pragma once

#include <string_view>

#include "passes/pass.h"

namespace octet {

// Throws kInternal naming graph, node and rule. Rules of disabled passes and steps do not hold.
void check_stage_rules(std::string_view pass, const Program& program, const CompileOptions& options);

}  // namespace octet
