// A log of one JSON object per line. Each line is written to the operating system at once, so a killed run loses none;
// a line cut by a crash is removed when the log is reopened.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/file.h"

namespace octet {

using LogValue = std::variant<bool, int64_t, double, std::string>;
using LogFields = std::vector<std::pair<std::string, LogValue>>;

// {"step":3,"loss":2.5}: members in the given order. JSON has no NaN or infinity: they become "nan", "inf", "-inf".
std::string json_line(const LogFields& fields);

class JsonlLog {
 public:
  explicit JsonlLog(const std::string& path);  // appends; creates the folder if needed
  void write(const LogFields& fields) { file_.append(json_line(fields) + "\n"); }
  void sync() { file_.sync(); }

 private:
  AppendFile file_;
};

}  // namespace octet
