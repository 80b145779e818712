// Log lines and progress bars (base/log.h, base/progress.h) on the terminal they share: lines scroll above one status
// line. Thread safe. Everything is written to stderr; stdout is for results.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <mutex>

#include "base/log.h"
#include "base/progress.h"

namespace octet {
namespace {

struct Console {
  std::mutex mutex;
  std::string status;
};

// Leaked on purpose: threads may still log while static objects are destroyed.
Console& console() {
  static Console* instance = new Console;
  return *instance;
}

void write_all(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

constexpr const char* kClearLine = "\r\x1b[K";

bool console_is_terminal() {
  static const bool terminal = isatty(STDERR_FILENO) == 1;
  return terminal;
}

// Columns; 100 when unknown.
int console_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 100;
}

// Writes a line above the status line.
void console_write_line(const std::string& line) {
  Console& shared = console();
  std::lock_guard lock(shared.mutex);
  write_all(shared.status.empty() ? line + "\n" : kClearLine + line + "\n" + shared.status);
}

// Shows `status` on the bottom line in place of the previous one; "" removes it. Does nothing without a terminal.
void console_set_status(const std::string& status) {
  if (!console_is_terminal()) return;
  Console& shared = console();
  std::lock_guard lock(shared.mutex);
  if (status.empty() && shared.status.empty()) return;
  shared.status = status;
  write_all(kClearLine + status);
}

std::atomic<LogLevel> least_level{LogLevel::kInfo};
thread_local LogLevel least_level_of_thread = LogLevel::kDebug;

constexpr double kRedrawSeconds = 0.1;
constexpr int kBarColumns = 24, kMinimumBarColumns = 8;

std::string clock_text(double seconds) {
  if (!(seconds < 1e8)) return "?";
  const int64_t whole = std::llround(seconds);
  int64_t hours = whole / 3600, minutes = whole / 60 % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60)
                   : fmt::format("{}:{:02}", minutes, whole % 60);
}

std::string rate_text(double rate, const std::string& unit) {
  if (!(rate > 0)) return "";
  if (rate < 1) return fmt::format(" {:.2f} s/{}", 1 / rate, unit);
  if (rate >= 1e6) return fmt::format(" {:.2f}M {}/s", rate / 1e6, unit);
  if (rate >= 1e4) return fmt::format(" {:.1f}k {}/s", rate / 1e3, unit);
  return fmt::format(" {:.1f} {}/s", rate, unit);
}

double seconds_between(std::chrono::steady_clock::time_point a, std::chrono::steady_clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

}  // namespace

void set_log_level(LogLevel level) { least_level = level; }
void set_thread_log_level(LogLevel level) { least_level_of_thread = level; }

void log_line(LogLevel level, const std::string& line) {
  if (level < least_level || level < least_level_of_thread) return;
  static constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
  const auto now = std::chrono::system_clock::now();
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm time{};
  console_write_line(fmt::format("[{:%H:%M:%S}.{:03}] {}: {}", *localtime_r(&seconds, &time), milliseconds % 1000,
                                 kNames[static_cast<int>(level)], line));
}

std::string progress_line(const ProgressOptions& options, int64_t done, double seconds, const std::string& text,
                          int width) {
  const double rate = seconds > 0 ? static_cast<double>(done - options.start) / seconds : 0;
  std::string tail = options.total > 0 ? fmt::format(" {}/{}", done, options.total) : fmt::format(" {}", done);
  tail += rate_text(rate, options.unit) + " " + clock_text(seconds);
  if (options.total > done && rate > 0) tail += "<" + clock_text(static_cast<double>(options.total - done) / rate);
  if (!text.empty()) tail += "  " + text;
  std::string bar;
  if (width > 0 && options.total > 0) {
    int room = width - static_cast<int>(options.title.size() + tail.size()) - 4;
    int columns = std::min(room, kBarColumns);
    if (columns >= kMinimumBarColumns) {
      double fraction = std::clamp(static_cast<double>(done) / static_cast<double>(options.total), 0.0, 1.0);
      int filled = static_cast<int>(fraction * columns);
      bar = " [" + std::string(filled, '#') + std::string(columns - filled, '.') + "]";
    }
  }
  std::string line = options.title + bar + tail;
  if (width > 0 && static_cast<int>(line.size()) >= width) line.resize(std::max(width - 1, 0));
  return line;
}

Progress::Progress(ProgressOptions options) : options_(std::move(options)), done_(options_.start) {
  begin_ = Clock::now();
  drawn_ = begin_ - std::chrono::hours(1);
  if (!console_is_terminal()) drawn_ = begin_;  // the first plain line after one interval
}

Progress::~Progress() { finish(); }

void Progress::update(int64_t done, const std::string& text) {
  done_ = done;
  if (!text.empty()) text_ = text;
  if (finished_) return;
  Clock::time_point now = Clock::now();
  const bool terminal = console_is_terminal();
  if (seconds_between(drawn_, now) < (terminal ? kRedrawSeconds : options_.plain_seconds)) return;
  drawn_ = now;
  double elapsed = seconds_between(begin_, now);
  if (terminal)
    console_set_status(progress_line(options_, done_, elapsed, text_, console_width()));
  else
    console_write_line(progress_line(options_, done_, elapsed, text_, 0));
}

void Progress::finish() {
  if (finished_) return;
  finished_ = true;
  console_set_status("");
  console_write_line(progress_line(options_, done_, seconds_between(begin_, Clock::now()), text_, 0));
}

}  // namespace octet
