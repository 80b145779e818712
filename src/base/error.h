// The one exception type and the checks that throw it.
//
// Anything a user can cause (settings, files, shapes, memory) is reported by throwing octet::Error with a message that
// prints the values involved and the remedy. Nothing below tools/ calls exit or abort.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <string>
#include <utility>

namespace octet {

enum class ErrorCode {
  kInvalidArgument,  // a value given by the caller or user cannot be used
  kNotFound,         // a file, name or key does not exist
  kIo,               // the operating system refused a read or write (disk full, permission)
  kCorrupt,          // data is damaged or inconsistent
  kOutOfMemory,      // not enough memory on the machine or in the plan
  kUnsupported,      // valid, but not supported by this build or device
  kInternal,         // a broken invariant of Octet itself
};

const char* error_code_name(ErrorCode code);

class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}
  ErrorCode code() const { return code_; }
  const char* what() const noexcept override { return message_.c_str(); }
  const std::string& message() const { return message_; }

 private:
  ErrorCode code_;
  std::string message_;
};

[[noreturn]] void throw_error(ErrorCode code, std::string message);

// fail(kCorrupt, "{}: header of {} bytes exceeds the file's {}", path, header, size)
template <typename... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw_error(code, fmt::format(format, std::forward<Args>(args)...));
}

// check(rows == 3, kInvalidArgument, "rows: {} (want 3)", rows): throws when the condition is false.
template <typename... Args>
void check(bool condition, ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]]
    throw_error(code, fmt::format(format, std::forward<Args>(args)...));
}

int edit_distance(const std::string& a, const std::string& b);

// The candidate nearest to `word` by edit distance, or "" if none is close: for "did you mean".
template <typename Range>
std::string nearest_name(const std::string& word, const Range& candidates) {
  std::string best;
  int best_distance = static_cast<int>(word.size()) / 2 + 2;
  for (const auto& candidate : candidates) {
    int distance = edit_distance(word, candidate);
    if (distance < best_distance) best_distance = distance, best = candidate;
  }
  return best;
}

// `text`, such as " (nearest: {})", formatted with that candidate; "" if none is close.
template <typename Range>
std::string if_near(const std::string& word, const Range& candidates, fmt::format_string<const std::string&> text) {
  const std::string nearest = nearest_name(word, candidates);
  return nearest.empty() ? "" : fmt::format(text, nearest);
}

}  // namespace octet
