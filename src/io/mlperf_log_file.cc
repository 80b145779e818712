// The writing side of mlperf_log.h: lines and the thread that appends them.
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "io/mlperf_log.h"
#include "io/tokenizer.h"

namespace octet {
namespace {

int64_t wall_milliseconds() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

MlperfValue::MlperfValue(double value)
    : json_(std::isnan(value)   ? "NaN"
            : std::isinf(value) ? (value > 0 ? "Infinity" : "-Infinity")
                                : fmt::format("{}", value)) {}

MlperfValue::MlperfValue(const std::string& text) : json_(json_quote(text)) {}

MlperfValue MlperfValue::of_json(std::string json) {
  MlperfValue value;
  value.json_ = std::move(json);
  return value;
}

class MlperfLog::Writer {
 public:
  explicit Writer(const std::string& path) : file_(path), thread_([this] { work(); }) {}
  Writer(const Writer&) = delete;
  ~Writer() {
    change([&] { stop_ = true; });
    thread_.join();
  }
  void add(std::string record) {
    change([&] { waiting_.push_back(std::move(record)); });
  }
  void flush() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_.empty() && !writing_; });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  template <typename Change>
  void change(const Change& make) {
    const std::lock_guard lock(mutex_);
    make();
    changed_.notify_all();
  }
  // A kill may end a write between two pages: a line that would lie on both goes behind spaces to the second.
  void append(std::string record) {
    constexpr int64_t kPage = 4096;
    const int64_t left = kPage - position_ % kPage, size = std::ssize(record);
    if (size > left && size <= kPage) record.insert(0, static_cast<size_t>(left), ' ');
    file_.append(record);
    position_ += std::ssize(record);
  }
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const std::vector<std::string> records = std::exchange(waiting_, {});
      writing_ = true;
      lock.unlock();
      std::exception_ptr error;
      try {
        for (const std::string& record : records) append(record);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (error) error_ = error;
      writing_ = false;
      changed_.notify_all();
    }
  }

  AppendFile file_;
  int64_t position_ = 0;  // its size
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> waiting_;
  std::exception_ptr error_;
  bool writing_ = false, stop_ = false;
  std::thread thread_;
};

MlperfLog::MlperfLog(const std::string& path, std::function<int64_t()> now)
    : writer_((check(!path_exists(path), ErrorCode::kInvalidArgument,
                     "{} exists: results are not overwritten; name another folder, or remove it", path),
               std::make_unique<Writer>(path))),
      now_(now ? std::move(now) : wall_milliseconds) {}

MlperfLog::~MlperfLog() = default;
void MlperfLog::flush() { writer_->flush(); }

void MlperfLog::write(const char* type, const std::string& key, const MlperfValue& value, const MlperfFields& metadata,
                      const char* file, int line) {
  const char* name = std::strrchr(file, '/');
  std::string record = fmt::format(
      "{}{{\"namespace\": \"\", \"time_ms\": {}, \"event_type\": \"{}\", \"key\": {}, \"value\": {}, "
      "\"metadata\": {{\"file\": {}, \"lineno\": {}",
      kMlperfToken, now_(), type, json_quote(key), value.json(), json_quote(name == nullptr ? file : name + 1), line);
  for (const auto& [field, text] : metadata) record += fmt::format(", {}: {}", json_quote(field), text.json());
  writer_->add(record + "}}\n");
}

void MlperfLog::event(const std::string& key, const MlperfValue& value, const MlperfFields& metadata, const char* file,
                      int line) {
  write("POINT_IN_TIME", key, value, metadata, file, line);
}
void MlperfLog::start(const std::string& key, const MlperfFields& metadata, const char* file, int line) {
  write("INTERVAL_START", key, {}, metadata, file, line);
}
void MlperfLog::stop(const std::string& key, const MlperfFields& metadata, const char* file, int line) {
  write("INTERVAL_END", key, {}, metadata, file, line);
}

}  // namespace octet
