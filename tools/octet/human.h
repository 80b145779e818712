// Human-readable numbers for the commands' output: "12.3 MB", "4.56 M", "1m 05s"; and the progress of reading text.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "base/progress.h"
#include "io/corpus.h"

namespace octet {

inline std::string human_number(double value, const char* unit) {
  static constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P"};
  size_t prefix = 0;
  while (std::abs(value) >= 1000 && prefix + 1 < std::size(kPrefixes)) value /= 1000, ++prefix;
  const int digits = prefix == 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  const char* space = prefix == 0 && *unit == '\0' ? "" : " ";
  return fmt::format("{:.{}f}{}{}{}", value, digits, space, kPrefixes[prefix], unit);
}

inline std::string human_bytes(int64_t bytes) { return human_number(static_cast<double>(bytes), "B"); }
inline std::string human_count(int64_t count) { return human_number(static_cast<double>(count), ""); }

inline std::string human_seconds(double seconds) {
  if (seconds < 10) return fmt::format("{:.1f}s", seconds);
  const int64_t whole = std::llround(seconds);
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  return fmt::format("{}h {:02}m", whole / 3600, whole / 60 % 60);
}

// Progress bar of commands that read a corpus, with a unit that fits its size.
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

// A bar for each stage or file of a job, the one behind the other.
class StageProgress {
 public:
  void update(const std::string& title, const CorpusProgress& state) {
    if (title != title_) bar_.emplace(title_ = title);
    bar_->update(state);
  }
  void finish() { bar_.reset(); }

 private:
  std::string title_;
  std::optional<ByteProgress> bar_;
};

}  // namespace octet
