// What a chat request of any wire form becomes: messages and tools, a prompt, a request of the engine, and a reply as
// blocks of reasoning, text and calls.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "chat/reply_parser.h"
#include "serve/api.h"

namespace octet::serve {

struct ToolChoice {
  bool calls = true;      // false: the reply is text
  bool required = false;  // the reply is calls
  std::string only = {};  // of this function; empty: of any
  bool parallel = true;   // more than one
};

// Messages and tools in the form of chat completions, members in the client's order, in which templates print them.
struct ChatInput {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  nlohmann::ordered_json tools = nlohmann::ordered_json::array();
  nlohmann::ordered_json settings = nlohmann::ordered_json::object();  // other variables of the template
  ToolChoice choice = {};
  bool generation_prompt = true;
  bool continue_final = false;                            // the prompt ends with the last message's text
  std::shared_ptr<const ChatTemplate> own_template = {};  // instead of the model's
  int64_t kept = 0;                                       // of encode_within()
};
// Fields messages, tools, tool_choice, parallel_tool_calls, chat_template, chat_template_kwargs, add_generation_prompt,
// continue_final_message and truncate_prompt_tokens. Throws ApiError.
ChatInput read_chat_input(Fields& fields, const ApiModel& model);
// `name`: of the messages' field in errors. Throws ApiError.
void check_messages(const nlohmann::ordered_json& messages, const std::string& name);

// A request's messages as the template writes them.
struct ChatPrompt {
  std::string text;
  std::vector<int32_t> ids;
  bool in_reasoning = false;         // it ends inside of reasoning
  std::vector<std::string> ignored;  // settings that the template does not name: "chat_template_kwargs.name"
};
// `most`: tokens, more are an error; 0: as many as the context has.
ChatPrompt render(const ChatInput& input, const ApiModel& model, int64_t most = 0);

// How replies to a prompt are parsed.
struct ReplyForm {
  ReplyOptions options;
  nlohmann::ordered_json tools;
  std::vector<std::string> ignored = {};  // as of ChatPrompt
  std::unique_ptr<ReplyParser> parser() const { return make_reply_parser(options, tools); }
};
// Fills the prompt of a request whose sampling is read, its tokens at most (none: what the context has room for), and
// its mask: what `guide` and tool calls want of it. Thinking that the prompt has opened is free. Throws ApiError.
ReplyForm prepare_turn(const ChatInput& input, const ApiModel& model, const std::string& key,
                       std::optional<int64_t> max_tokens, const TextGuide& guide, GenerationRequest& request);

// A reply as blocks in turn, each begun, grown and ended.
struct ReplyBlock {
  enum class Kind : uint8_t { kReasoning, kText, kCall };
  Kind kind = Kind::kText;
  std::string text;  // reasoning, text, or the JSON text of a call's arguments
  std::string name;  // of a call's function
};

class BlockWatch {
 public:
  virtual ~BlockWatch() = default;
  virtual void on_begin(size_t index, const ReplyBlock& block) = 0;
  virtual void on_more(size_t index, const ReplyBlock& block, std::string_view text) = 0;
  virtual void on_end(size_t index, const ReplyBlock& block) = 0;
};

class ReplyBlocks {
 public:
  explicit ReplyBlocks(std::unique_ptr<ReplyParser> parser) : parser_(std::move(parser)) {}
  // More text of the model; `ended`: its last.
  void push(std::string_view text, bool ended, BlockWatch& watch);
  const std::vector<ReplyBlock>& blocks() const { return blocks_; }

 private:
  void begin(ReplyBlock::Kind kind, const std::string& name, BlockWatch& watch);
  void end(BlockWatch& watch);

  std::unique_ptr<ReplyParser> parser_;
  std::vector<ReplyBlock> blocks_;
  bool open_ = false;
};

}  // namespace octet::serve
