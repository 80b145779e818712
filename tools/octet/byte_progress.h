// Progress bar of commands that read a corpus, with a unit that fits its size.
#pragma once

#include <optional>

#include "base/progress.h"
#include "io/corpus.h"

namespace octet {

class ByteProgress {
 public:
  explicit ByteProgress(std::string title) : title_(std::move(title)) {}
  void update(const CorpusProgress& state, const std::string& text = "") {
    const bool large = state.total_disk_bytes >= 10'000'000;
    const int64_t unit = large ? 1'000'000 : 1'000;
    if (!bar_) bar_.emplace(ProgressOptions{title_, large ? "MB" : "kB", (state.total_disk_bytes + unit - 1) / unit});
    bar_->update((state.disk_bytes + unit - 1) / unit, text);
  }
  void finish() { bar_.reset(); }

 private:
  std::string title_;
  std::optional<Progress> bar_;
};

}  // namespace octet
