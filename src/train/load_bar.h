// A progress bar for states that take long to load: megabytes as the executor holds them. Small models have none.
#pragma once

#include <optional>

#include "base/progress.h"
#include "exec/logical_states.h"

namespace octet {

class LoadBar {
 public:
  // Of the states of these roles.
  LoadBar(const Program& program, bool (*counts)(StateRole)) {
    for (const LogicalState& tensor : logical_states(program)) total_ += counts(tensor.role) ? tensor.type.bytes() : 0;
    if (total_ >= kLarge)
      progress_.emplace(ProgressOptions{.title = "load", .unit = "MB", .total = total_ / kMegabyte});
  }
  void add(int64_t bytes) {
    done_ += bytes;
    if (progress_) progress_->update(done_ / kMegabyte);
  }

 private:
  static constexpr int64_t kMegabyte = 1'000'000, kLarge = 1000 * kMegabyte;
  int64_t total_ = 0, done_ = 0;
  std::optional<Progress> progress_;
};

}  // namespace octet
