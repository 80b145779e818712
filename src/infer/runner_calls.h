// The calls of a runner as bytes: what rank 0 tells the ranks that follow it, so that all make the same calls with the
// same inputs.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "infer/runner.h"

namespace octet {

using CallBytes = std::vector<std::byte>;

CallBytes copy_blocks_call(std::span<const BlockCopy> copies);
CallBytes forward_call(const StepInput& input);
CallBytes sample_call(const SampleInput& input);
CallBytes wait_call();
CallBytes write_states_call(std::span<const StatePart> parts);
// "forward" and the like. Makes the call. Throw kInternal for bytes that are none.
const char* call_name(std::span<const std::byte> call);
void make_call(Runner& runner, std::span<const std::byte> call);

}  // namespace octet
