#include "io/jsonl_log.h"

#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"

namespace octet {
namespace {

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

std::string json_line(const LogFields& fields) {
  std::string line = "{";
  for (const auto& [name, value] : fields)
    line += (line.size() > 1 ? "," : "") + json_text(name) + ":" + json_text(value);
  return line + "}";
}

JsonlLog::JsonlLog(const std::string& path) : file_(without_partial_line(path)) {}

}  // namespace octet
