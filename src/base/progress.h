// A progress bar: count/total, rate, time left and a free-text field such as "loss 2.31". On a terminal one line is
// redrawn at most ten times a second below the log lines; otherwise a plain line is printed every `plain_seconds`.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace octet {

struct ProgressOptions {
  std::string title;          // "train"
  std::string unit = "it";    // rate is printed as unit/s, or s/unit when slow
  int64_t total = 0;          // 0: unknown, no bar and no time left
  int64_t start = 0;          // where a resumed run begins: rate and time left count from here
  double plain_seconds = 30;  // between plain lines without a terminal
};

class Progress {
 public:
  explicit Progress(ProgressOptions options);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();  // finish()

  void update(int64_t done, const std::string& text = "");  // cheap: call it every step; one thread at a time
  void finish();                                            // prints a last line; later calls do nothing

 private:
  using Clock = std::chrono::steady_clock;

  ProgressOptions options_;
  Clock::time_point begin_, drawn_;
  int64_t done_;
  std::string text_;
  bool finished_ = false;
};

// The line itself, pure: what a bar of `width` columns shows after `seconds`. width 0 leaves the bar out.
std::string progress_line(const ProgressOptions& options, int64_t done, double seconds, const std::string& text,
                          int width);

}  // namespace octet
