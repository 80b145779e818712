// Log lines to stderr, not for hot paths: "[12:34:56.789] info: ...".
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <string>
#include <utility>

namespace octet {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

void set_log_level(LogLevel level);
void set_thread_log_level(LogLevel level);  // of this thread, where it is higher: ranks but the first say less
void log_line(LogLevel level, const std::string& line);  // written above an active progress bar

template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}

// Logs its lifetime at debug level: "weights: 1.42 s". For the parts of a start (octet generate -v), not for frequent
// operations.
class LoggedTime {
 public:
  explicit LoggedTime(std::string what) : what_(std::move(what)), begin_(Clock::now()) {}
  LoggedTime(const LoggedTime&) = delete;
  ~LoggedTime() { log_debug("{}: {:.3f} s", what_, seconds()); }

  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

 private:
  using Clock = std::chrono::steady_clock;

  std::string what_;
  Clock::time_point begin_;
};

}  // namespace octet
