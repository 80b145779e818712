// One status line for long work: bar, percentage, caller's text, time left. Silent without a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace octet {

class ProgressLine {
 public:
  explicit ProgressLine(std::string title) : title_(std::move(title)), start_(Clock::now()), shown_(start_) {}
  ~ProgressLine();  // removes the line
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Redraws at most ten times a second.
  void update(int64_t done, int64_t total, const std::string& text = "");
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  std::string title_;
  Clock::time_point start_, shown_;
};

// "12.3 MB", "4.56 M", "1m 05s": numbers as people read them.
std::string human_bytes(double bytes);
std::string human_count(double count);
std::string human_seconds(double seconds);

}  // namespace octet
