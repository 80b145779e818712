// What requests give: texts as a whole, and events of a stream.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "octet/engine.h"
#include "serve/chat_core.h"

namespace octet::python {

namespace nb = nanobind;

struct ToolCall {
  std::string id, name, arguments;  // JSON text
};

// A text of a request, as far as it has come.
struct Text {
  std::string text = {};       // of a chat: the answer
  std::string reasoning = {};  // of a chat
  std::vector<ToolCall> calls = {};
  std::vector<int32_t> ids = {};
  std::vector<TokenLogprob> logprobs = {};
  std::vector<std::vector<TokenLogprob>> top = {};
  double score = 0;
  FinishReason finished = FinishReason::kNone;
  std::string stop = {};
  int32_t stop_id = -1;
};

// All texts of a request, which share their prompt.
struct Group {
  std::string prompt = {};  // empty: given as ids
  std::vector<int32_t> prompt_ids = {};
  std::vector<TokenLogprob> prompt_logprobs = {};
  std::vector<std::vector<TokenLogprob>> prompt_top = {};
  RequestTimes times = {};
  std::vector<Text> texts = {};
  int32_t eos_id = -1;
  bool chat = false, scored = false, beams = false;  // scored: its prompt
  int64_t logprobs = -1;
  std::string call_prefix = "call_";
};

struct Generation {
  std::shared_ptr<const Group> group;
  size_t index = 0;
  const Text& text() const { return group->texts.at(index); }
};

// A request of the engine, and how its replies are read.
struct Task {
  std::shared_ptr<Group> group = std::make_shared<Group>();
  GenerationRequest request = {};
  std::optional<serve::ReplyForm> form = {};
  std::vector<std::unique_ptr<ReplyParser>> parsers = {};
  std::vector<ToolCall> open_calls = {};  // of each text: begun, not yet whole
};
// Adds the event to its text, and returns what it adds. Throws where it is an error; `where` begins the message.
Text take(Task& task, const GenerationEvent& event, const std::string& where);

struct Event {
  int64_t index = 0;
  Text more;  // of the text, since the last event
};

void bind_generation(nb::module_& module);

}  // namespace octet::python
