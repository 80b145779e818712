// A hash of all that is printed of a program (ir/text.h) but the stages of its graphs: equal for programs of equal
// content, and as good as never for others. For noticing a change within one process, at a fraction of what printing
// costs; its value is not kept.
#pragma once

#include <cstdint>

#include "ir/program.h"

namespace octet {

uint64_t fingerprint(const Program& program);

}  // namespace octet
