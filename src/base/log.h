// Log lines to stderr, off the hot path. spdlog sits behind this so that no other file includes it.
#pragma once

#include <fmt/format.h>

#include <string>

namespace octet {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

void set_log_level(LogLevel level);
void log_line(LogLevel level, const std::string& line);  // plays well with an active progress bar (log to a new line)

template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace octet
