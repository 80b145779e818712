// The only file that includes spdlog: it formats the time and level and filters; console.h writes, so that log lines do
// not break the progress bar.
#include "base/log.h"

#include <spdlog/details/null_mutex.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>

#include <memory>

#include "base/console.h"

namespace octet {
namespace {

class ConsoleSink : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t buffer;
    formatter_->format(message, buffer);
    std::string line(buffer.data(), buffer.size());
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
    console_write_line(line);
  }
  void flush_() override {}
};

// Leaked on purpose: threads may still log while static objects are destroyed.
spdlog::logger& logger() {
  static spdlog::logger* instance = [] {
    auto* created = new spdlog::logger("octet", std::make_shared<ConsoleSink>());
    created->set_pattern("[%H:%M:%S.%e] %l: %v");
    created->set_level(spdlog::level::info);
    return created;
  }();
  return *instance;
}

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
    case LogLevel::kOff: return spdlog::level::off;
  }
  return spdlog::level::info;
}

}  // namespace

void set_log_level(LogLevel level) { logger().set_level(spdlog_level(level)); }

void log_line(LogLevel level, const std::string& line) { logger().log(spdlog_level(level), "{}", line); }

}  // namespace octet
