// The saved tensors of a program as checkpoints know them, wherever pack put them: loaders and checkpoints go through
// here, so that padding and merged weights never leave the executor.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "exec/executor.h"

namespace octet {

struct LogicalState {
  std::string name;  // "embed.weight", "adam_m.embed.weight"
  TensorType type;   // without padding
  StateKind kind;
  std::string state;   // the entry that holds it
  int64_t offset = 0;  // bytes into that entry
};

// Params, moments, gradients and scales, in the order of the state table.
std::vector<LogicalState> logical_states(const Program& program);
// Throws kInternal when no state holds `name`.
LogicalState find_logical_state(const Program& program, const std::string& name);

// `bytes` are the whole tensor, or the part at `offset` of it.
void read_logical(Executor& executor, const LogicalState& tensor, std::span<std::byte> bytes, int64_t offset = 0);
void write_logical(Executor& executor, const LogicalState& tensor, std::span<const std::byte> bytes);

}  // namespace octet
