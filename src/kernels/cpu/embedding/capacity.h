// What the kernels of coalesce_rows refuse.
#pragma once

#include <string>

#include "base/error.h"

namespace octet::cpu {

inline void check_capacity(const std::string& node, int64_t distinct, int64_t capacity) {
  check(
      distinct <= capacity, ErrorCode::kInvalidArgument,
      "coalesce_rows \"{}\": {} distinct ids, and there is room for {}: a step has more micro-batches than the program "
      "was compiled for",
      node, distinct, capacity);
}

}  // namespace octet::cpu
