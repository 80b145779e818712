// Predictions of runs that others describe, a JSON object a line: {"id", "gpus", settings by their names}.
#pragma once

#include <functional>
#include <istream>
#include <string>

#include "ir/target.h"

namespace octet {

struct RowOptions {
  double memory_margin = 0;  // of the target's memory that is left free
  std::string where = "rows";
};

// Calls `answer` once a row, in their order, with a line of JSON: {"id", "fits", "memory_bytes", "step_seconds",
// "tokens_per_second", "reason"}; what is not known is null. A row that is wrong is answered with what is wrong with
// it; a line that is no JSON object throws kCorrupt, after the rows before it.
void evaluate_rows(std::istream& rows, const Target& target, const RowOptions& options,
                   const std::function<void(const std::string&)>& answer);

}  // namespace octet
