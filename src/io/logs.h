// The logs of a run: event files of TensorBoard, and JSON lines.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/file.h"

namespace octet {

// Length, masked CRC-32C of the length, data, masked CRC-32C of the data.
std::string tfrecord(std::string_view data);

// Scalars for TensorBoard: an event file is a run of TFRecords, each one Event message. Only what scalars need is
// encoded, without a protobuf library. Sources: tensorflow/core/lib/io/record_writer.h (framing),
// tensorflow/core/util/event.proto and framework/summary.proto (field numbers).
class EventFile {
 public:
  // Creates `folder` if needed and starts a new file events.out.tfevents.<seconds>.<host>.<pid>.<n> in it: a resumed
  // run adds a file and TensorBoard merges them. It drops what earlier files hold from `first_step` on (a SessionLog
  // START, as purge_step of PyTorch's SummaryWriter).
  explicit EventFile(const std::string& folder, int64_t first_step = 0);

  // One event with all values of a step; written to the operating system at once. `wall_seconds` 0 means now.
  void scalars(int64_t step, const std::vector<std::pair<std::string, double>>& values, double wall_seconds = 0);
  const std::string& path() const { return file_.path(); }

 private:
  AppendFile file_;
};

using LogValue = std::variant<bool, int64_t, double, std::string>;
using LogFields = std::vector<std::pair<std::string, LogValue>>;

// {"step":3,"loss":2.5}: members in the given order. JSON has no NaN or infinity: they become "nan", "inf", "-inf".
std::string json_line(const LogFields& fields);

// A log of one JSON object per line. Each line is written to the operating system at once, so a killed run loses none;
// a line cut by a crash is removed when the log is reopened.
class JsonlLog {
 public:
  explicit JsonlLog(const std::string& path);  // appends; creates the folder if needed
  void write(const LogFields& fields) { file_.append(json_line(fields) + "\n"); }
  void sync() { file_.sync(); }

 private:
  AppendFile file_;
};

}  // namespace octet
