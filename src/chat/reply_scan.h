// Scanners of a text that comes byte by byte: JSON values and tags. Each byte costs a bounded number of operations.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octet {

inline bool is_space(char byte) { return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r'; }

// Of the names of functions that formats write without quotes.
bool is_name_byte(char byte);

// Whether bytes are one JSON value (RFC 8259), at most 128 deep. White space may stand in front of it, nothing behind.
class JsonScanner {
 public:
  bool push(char byte);  // false: no JSON value goes on so; the scanner is of no more use
  bool done() const;     // the value is complete (a number might still go on)
  int64_t depth() const { return static_cast<int64_t>(open_.size()); }  // objects and arrays open
  bool in_string() const { return state_ >= State::kString; }
  bool in_key() const { return in_string() && key_; }
  bool wants_value() const { return state_ == State::kValue; }  // the next byte but space begins a value

 private:
  enum class State : uint8_t {
    kValue,
    kFirstElement,
    kFirstKey,
    kKey,
    kColon,
    kNext,
    kDone,
    kLiteral,
    kMinus,
    kZero,
    kDigits,
    kPoint,
    kFraction,
    kExponent,
    kExponentSign,
    kExponentDigits,
    kString,
    kEscape,
    kUnicode,
  };
  bool begin_value(char byte);
  bool number(char byte);
  bool string(char byte);
  bool close(char byte);
  void end_value() { state_ = open_.empty() ? State::kDone : State::kNext; }

  State state_ = State::kValue;
  std::string open_ = {};          // a bracket each
  std::string_view literal_ = {};  // what is left of true, false, null
  int digits_ = 0;                 // left of \uXXXX
  bool key_ = false;               // the string is a key
};

bool is_json(std::string_view text);  // one value, white space around it or not

// Finds the first of some tags. None may be the beginning of another.
class TagFinder {
 public:
  explicit TagFinder(std::vector<std::string_view> tags) : tags_(std::move(tags)) {}
  // The index of the tag that this byte completes, else -1. Appends to `passed` what is not part of a tag.
  int push(char byte, std::string& passed);
  std::string take() { return std::exchange(held_, {}); }  // a beginning of a tag, held back
  bool holds() const { return !held_.empty(); }

 private:
  bool begins_a_tag() const;
  std::vector<std::string_view> tags_;
  std::string held_ = {};
};

// Expects one of some tags behind white space.
class TagExpected {
 public:
  static constexpr int kMore = -1, kOther = -2;
  explicit TagExpected(std::vector<std::string_view> tags) : tags_(std::move(tags)) {}
  int push(char byte);  // index of the tag complete with this byte, which starts anew; kMore; kOther: something else

 private:
  std::vector<std::string_view> tags_;
  std::string held_ = {};
};

}  // namespace octet
