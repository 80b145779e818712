// Scalars for TensorBoard: an event file is a run of TFRecords, each one Event message. Only what scalars need is
// encoded, without a protobuf library. Sources: tensorflow/core/lib/io/record_writer.h (framing),
// tensorflow/core/util/event.proto and framework/summary.proto (field numbers).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"

namespace octet {

// Length, masked CRC-32C of the length, data, masked CRC-32C of the data.
std::string tfrecord(std::string_view data);

class EventFile {
 public:
  // Creates `folder` if needed and starts a new file events.out.tfevents.<seconds>.<host>.<pid>.<n> in it: a resumed
  // run adds a file and TensorBoard merges them.
  explicit EventFile(const std::string& folder);

  // One event with all values of a step; written to the operating system at once. `wall_seconds` 0 means now.
  void scalars(int64_t step, const std::vector<std::pair<std::string, double>>& values, double wall_seconds = 0);
  const std::string& path() const { return file_.path(); }

 private:
  AppendFile file_;
};

}  // namespace octet
