#include "exec/logical_states.h"

#include "base/error.h"
#include "passes/pack.h"

namespace octet {

std::vector<LogicalState> logical_states(const Program& program) {
  std::vector<LogicalState> tensors;
  for (const Placement& placement : load_plan(program)) {
    const StateEntry& entry = *program.find_state(placement.state);
    const int64_t rows = entry.type.shape.rank() > 0 ? entry.type.shape[0] : 1;
    tensors.push_back({.name = placement.tensor,
                       .type = {entry.type.dtype, placement.shape},
                       .kind = entry.kind,
                       .state = placement.state,
                       .offset = placement.row == 0 ? 0 : placement.row * (entry.type.bytes() / rows)});
  }
  return tensors;
}

LogicalState find_logical_state(const Program& program, const std::string& name) {
  for (LogicalState& tensor : logical_states(program)) {
    if (tensor.name == name) return tensor;
  }
  fail(ErrorCode::kInternal, "no state of program '{}' holds {}", program.name, name);
}

void read_logical(Executor& executor, const LogicalState& tensor, std::span<std::byte> bytes, int64_t offset) {
  check(offset >= 0 && offset + static_cast<int64_t>(bytes.size()) <= tensor.type.bytes(), ErrorCode::kInternal,
        "{}: {} bytes at {} are wanted of {}", tensor.name, bytes.size(), offset, tensor.type.bytes());
  executor.read_state_part(tensor.state, tensor.offset + offset, bytes);
}

void write_logical(Executor& executor, const LogicalState& tensor, std::span<const std::byte> bytes) {
  check(static_cast<int64_t>(bytes.size()) == tensor.type.bytes(), ErrorCode::kInvalidArgument,
        "{} is {} = {} bytes, {} were given", tensor.name, to_string(tensor.type), tensor.type.bytes(), bytes.size());
  executor.write_state_part(tensor.state, tensor.offset, bytes);
}

}  // namespace octet
