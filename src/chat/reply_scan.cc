#include "chat/reply_scan.h"

#include <algorithm>
#include <cctype>

namespace octet {

namespace {

constexpr size_t kMaxDepth = 128;

bool is_digit(char byte) { return byte >= '0' && byte <= '9'; }

}  // namespace

bool is_name_byte(char byte) {
  return std::isalnum(static_cast<unsigned char>(byte)) ||
         std::string_view("_-.:/").find(byte) != std::string_view::npos;
}

bool JsonScanner::push(char byte) {
  if (in_string()) return string(byte);
  if (state_ >= State::kMinus) return number(byte);
  if (state_ == State::kLiteral) {
    if (byte != literal_.front()) return false;
    literal_.remove_prefix(1);
    if (literal_.empty()) end_value();
    return true;
  }
  if (is_space(byte)) return true;
  switch (state_) {
    case State::kValue: return begin_value(byte);
    case State::kFirstElement: return byte == ']' ? close(byte) : begin_value(byte);
    case State::kFirstKey:
      if (byte == '}') return close(byte);
      [[fallthrough]];
    case State::kKey:
      state_ = State::kString;
      key_ = true;
      return byte == '"';
    case State::kColon: state_ = State::kValue; return byte == ':';
    case State::kNext:
      if (byte != ',') return close(byte);
      state_ = open_.back() == '{' ? State::kKey : State::kValue;
      return true;
    default: return false;
  }
}

bool JsonScanner::done() const {
  const bool number_ends = state_ == State::kZero || state_ == State::kDigits || state_ == State::kFraction ||
                           state_ == State::kExponentDigits;
  return state_ == State::kDone || (open_.empty() && number_ends);
}

bool JsonScanner::begin_value(char byte) {
  switch (byte) {
    case '{':
    case '[':
      if (open_.size() == kMaxDepth) return false;
      open_ += byte;
      state_ = byte == '{' ? State::kFirstKey : State::kFirstElement;
      return true;
    case '"':
      state_ = State::kString;
      key_ = false;
      return true;
    case 't': literal_ = "rue"; break;
    case 'f': literal_ = "alse"; break;
    case 'n': literal_ = "ull"; break;
    default:
      state_ = byte == '-' ? State::kMinus : byte == '0' ? State::kZero : State::kDigits;
      return byte == '-' || is_digit(byte);
  }
  state_ = State::kLiteral;
  return true;
}

bool JsonScanner::number(char byte) {
  const bool digit = is_digit(byte), exponent = byte == 'e' || byte == 'E';
  const auto go = [this](State next) {
    state_ = next;
    return true;
  };
  switch (state_) {
    case State::kMinus:
      if (digit) return go(byte == '0' ? State::kZero : State::kDigits);
      return false;
    case State::kPoint: return digit && go(State::kFraction);
    case State::kExponent:
      if (byte == '+' || byte == '-') return go(State::kExponentSign);
      [[fallthrough]];
    case State::kExponentSign: return digit && go(State::kExponentDigits);
    case State::kDigits:
      if (digit) return true;
      [[fallthrough]];
    case State::kZero:
      if (byte == '.') return go(State::kPoint);
      break;
    default:
      if (digit) return true;
  }
  if (exponent && state_ != State::kExponentDigits) return go(State::kExponent);
  end_value();  // the byte is not the number's
  return push(byte);
}

bool JsonScanner::string(char byte) {
  if (state_ == State::kUnicode) {
    if (--digits_ == 0) state_ = State::kString;
    return std::isxdigit(static_cast<unsigned char>(byte)) != 0;
  }
  if (state_ == State::kEscape) {
    state_ = byte == 'u' ? State::kUnicode : State::kString;
    digits_ = 4;
    return std::string_view("\"\\/bfnrtu").find(byte) != std::string_view::npos;
  }
  if (byte == '\\') {
    state_ = State::kEscape;
  } else if (byte == '"') {
    if (key_)
      state_ = State::kColon;
    else
      end_value();
  }
  return static_cast<unsigned char>(byte) >= 0x20;
}

bool JsonScanner::close(char byte) {
  if (open_.empty() || byte != (open_.back() == '{' ? '}' : ']')) return false;
  open_.pop_back();
  end_value();
  return true;
}

bool is_json(std::string_view text) {
  JsonScanner scanner;
  return std::all_of(text.begin(), text.end(), [&](char byte) { return scanner.push(byte); }) && scanner.done();
}

bool TagFinder::begins_a_tag() const {
  return std::any_of(tags_.begin(), tags_.end(), [this](std::string_view tag) { return tag.starts_with(held_); });
}

int TagFinder::push(char byte, std::string& passed) {
  held_ += byte;
  while (!held_.empty() && !begins_a_tag()) {
    passed += held_.front();
    held_.erase(0, 1);
  }
  const auto tag = std::find(tags_.begin(), tags_.end(), held_);
  if (tag == tags_.end()) return -1;
  held_.clear();
  return static_cast<int>(tag - tags_.begin());
}

int TagExpected::push(char byte) {
  if (held_.empty() && is_space(byte)) return kMore;
  held_ += byte;
  bool begins = false;
  for (size_t i = 0; i < tags_.size(); ++i) {
    if (tags_[i] == held_) {
      held_.clear();
      return static_cast<int>(i);
    }
    begins |= tags_[i].starts_with(held_);
  }
  return begins ? kMore : kOther;
}

}  // namespace octet
