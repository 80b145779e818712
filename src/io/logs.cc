#include "io/logs.h"

#include <unistd.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "io/tfrecord.h"

namespace octet {
namespace {

// Protobuf wire types.
constexpr uint32_t kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;

void put_varint(std::string* out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

void put_key(std::string* out, uint32_t field, uint32_t wire_type) { put_varint(out, field << 3 | wire_type); }

template <typename T>
void put_raw(std::string* out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out->append(bytes, sizeof(T));
}

void put_bytes(std::string* out, uint32_t field, std::string_view bytes) {
  put_key(out, field, kBytes);
  put_varint(out, bytes.size());
  out->append(bytes);
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string event_head(double wall_seconds) {
  std::string event;
  put_key(&event, 1, kFixed64);  // Event.wall_time
  put_raw(&event, wall_seconds);
  return event;
}

std::string new_path(const std::string& folder) {
  static std::atomic<int> files_of_this_process{0};
  char host[256] = "host";
  gethostname(host, sizeof host - 1);
  make_folders(folder);
  return fmt::format("{}/events.out.tfevents.{:010}.{}.{}.{}", folder, static_cast<int64_t>(now_seconds()), host,
                     getpid(), files_of_this_process++);
}

std::string json_text(const LogValue& value) {
  struct Printer {
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(int64_t number) const { return fmt::format("{}", number); }
    std::string operator()(double number) const {
      if (std::isnan(number)) return "\"nan\"";
      if (std::isinf(number)) return number > 0 ? "\"inf\"" : "\"-inf\"";
      return fmt::format("{}", number);
    }
    std::string operator()(const std::string& text) const {
      return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    }
  };
  return std::visit(Printer{}, value);
}

// Removes an incomplete last line.
std::string without_partial_line(const std::string& path) {
  make_folders(parent_folder(path));
  if (!path_exists(path)) return path;
  int64_t size = 0, kept = 0;
  {
    MappedFile map(path);
    size = map.size();
    for (kept = size; kept > 0 && map.bytes()[static_cast<size_t>(kept - 1)] != std::byte{'\n'};) --kept;
  }
  if (kept == size) return path;
  log_warning("{}: removed a partial last line of {} bytes", path, size - kept);
  std::error_code error;
  std::filesystem::resize_file(path, static_cast<uintmax_t>(kept), error);
  check(!error, ErrorCode::kIo, "{}: cannot cut off the partial last line: {}", path, error.message());
  return path;
}

}  // namespace

std::string tfrecord(std::string_view data) {
  std::string record;
  put_raw(&record, static_cast<uint64_t>(data.size()));
  put_raw(&record, masked_crc(record));
  record.append(data);
  put_raw(&record, masked_crc(data));
  return record;
}

EventFile::EventFile(const std::string& folder, int64_t first_step) : file_(new_path(folder)) {
  std::string event = event_head(now_seconds());
  put_bytes(&event, 3, "brain.Event:2");  // Event.file_version: must be the first event
  std::string session;
  put_key(&session, 1, kVarint);  // SessionLog.status
  put_varint(&session, 1);        // START
  std::string start = event_head(now_seconds());
  put_key(&start, 2, kVarint);  // Event.step
  put_varint(&start, static_cast<uint64_t>(first_step));
  put_bytes(&start, 7, session);  // Event.session_log
  file_.append(tfrecord(event) + tfrecord(start));
}

void EventFile::scalars(int64_t step, const std::vector<std::pair<std::string, double>>& values, double wall_seconds) {
  std::string summary;
  for (const auto& [tag, number] : values) {
    std::string value;
    put_bytes(&value, 1, tag);     // Summary.Value.tag
    put_key(&value, 2, kFixed32);  // Summary.Value.simple_value
    put_raw(&value, static_cast<float>(number));
    put_bytes(&summary, 1, value);  // Summary.value
  }
  std::string event = event_head(wall_seconds > 0 ? wall_seconds : now_seconds());
  put_key(&event, 2, kVarint);  // Event.step
  put_varint(&event, static_cast<uint64_t>(step));
  put_bytes(&event, 5, summary);  // Event.summary
  file_.append(tfrecord(event));
}

std::string json_line(const LogFields& fields) {
  std::string line = "{";
  for (const auto& [name, value] : fields)
    line += (line.size() > 1 ? "," : "") + json_text(name) + ":" + json_text(value);
  return line + "}";
}

JsonlLog::JsonlLog(const std::string& path) : file_(without_partial_line(path)) {}

}  // namespace octet
