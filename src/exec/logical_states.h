// Logical tensors in and out of an executor, wherever pack put them (ir/program.h, logical_states): loaders, fills and
// checkpoints go through here, so that padding and merged weights never leave the executor.
#pragma once

#include <span>

#include "exec/executor.h"

namespace octet {

// `bytes` are the whole tensor, or the part at `offset` of it, in row-major order.
void read_logical(Executor& executor, const LogicalState& tensor, std::span<std::byte> bytes, int64_t offset = 0);
void write_logical(Executor& executor, const LogicalState& tensor, std::span<const std::byte> bytes,
                   int64_t offset = 0);
// The whole tensor from pieces that `make` writes: Executor::fill_state_part, where `at` counts from the tensor's
// start.
void fill_logical(Executor& executor, const LogicalState& tensor, int64_t grain, Executor::MakeBytes make);

}  // namespace octet
