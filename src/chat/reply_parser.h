// What a model says, parsed while it is streamed: text, reasoning, tool calls. However the text is cut, the events join
// to the same reply.
//
// A call is certain once it is complete, or well formed in its first 256 bytes and named; until then it is held back,
// and what turns out to be no call is text again, nothing lost. Function names are not compared with the tools, so the
// client may answer that there is no such function; but a bare JSON object (llama3_json without its tag) is a call of a
// given tool only. Reasoning is at the beginning of a reply; a call inside of it is reasoning, but where
// the reply ends without </think>: there a call of a given tool ends it. White space
// around reasoning and calls is dropped, but for what parts texts.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

struct ReplyEvent {
  enum class Kind : uint8_t {
    kText,       // `text` is more of the answer
    kReasoning,  // `text` is more of the reasoning
    kCallBegin,  // a call of function `text`
    kArguments,  // `text` is more of the JSON text of its arguments
    kCallEnd,
  };
  Kind kind = Kind::kText;
  std::string text = {};
};

// Not thread safe. Memory: what is held back, at most 64 KiB and a value that is no string.
class ReplyParser {
 public:
  virtual ~ReplyParser() = default;
  // Appends what is certain by now; holds back what may become a tag.
  virtual void push(std::string_view text, std::vector<ReplyEvent>& events) = 0;
  // The text has ended: what was held back, and the end of an open call. Arguments that the end cuts short stay an
  // incomplete JSON text, so that nobody takes them for the whole; a missing end tag after whole ones is forgiven.
  virtual void finish(std::vector<ReplyEvent>& events) = 0;
  // Bytes looked at so far, each time counted: proportional to the text's.
  virtual int64_t work() const = 0;
};

// hermes (also Qwen's), llama3_json, mistral, granite, qwen3_coder, glm4, glm4_json.
const std::vector<std::string>& reply_formats();
// The format that a template's source shows; empty: none of them.
std::string find_reply_format(std::string_view chat_template);
// The tag that begins a call in this format, as a rule.
std::string call_tag(const std::string& format);
// Whether a rendered prompt ends inside of reasoning that it opened: ReplyOptions::in_reasoning.
bool opens_reasoning(std::string_view prompt);

struct ReplyOptions {
  std::string format = {};    // of tool calls; empty: none are parsed
  bool reasoning = true;      // text between <think> and </think> is reasoning
  bool in_reasoning = false;  // the prompt ended inside of it
};
// `tools`: an array as in requests (chat, responses or messages), for the types of arguments that a format writes as
// bare text. Throws kInvalidArgument for an unknown format, naming those there are.
std::unique_ptr<ReplyParser> make_reply_parser(const ReplyOptions& options, const nlohmann::ordered_json& tools);

}  // namespace octet
