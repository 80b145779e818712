#include "chat/reply_parser.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "chat/reply_calls.h"
#include "chat/reply_scan.h"

namespace octet {

namespace {

using Kind = ReplyEvent::Kind;

constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>";

struct NamedFormat {
  std::string name;
  CallFormat (*calls)();
};

const std::vector<NamedFormat>& formats() {
  static const std::vector<NamedFormat> kFormats = {
      {"hermes", hermes_calls},      {"llama3_json", llama3_json_calls}, {"mistral", mistral_calls},
      {"granite", granite_calls},    {"qwen3_coder", qwen3_coder_calls}, {"glm4", glm4_calls},
      {"glm4_json", glm4_json_calls}};
  return kFormats;
}

CallFormat calls_of(const std::string& name) {
  if (name.empty()) return {};
  for (const NamedFormat& format : formats())
    if (format.name == name) return format.calls();
  fail(ErrorCode::kInvalidArgument, "tool call format '{}' (want one of {})", name, fmt::join(reply_formats(), ", "));
}

// Text whose white space is dropped where it stands beside reasoning or a call.
class TextTrimmer {
 public:
  explicit TextTrimmer(Kind kind) : kind_(kind) {}
  void write(std::string_view text, std::vector<ReplyEvent>& events) {
    size_t end = text.size();
    while (end > 0 && is_space(text[end - 1])) --end;
    if (end > 0) {
      if (!written_ && beside_tag_) {
        space_.clear();
        const size_t begin = std::min(text.find_first_not_of(" \n\t\r"), end);
        text.remove_prefix(begin);
        end -= begin;
      }
      if (!space_.empty()) add_event(events, kind_, space_);
      space_.clear();
      add_event(events, kind_, text.substr(0, end));
      written_ = true;
      beside_tag_ = false;
    }
    space_ += text.substr(end);
  }
  void tag() {  // here was one
    space_.clear();
    beside_tag_ = true;
  }
  void finish(std::vector<ReplyEvent>& events) {
    if (!beside_tag_ && !space_.empty()) add_event(events, kind_, space_);
    space_.clear();
  }
  bool written() const { return written_; }

 private:
  const Kind kind_;
  std::string space_ = {};  // white space not followed by anything yet
  bool written_ = false, beside_tag_ = false;
};

class TaggedReply : public ReplyParser {
 public:
  TaggedReply(const ReplyOptions& options, const nlohmann::ordered_json& tools)
      : format_(calls_of(options.format)),
        tools_(tools),
        text_tags_(joined(format_.tags, options.reasoning ? Tags{kThink} : Tags{})),
        think_tags_(joined({kThinkEnd, kThink}, format_.tags)),
        think_(options.reasoning) {
    if (options.in_reasoning && options.reasoning) open_reasoning();
  }

  void push(std::string_view text, std::vector<ReplyEvent>& events) final {
    if (place_ == Place::kText && format_.tags.empty() && (!think_ || text_.written()) && !text_tags_.holds()) {
      work_ += static_cast<int64_t>(text.size());  // nothing but text can follow
      text_.write(text, events);
      return text_.finish(events);
    }
    for (const char byte : text) step(byte, events);
  }

  void finish(std::vector<ReplyEvent>& events) final {
    if (place_ == Place::kReasoning && !held_.empty()) {  // the thought is open
      ended_ = true;
      const std::string held = std::exchange(held_, {}) + think_tags_.take();
      for (const char byte : held) step(byte, events);
    }
    if (place_ == Place::kCall) {
      const bool dropped = reader_->finish(sink_);
      settle(events);
      const std::string rest = sink_.give_up();
      settle(events);
      if (!dropped) (in_thought_ ? reasoning_ : text_).write(rest, events);
    }
    if (place_ == Place::kReasoning || in_thought_) {
      reasoning_.write(think_tags_.take(), events);
      reasoning_.finish(events);
    }
    text_.write(text_tags_.take(), events);
    text_.finish(events);
  }

  int64_t work() const final { return work_; }

 private:
  enum class Place : uint8_t { kText, kReasoning, kCall };

  using Tags = std::vector<std::string_view>;
  static constexpr size_t kMaxHeld = size_t{64} << 10;  // of a thought

  static Tags joined(Tags tags, const Tags& more) {
    tags.insert(tags.end(), more.begin(), more.end());
    return tags;
  }

  void step(char byte, std::vector<ReplyEvent>& events) {
    ++work_;
    if (place_ == Place::kText) return text_byte(byte, events);
    if (place_ == Place::kReasoning) return reasoning_byte(byte, events);
    sink_.read(byte);
    auto status = sink_.too_long() ? CallReader::Status::kBroken : reader_->push(byte, sink_);
    if (sink_.unknown()) status = CallReader::Status::kBroken;
    settle(events);
    if (status == CallReader::Status::kMore) return;
    std::string rest = sink_.give_up();
    settle(events);
    const bool thought = std::exchange(in_thought_, false);
    place_ = thought ? Place::kReasoning : Place::kText;
    const bool ended = status == CallReader::Status::kEnd;
    if (ended && read_call_) return;  // the rest is an end tag
    work_ += static_cast<int64_t>(rest.size());
    if (!ended && !rest.empty()) rest.pop_back();  // the byte that broke it may begin a tag
    (thought ? reasoning_ : text_).write(rest, events);
    if (!ended) thought ? reasoning_byte(byte, events) : text_byte(byte, events);
  }

  void text_byte(char byte, std::vector<ReplyEvent>& events) {
    if (format_.bare != nullptr && !text_.written() && !called_ && !text_tags_.holds() && format_.bare(byte, tools_))
      return open_call(-1, {&byte, 1});
    passed_.clear();
    const int tag = text_tags_.push(byte, passed_);
    work_ += static_cast<int64_t>(passed_.size());
    if (!passed_.empty()) text_.write(passed_, events);
    if (tag < 0) return;
    if (tag < static_cast<int>(format_.tags.size())) return open_call(tag, format_.tags[static_cast<size_t>(tag)]);
    if (text_.written() || called_) return text_.write(kThink, events);
    open_reasoning();
  }

  void reasoning_byte(char byte, std::vector<ReplyEvent>& events) {
    passed_.clear();
    const int tag = think_tags_.push(byte, passed_);
    work_ += static_cast<int64_t>(passed_.size());
    if (!passed_.empty()) think(passed_, events);
    if (tag == 1 && (reasoning_.written() || !held_.empty() || ended_)) return think(kThink, events);
    if (tag == 0) {
      reasoning_.write(std::exchange(held_, {}), events);
      reasoning_.tag();
      place_ = Place::kText;
    }
    if (tag < 2) return;
    const std::string_view source = format_.tags[static_cast<size_t>(tag - 2)];
    if (!ended_ && !held_.empty()) return think(source, events);
    if (!ended_) {
      held_ = source;
      return;
    }
    in_thought_ = true;
    open_call(tag - 2, source);
  }

  // More of the thought: held back behind the tag of a call.
  void think(std::string_view text, std::vector<ReplyEvent>& events) {
    if (held_.empty()) return reasoning_.write(text, events);
    held_ += text;
    if (held_.size() > kMaxHeld) reasoning_.write(std::exchange(held_, {}), events);
  }

  void open_reasoning() {
    place_ = Place::kReasoning;
    text_.tag();
    reasoning_.tag();
  }

  void open_call(int tag, std::string_view source) {
    place_ = Place::kCall;
    reader_ = format_.open(tag, tools_);
    sink_.start(source, in_thought_ ? &tools_ : nullptr);
    read_call_ = false;
    if (tag < 0) reader_->push(source.front(), sink_);
  }

  // Moves the calls that are certain to the events; white space in front of them is no text.
  void settle(std::vector<ReplyEvent>& events) {
    if (!sink_.settle(events)) return;
    called_ = read_call_ = true;
    text_.tag();
    if (std::exchange(in_thought_, false)) reasoning_.tag();
  }

  const CallFormat format_;
  const ToolTable tools_;
  TagFinder text_tags_, think_tags_;
  const bool think_;
  Place place_ = Place::kText;
  TextTrimmer text_{Kind::kText}, reasoning_{Kind::kReasoning};
  CallSink sink_ = {};
  std::unique_ptr<CallReader> reader_ = {};
  std::string passed_ = {}, held_ = {};      // held_: of a thought, from the tag of a call on
  bool called_ = false, read_call_ = false;  // there was a call, one behind the last tag
  bool ended_ = false;                       // the text has, inside of a thought
  bool in_thought_ = false;                  // the call that is read, which ends the thought if it is one
  int64_t work_ = 0;
};

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace

void add_event(std::vector<ReplyEvent>& events, Kind kind, std::string_view text) {
  if (!events.empty() && events.back().kind == kind)
    events.back().text += text;
  else
    events.push_back({kind, std::string(text)});
}

void CallSink::begin(std::string_view name) {
  events_.push_back({Kind::kCallBegin, std::string(name)});
  open_ = true;
  unknown_ |= known_ != nullptr && !known_->has(name);
}

void CallSink::end() {
  events_.push_back({Kind::kCallEnd});
  open_ = false;
  certain_ = true;
}

bool CallSink::settle(std::vector<ReplyEvent>& events) {
  if (open_ && source_.size() > kCertainBytes) certain_ = true;
  if (!certain_ || unknown_) return false;
  for (const ReplyEvent& event : events_) {
    if (event.kind == Kind::kArguments)
      add_event(events, event.kind, event.text);
    else
      events.push_back(event);
  }
  events_.clear();
  known_ = nullptr;  // more calls may be of any function
  source_.erase(0, consumed_);
  consumed_ = 0;
  certain_ = open_;
  return true;
}

std::string CallSink::give_up() {
  if (unknown_)
    open_ = certain_ = false, consumed_ = 0, events_.clear();
  else if (open_ && certain_)
    end();
  else if (open_)
    consumed_ = 0;  // none of it was a call
  if (open_) events_.clear();
  open_ = false;
  std::string rest = source_.substr(consumed_);
  source_.clear();
  consumed_ = 0;
  return rest;
}

const std::vector<std::string>& reply_formats() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names;
    for (const NamedFormat& format : formats()) names.push_back(format.name);
    return names;
  }();
  return kNames;
}

std::string find_reply_format(std::string_view chat_template) {
  if (contains(chat_template, "<function=")) return "qwen3_coder";
  if (contains(chat_template, "<arg_key>")) return "glm4";
  if (contains(chat_template, "<|observation|>") || contains(chat_template, "可用工具")) return "glm4_json";
  if (contains(chat_template, "[TOOL_CALLS]")) return "mistral";
  if (contains(chat_template, "<tool_call>")) return "hermes";
  if (contains(chat_template, "<|tool_call|>")) return "granite";
  if (contains(chat_template, "<|python_tag|>") || contains(chat_template, "Environment: ipython"))
    return "llama3_json";
  return "";
}

std::string call_tag(const std::string& format) { return std::string(calls_of(format).tags.at(0)); }

bool opens_reasoning(std::string_view prompt) {
  while (!prompt.empty() && is_space(prompt.back())) prompt.remove_suffix(1);
  return prompt.ends_with(kThink);
}

std::unique_ptr<ReplyParser> make_reply_parser(const ReplyOptions& options, const nlohmann::ordered_json& tools) {
  return std::make_unique<TaggedReply>(options, tools);
}

}  // namespace octet
