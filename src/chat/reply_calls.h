// Between the parser of a reply and the readers of calls, one for each format: a reader begins behind a tag and reads
// bytes until it says that the calls have ended or that these are none.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "chat/reply_parser.h"
#include "chat/reply_tools.h"

namespace octet {

// Adds to the last event where that is of the same kind.
void add_event(std::vector<ReplyEvent>& events, ReplyEvent::Kind kind, std::string_view text);

// Takes calls from a reader and holds back those that are not certain yet, beside the text they are read from.
class CallSink {
 public:
  // From the parser.
  // `known`: only calls of these are calls.
  void start(std::string_view source, const ToolTable* known) { source_ = source, known_ = known, unknown_ = false; }
  void read(char byte) { source_ += byte; }      // before the reader sees it
  bool settle(std::vector<ReplyEvent>& events);  // moves what is certain; false: nothing is
  bool too_long() const { return source_.size() > kMaxHeld; }
  bool unknown() const { return unknown_; }  // a function that is none of the known ones
  std::string give_up();                     // ends the open call if it is certain; the text that belongs to no call

  // From the reader: begin, arguments, end, and perhaps again.
  void begin(std::string_view name);
  void arguments(std::string_view json) { add_event(events_, ReplyEvent::Kind::kArguments, json); }
  void end();
  // What was read is in the open call: it is text only if this is no call. Nothing is while no call has begun.
  void consumed() {
    if (open_) consumed_ = source_.size();
  }
  bool certain() const { return certain_; }

 private:
  static constexpr size_t kCertainBytes = 256, kMaxHeld = size_t{64} << 10;
  std::vector<ReplyEvent> events_ = {};
  std::string source_ = {};  // read, without what is in certain calls
  size_t consumed_ = 0;      // bytes of it
  const ToolTable* known_ = nullptr;
  bool open_ = false, certain_ = false, unknown_ = false;
};

class CallReader {
 public:
  enum class Status : uint8_t {
    kMore,
    kEnd,     // the byte was the last of the calls
    kBroken,  // the byte is not one of theirs
  };
  virtual ~CallReader() = default;
  virtual Status push(char byte, CallSink& sink) = 0;
  // The text has ended: end() for a call that is whole but for its end tag. True: what was not consumed is nothing but
  // separators and part of an end tag; false: it is text.
  virtual bool finish(CallSink& sink) = 0;
};

struct CallFormat {
  std::vector<std::string_view> tags = {};  // each opens calls
  // At the beginning of a reply a byte may open them too; null: none does.
  bool (*bare)(char byte, const ToolTable& tools) = nullptr;
  // `tag`: which one; -1: bare. `tools` outlives the reader.
  std::unique_ptr<CallReader> (*open)(int tag, const ToolTable& tools) = nullptr;
};

CallFormat hermes_calls();
CallFormat llama3_json_calls();
CallFormat mistral_calls();
CallFormat granite_calls();
CallFormat glm4_json_calls();
CallFormat qwen3_coder_calls();
CallFormat glm4_calls();

}  // namespace octet
