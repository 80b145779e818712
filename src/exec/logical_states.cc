#include "exec/logical_states.h"

#include "base/error.h"

namespace octet {
namespace {

// fn(offset in the state, bytes) for the runs of this part of a tensor, one after the other.
template <typename Fn>
void for_each_part(const LogicalState& tensor, int64_t offset, int64_t bytes, const Fn& fn) {
  check(offset >= 0 && offset + bytes <= tensor.type.bytes(), ErrorCode::kInvalidArgument,
        "{} is {} = {} bytes: it has no {} bytes at {}", tensor.name, to_string(tensor.type), tensor.type.bytes(),
        bytes, offset);
  for_each_run(tensor.at, dtype_bytes(tensor.type.dtype), offset, offset + bytes,
               [&](int64_t, int64_t state_offset, int64_t count) { fn(state_offset, static_cast<size_t>(count)); });
}

}  // namespace

void read_logical(Executor& executor, const LogicalState& tensor, std::span<std::byte> bytes, int64_t offset) {
  for_each_part(tensor, offset, std::ssize(bytes), [&](int64_t at, size_t count) {
    executor.read_state_part(tensor.state, at, bytes.first(count));
    bytes = bytes.subspan(count);
  });
}

void write_logical(Executor& executor, const LogicalState& tensor, std::span<const std::byte> bytes, int64_t offset) {
  for_each_part(tensor, offset, std::ssize(bytes), [&](int64_t at, size_t count) {
    executor.write_state_part(tensor.state, at, bytes.first(count));
    bytes = bytes.subspan(count);
  });
}

void fill_logical(Executor& executor, const LogicalState& tensor, int64_t grain, Executor::MakeBytes make) {
  const PlacementRuns runs(tensor.at, dtype_bytes(tensor.type.dtype));
  const int64_t bytes = tensor.type.bytes();
  if (runs.count() == 1) return executor.fill_state_part(tensor.state, runs.at(0).state, bytes, grain, make);
  constexpr int64_t kPieceBytes = int64_t{4} << 20;
  std::vector<std::byte> piece(static_cast<size_t>(std::min(bytes, std::max(kPieceBytes / grain, int64_t{1}) * grain)));
  for (int64_t at = 0; at < bytes; at += std::ssize(piece)) {
    const auto part = std::span(piece).first(static_cast<size_t>(std::min(std::ssize(piece), bytes - at)));
    make(at, part);
    write_logical(executor, tensor, part, at);
  }
}

}  // namespace octet
