#include "serve/access_log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "serve/api.h"

namespace octet::serve {
namespace {

std::shared_ptr<const Descriptor> open_log(const std::string& path) {
  const int opened = path == "-" ? ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3)
                                 : ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
  check(opened >= 0, ErrorCode::kIo, "access log {}: {} (want a writable file, or -)", path, std::strerror(errno));
  return std::make_shared<const Descriptor>(opened);
}

bool write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

double microseconds(double seconds) { return std::round(seconds * 1e6) / 1e6; }

}  // namespace

std::string access_line(const RequestRecord& record) {
  const auto second = static_cast<std::time_t>(record.time);
  const auto thousandth = static_cast<int>((record.time - static_cast<double>(second)) * 1e3);
  nlohmann::ordered_json line = {
      {"time", fmt::format("{:%FT%T}.{:03}Z", fmt::gmtime(second), thousandth)},
      {"request_id", record.id},
      {"peer", record.peer},
      {"method", record.method},
      {"path", record.path},
      {"status", record.outcome.status},
      {"bytes", record.outcome.bytes},
      {"seconds", microseconds(record.outcome.seconds)},
      {"first_byte_seconds", microseconds(record.outcome.first_byte)},
  };
  if (!record.trace.trace.empty()) line["trace_id"] = record.trace.trace;
  if (!record.key.empty()) line["key"] = record.key;
  if (!record.finished.empty()) {
    line["prompt_tokens"] = record.prompt_tokens, line["cached_tokens"] = record.cached_tokens;
    line["output_tokens"] = record.output_tokens, line["finish_reason"] = finish_name(record.finished.back());
  }
  if (!record.error.empty()) line["error"] = record.error;
  return line.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::ordered_json::error_handler_t::replace);
}

AccessLog::AccessLog(std::string path)
    : path_(std::move(path)), file_(open_log(path_)), queue_({}, [this](const auto& records) { write(records); }) {}

void AccessLog::add(RecordQueue::Record record) {
  if (!record->probe || record->outcome.status >= 400) queue_.add(std::move(record));
}

void AccessLog::reopen() {
  auto file = open_log(path_);
  const std::lock_guard lock(mutex_);
  file_ = std::move(file);
}

void AccessLog::write(const std::vector<RecordQueue::Record>& records) {
  std::string lines;
  for (const RecordQueue::Record& record : records) lines += access_line(*record) + '\n';
  std::shared_ptr<const Descriptor> file;
  {
    const std::lock_guard lock(mutex_);
    file = file_;
  }
  const bool failed = !write_all(file->value, lines);
  if (failed) queue_.drop(records.size());
  if (failed && !failing_) log_warning("access log {}: {}; lines are lost", path_, std::strerror(errno));
  failing_ = failed;
}

}  // namespace octet::serve
