// Readers of calls written as tags with bare values: qwen3_coder, glm4. Their arguments become JSON here, as they come:
// strings byte by byte, other values when they end, by the types that the tools declare.
#include <algorithm>
#include <utility>

#include "chat/reply_calls.h"
#include "chat/reply_scan.h"

namespace octet {

namespace {

// {"key": value, ...}, written as it is known.
class ArgumentsWriter {
 public:
  void key(std::string_view key, uint8_t types, CallSink& sink) {
    std::string json = first_ ? "{\"" : ", \"";
    append_escaped(json, key);
    json += types == kJsonString ? "\": \"" : "\": ";
    sink.arguments(json);
    sink.consumed();
    first_ = false;
    types_ = types;
    held_.clear();
  }
  void value(std::string_view more, CallSink& sink) {
    sink.consumed();
    if (types_ != kJsonString) {
      held_ += more;
      return;
    }
    std::string json;
    append_escaped(json, more);
    sink.arguments(json);
  }
  void end_value(CallSink& sink) {
    sink.arguments(types_ == kJsonString ? "\"" : typed_json(held_, types_));
    sink.consumed();
  }
  void end(CallSink& sink) {
    sink.arguments(first_ ? "{}" : "}");
    sink.end();
    first_ = true;
  }
  bool empty() const { return first_; }

 private:
  bool first_ = true;
  uint8_t types_ = 0;
  std::string held_ = {};
};

// What both have: a name, then keys with values until an end.
class TagReader : public CallReader {
 public:
  bool finish(CallSink& sink) final {
    if (place_ == Place::kBetween && !arguments_.empty()) {  // whole but for its end
      arguments_.end(sink);
      return true;
    }
    return place_ == Place::kTail;
  }

 protected:
  enum class Place : uint8_t { kOpen, kName, kBetween, kKey, kBeforeValue, kValue, kTail };

  explicit TagReader(const ToolTable& tools) : tools_(tools) {}

  Status go(Place place) {
    place_ = place;
    word_.clear();
    return Status::kMore;
  }
  // A tag is expected, `found` by TagExpected: on to a place, more bytes, or nothing of a call.
  Status expect(int found, Place place) {
    if (found >= 0) return go(place);
    return found == TagExpected::kMore ? Status::kMore : Status::kBroken;
  }
  Status name_byte(char byte) {
    word_ += byte;
    return is_name_byte(byte) ? Status::kMore : Status::kBroken;
  }
  Status begin(CallSink& sink) {
    if (word_.empty()) return Status::kBroken;
    function_ = word_;
    sink.begin(function_);
    return go(Place::kBetween);
  }
  // Between values: no tag of a call's. Values are whole, so a call that is out already is closed.
  Status broken_between(CallSink& sink) {
    if (sink.certain()) arguments_.end(sink);
    return Status::kBroken;
  }
  // A byte of a key that `close` ends; its white space around does not count.
  bool key_byte(char byte, std::string_view close) {
    word_ += byte;
    if (!word_.ends_with(close)) return false;
    word_.resize(word_.size() - close.size());
    while (!word_.empty() && is_space(word_.back())) word_.pop_back();
    word_.erase(0, std::min(word_.find_first_not_of(" \n\t\r"), word_.size()));
    key_ = word_;
    return true;
  }
  Status begin_value(CallSink& sink) {
    arguments_.key(key_, tools_.types(function_, key_), sink);
    return go(Place::kValue);
  }
  // A byte of a value; the index of the tag that ends it, or -1.
  int value_byte(char byte, TagFinder& ends, CallSink& sink) {
    passed_.clear();
    const int tag = ends.push(byte, passed_);
    if (!passed_.empty()) arguments_.value(passed_, sink);
    if (tag >= 0) arguments_.end_value(sink);
    return tag;
  }
  Status end_call(CallSink& sink) {
    sink.consumed();
    arguments_.end(sink);
    return go(Place::kTail);
  }

  const ToolTable& tools_;
  Place place_ = Place::kOpen;
  std::string word_ = {}, function_ = {}, key_ = {}, passed_ = {};
  ArgumentsWriter arguments_ = {};
};

// <tool_call>name <arg_key>k</arg_key> <arg_value>v</arg_value> ... </tool_call>
class Glm4Reader : public TagReader {
 public:
  explicit Glm4Reader(const ToolTable& tools) : TagReader(tools) {}

  Status push(char byte, CallSink& sink) final {
    switch (place_) {
      case Place::kOpen:
        if (is_space(byte)) return Status::kMore;
        place_ = Place::kName;
        [[fallthrough]];
      case Place::kName:
        if (!is_space(byte) && byte != '<') return name_byte(byte);
        if (begin(sink) == Status::kBroken) return Status::kBroken;
        [[fallthrough]];
      case Place::kBetween: {
        const int tag = between_.push(byte);
        if (tag == 1) {
          arguments_.end(sink);
          return Status::kEnd;
        }
        return tag == TagExpected::kOther ? broken_between(sink) : expect(tag, Place::kKey);
      }
      case Place::kKey: return key_byte(byte, "</arg_key>") ? go(Place::kBeforeValue) : Status::kMore;
      case Place::kBeforeValue: {
        const int tag = before_value_.push(byte);
        if (tag == TagExpected::kOther) return broken_between(sink);
        return tag == 0 ? begin_value(sink) : Status::kMore;
      }
      default: return value_byte(byte, value_ends_, sink) < 0 ? Status::kMore : go(Place::kBetween);
    }
  }

 private:
  TagExpected between_{{"<arg_key>", "</tool_call>"}}, before_value_{{"<arg_value>"}};
  TagFinder value_ends_{{"</arg_value>"}};
};

// <tool_call> <function=name> <parameter=k>\nv\n</parameter> ... </function> </tool_call>; the outer tags may lack, and
// </parameter> in front of a line that begins with the next tag.
class Qwen3CoderReader : public TagReader {
 public:
  Qwen3CoderReader(const ToolTable& tools, bool in_function) : TagReader(tools) {
    if (in_function) place_ = Place::kName;
  }

  Status push(char byte, CallSink& sink) final {
    switch (place_) {
      case Place::kOpen: return expect(open_.push(byte), Place::kName);
      case Place::kName: return byte == '>' ? begin(sink) : name_byte(byte);
      case Place::kBetween: {
        const int tag = between_.push(byte);
        if (tag == 1) return end_call(sink);
        return tag == TagExpected::kOther ? broken_between(sink) : expect(tag, Place::kKey);
      }
      case Place::kKey:
        if (!key_byte(byte, ">")) return Status::kMore;
        first_ = true;
        return begin_value(sink);
      case Place::kValue: {
        const bool skip = std::exchange(first_, false) && byte == '\n';
        switch (skip ? -1 : value_byte(byte, value_ends_, sink)) {
          case -1: return Status::kMore;
          case 0:
          case 1: return go(Place::kBetween);
          case 2: return go(Place::kKey);
          default: return end_call(sink);
        }
      }
      default: {
        const int tag = tail_.push(byte);
        return tag == 0 ? Status::kEnd : expect(tag, Place::kName);
      }
    }
  }

 private:
  TagExpected open_{{"<function="}}, between_{{"<parameter=", "</function>"}}, tail_{{"</tool_call>", "<function="}};
  TagFinder value_ends_{{"</parameter>", "\n</parameter>", "\n<parameter=", "\n</function>"}};
  bool first_ = true;  // of a value
};

}  // namespace

CallFormat glm4_calls() {
  return {.tags = {"<tool_call>"}, .open = [](int, const ToolTable& tools) -> std::unique_ptr<CallReader> {
            return std::make_unique<Glm4Reader>(tools);
          }};
}

CallFormat qwen3_coder_calls() {
  return {.tags = {"<tool_call>", "<function="},
          .open = [](int tag, const ToolTable& tools) -> std::unique_ptr<CallReader> {
            return std::make_unique<Qwen3CoderReader>(tools, tag == 1);
          }};
}

}  // namespace octet
