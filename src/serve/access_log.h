// A line of JSON for every request, appended to a file or to stderr.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "serve/record_queue.h"

namespace octet {
struct Descriptor;
}

namespace octet::serve {

class AccessLog {
 public:
  // `path`: "-" is stderr. Throws kIo for a file that cannot be opened.
  explicit AccessLog(std::string path);

  // From any thread; does not wait. Probes that succeed are left out.
  void add(RecordQueue::Record record);
  // Opens the path again: another program has moved the file. Throws kIo, with the old file kept.
  void reopen();
  int64_t dropped() const { return queue_.dropped(); }  // lines

 private:
  void write(const std::vector<RecordQueue::Record>& records);

  const std::string path_;
  std::mutex mutex_;
  std::shared_ptr<const Descriptor> file_;
  bool failing_ = false;  // of the thread that writes
  RecordQueue queue_;
};

// The line, with everything but ASCII escaped, without its end.
std::string access_line(const RequestRecord& record);

}  // namespace octet::serve
