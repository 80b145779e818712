// Readers of calls written as JSON: hermes, llama3_json, mistral, granite, glm4_json. Arguments are the model's own
// text.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "chat/reply_calls.h"
#include "chat/reply_scan.h"

namespace octet {

namespace {

// {"name": ..., "arguments" or "parameters": {...}}, in any order; other members are skipped. Arguments may be a string
// that holds their JSON.
class CallObject {
 public:
  // `bare`: nothing but its members shows that it is a call, so they are those of a call, and of a given tool.
  CallObject(const ToolTable& tools, bool bare) : tools_(tools), bare_(bare) {}

  // False: this is no call. The closing brace ends the call.
  bool push(char byte, CallSink& sink) {
    const bool begins_value = scanner_.depth() == 1 && scanner_.wants_value() && !is_space(byte);
    const bool in_word = scanner_.depth() == 1 && (scanner_.in_key() || part_ == Part::kName || part_ == Part::kText);
    if (!scanner_.push(byte)) return false;
    if (part_ == Part::kArguments) return argument(byte, sink);
    if (scanner_.done()) return close(sink);
    if (begins_value) return begin_value(byte, sink);
    if (in_word) {
      word_ += byte;
      if (!scanner_.in_string()) return end_word(sink);
    } else if (scanner_.depth() == 1 && scanner_.in_key()) {
      word_ = byte;
    }
    return true;
  }
  bool done() const { return scanner_.done(); }
  bool whole() const { return !name_.empty() && has_arguments_; }  // perhaps without its closing brace

 private:
  enum class Part : uint8_t { kOther, kName, kArguments, kText };  // kText: arguments in a string

  bool begin_value(char byte, CallSink& sink) {
    if (key_ == "name") {
      part_ = Part::kName;
      word_ = byte;
      return byte == '"' && name_.empty();
    }
    if (key_ != "arguments" && key_ != "parameters") return true;
    part_ = byte == '"' ? Part::kText : Part::kArguments;
    word_ = byte;
    if (has_arguments_ || (byte != '{' && byte != '"')) return false;
    if (part_ == Part::kText) return true;
    if (!name_.empty()) sink.begin(name_);
    return argument(byte, sink);
  }

  bool argument(char byte, CallSink& sink) {
    if (name_.empty())
      held_ += byte;
    else
      sink.arguments({&byte, 1});
    sink.consumed();
    if (scanner_.depth() == 1) {
      part_ = Part::kOther;
      has_arguments_ = true;
    }
    return true;
  }

  bool end_word(CallSink& sink) {
    const auto parsed = nlohmann::json::parse(word_, nullptr, false);
    if (!parsed.is_string()) return false;
    if (part_ == Part::kText) return text_arguments(parsed.get<std::string>(), sink);
    if (part_ != Part::kName) {
      static constexpr std::array kMembers = {"name", "arguments", "parameters", "type", "id"};
      key_ = parsed.get<std::string>();
      return !bare_ || std::find(kMembers.begin(), kMembers.end(), key_) != kMembers.end();
    }
    part_ = Part::kOther;
    const std::string name = parsed.get<std::string>();
    if (name.empty() || (bare_ && !tools_.has(name))) return false;
    name_ = name;
    if (has_arguments_) {
      sink.begin(name_);
      sink.arguments(held_);
      sink.consumed();
    }
    return true;
  }

  bool text_arguments(const std::string& text, CallSink& sink) {
    part_ = Part::kOther;
    held_ = text.substr(std::min(text.find_first_not_of(" \n\t\r"), text.size()));
    while (!held_.empty() && is_space(held_.back())) held_.pop_back();
    if (!held_.starts_with('{') || !is_json(held_)) return false;
    has_arguments_ = true;
    if (name_.empty()) return true;
    sink.begin(name_);
    sink.arguments(held_);
    sink.consumed();
    return true;
  }

  bool close(CallSink& sink) {
    if (name_.empty() || (bare_ && !has_arguments_)) return false;
    if (!has_arguments_) {
      sink.begin(name_);
      sink.arguments("{}");
    }
    sink.consumed();
    sink.end();
    return true;
  }

  const ToolTable& tools_;
  const bool bare_;
  JsonScanner scanner_ = {};
  Part part_ = Part::kOther;
  std::string word_ = {}, key_ = {}, name_ = {}, held_ = {};  // held_: arguments in front of the name
  bool has_arguments_ = false;
};

// Objects and what stands around them; formats say what that is.
class ObjectReader : public CallReader {
 public:
  ObjectReader(const ToolTable& tools, bool bare) : tools_(tools), bare_(bare) {}

  Status push(char byte, CallSink& sink) final {
    if (!object_) return outside(byte, sink);
    if (!object_->push(byte, sink)) {
      if (!object_->whole()) return Status::kBroken;
      end(sink);
      return outside(byte, sink);
    }
    if (object_->done()) end();
    return Status::kMore;
  }
  bool finish(CallSink& sink) override {
    if (object_ && object_->whole()) end(sink);
    return !object_ && ended_;
  }

 protected:
  virtual Status outside(char byte, CallSink& sink) = 0;
  Status begin(char byte, CallSink& sink) {
    if (byte != '{') return Status::kBroken;
    object_.emplace(tools_, bare_);
    object_->push(byte, sink);
    return Status::kMore;
  }
  bool ended() const { return ended_; }

 private:
  void end() {
    object_.reset();
    ended_ = true;
  }
  void end(CallSink& sink) {  // without a closing brace
    sink.end();
    end();
  }

  const ToolTable& tools_;
  const bool bare_;
  std::optional<CallObject> object_ = {};
  bool ended_ = false;  // an object
};

// <tool_call>{...}</tool_call>
class HermesReader : public ObjectReader {
 public:
  explicit HermesReader(const ToolTable& tools) : ObjectReader(tools, false) {}

 protected:
  Status outside(char byte, CallSink& sink) override {
    if (!ended()) return is_space(byte) ? Status::kMore : begin(byte, sink);
    const int tag = end_.push(byte);
    return tag == 0 ? Status::kEnd : tag == TagExpected::kMore ? Status::kMore : Status::kBroken;
  }

 private:
  TagExpected end_{{"</tool_call>"}};
};

// {...}; {...}
class Llama3Reader : public ObjectReader {
 public:
  using ObjectReader::ObjectReader;

 protected:
  Status outside(char byte, CallSink& sink) override {
    if (is_space(byte) || (byte == ';' && ended())) return Status::kMore;
    return begin(byte, sink);
  }
};

// [{...}, {...}], {...} or name{...}, name[ARGS]{...}, name[CALL_ID]id[ARGS]{...}
class MistralReader : public ObjectReader {
 public:
  explicit MistralReader(const ToolTable& tools) : ObjectReader(tools, false) {}

  bool finish(CallSink& sink) override { return ObjectReader::finish(sink) && place_ == Place::kList; }

 protected:
  Status outside(char byte, CallSink& sink) override {
    if (place_ == Place::kArguments) return argument(byte, sink);
    if (place_ == Place::kMarker) return marker(byte);
    if (place_ == Place::kCallId) {
      if (byte == '[') return mark(byte);
      return is_name_byte(byte) ? Status::kMore : Status::kBroken;
    }
    if (place_ == Place::kName) return name(byte, sink);
    if (is_space(byte)) return Status::kMore;
    if (place_ == Place::kList) {
      if (byte == ']') return Status::kEnd;
      if (byte == ',') return ended() ? Status::kMore : Status::kBroken;
      return begin(byte, sink);
    }
    place_ = byte == '[' || byte == '{' ? Place::kList : Place::kName;
    if (byte == '[') return Status::kMore;
    return byte == '{' ? begin(byte, sink) : name(byte, sink);
  }

 private:
  enum class Place : uint8_t { kBegin, kList, kName, kMarker, kCallId, kArguments };

  Status mark(char byte) {
    place_ = Place::kMarker;
    marker_ = byte;
    return Status::kMore;
  }

  Status name(char byte, CallSink& sink) {
    if (is_name_byte(byte)) {
      name_ += byte;
      return Status::kMore;
    }
    if (name_.empty()) return Status::kBroken;
    if (byte == '[') return mark(byte);
    place_ = Place::kArguments;
    return argument(byte, sink);
  }

  Status marker(char byte) {
    marker_ += byte;
    if (marker_ == "[ARGS]") place_ = Place::kArguments;
    if (marker_ == "[CALL_ID]") place_ = Place::kCallId;
    const bool begins =
        std::string_view("[ARGS]").starts_with(marker_) || std::string_view("[CALL_ID]").starts_with(marker_);
    return begins ? Status::kMore : Status::kBroken;
  }

  Status argument(char byte, CallSink& sink) {
    if (arguments_.depth() == 0) {
      if (is_space(byte)) return Status::kMore;
      if (byte != '{') return Status::kBroken;
      sink.begin(name_);
    }
    if (!arguments_.push(byte)) return Status::kBroken;
    sink.arguments({&byte, 1});
    sink.consumed();
    if (!arguments_.done()) return Status::kMore;
    sink.end();
    return Status::kEnd;
  }

  Place place_ = Place::kBegin;
  std::string name_ = {}, marker_ = {};
  JsonScanner arguments_ = {};
};

// name, line end, {...}: of a given tool; more of them behind a tag or white space.
class NameLineReader : public CallReader {
 public:
  NameLineReader(const ToolTable& tools, bool tagged) : tools_(tools), tagged_(tagged) {}

  Status push(char byte, CallSink& sink) final {
    switch (place_) {
      case Place::kBetween:
        if (is_space(byte) && tag_.empty()) return Status::kMore;
        if (tag_.empty() && byte != kTag.front()) {
          place_ = Place::kName;
          name_.clear();
          return push(byte, sink);
        }
        tag_ += byte;
        if (tag_ == kTag) tag_.clear();
        return kTag.starts_with(tag_) ? Status::kMore : Status::kBroken;
      case Place::kName:
        if (tagged_ && name_.empty() && is_space(byte)) return Status::kMore;
        if (byte == '\n' && tools_.has(name_)) {
          place_ = Place::kArguments;
          arguments_ = {};
          return Status::kMore;
        }
        name_ += byte;
        return tools_.begins(name_) ? Status::kMore : Status::kBroken;
      default: return argument(byte, sink);
    }
  }
  bool finish(CallSink&) final { return place_ == Place::kBetween; }

  static constexpr std::string_view kTag = "<|assistant|>";

 private:
  enum class Place : uint8_t { kName, kArguments, kBetween };

  Status argument(char byte, CallSink& sink) {
    if (arguments_.depth() == 0) {
      if (is_space(byte)) return Status::kMore;
      if (byte != '{') return Status::kBroken;
      sink.begin(name_);
    }
    if (!arguments_.push(byte)) return Status::kBroken;
    sink.arguments({&byte, 1});
    sink.consumed();
    if (!arguments_.done()) return Status::kMore;
    sink.end();
    place_ = Place::kBetween;
    return Status::kMore;
  }

  const ToolTable& tools_;
  const bool tagged_;
  Place place_ = Place::kName;
  std::string name_ = {}, tag_ = {};
  JsonScanner arguments_ = {};
};

}  // namespace

CallFormat hermes_calls() {
  return {.tags = {"<tool_call>"}, .open = [](int, const ToolTable& tools) -> std::unique_ptr<CallReader> {
            return std::make_unique<HermesReader>(tools);
          }};
}

CallFormat llama3_json_calls() {
  return {.tags = {"<|python_tag|>"},
          .bare = [](char byte, const ToolTable&) { return byte == '{'; },
          .open = [](int tag, const ToolTable& tools) -> std::unique_ptr<CallReader> {
            return std::make_unique<Llama3Reader>(tools, tag < 0);
          }};
}

CallFormat mistral_calls() {
  return {.tags = {"[TOOL_CALLS]"}, .open = [](int, const ToolTable& tools) -> std::unique_ptr<CallReader> {
            return std::make_unique<MistralReader>(tools);
          }};
}

CallFormat granite_calls() {
  CallFormat format = mistral_calls();
  format.tags = {"<|tool_call|>", "<tool_call>"};
  return format;
}

CallFormat glm4_json_calls() {
  return {.tags = {NameLineReader::kTag},
          .bare =
              [](char byte, const ToolTable& tools) {
                return tools.begins({&byte, 1});
              },
          .open = [](int tag, const ToolTable& tools) -> std::unique_ptr<CallReader> {
            return std::make_unique<NameLineReader>(tools, tag >= 0);
          }};
}

}  // namespace octet
