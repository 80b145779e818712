// Micro-batches of random tokens, equal in every run.
#pragma once

#include <cstdint>
#include <vector>

#include "train/batches.h"

namespace octet {

std::vector<Batch> random_batches(int64_t micro_batches, int64_t sequences, int64_t length, int64_t vocab);

}  // namespace octet
