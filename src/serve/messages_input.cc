#include "serve/messages_input.h"

#include <fmt/format.h>

#include <functional>

#include "base/json.h"

namespace octet::serve {
namespace {

using Json = nlohmann::ordered_json;

std::string wanted(Fields& fields, const char* key) {
  const std::optional<std::string> text = fields.text(key);
  if (!text) fields.fail(key, "want a string");
  return *text;
}

// Calls `take` with the type and members of each block of a content; a text is one block.
using TakeBlock = std::function<void(const std::string& type, Fields& block)>;
void each_block(const Json& content, const std::string& name, const TakeBlock& take) {
  if (content.is_string()) {
    const Json block = {{"text", content}};
    Fields fields(block, name + ".");
    return take("text", fields);
  }
  if (!content.is_array()) throw ApiError(name + ": want a string or a list of blocks", name);
  for (size_t i = 0; i < content.size(); ++i) {
    Fields fields(content[i], fmt::format("{}[{}].", name, i));
    take(wanted(fields, "type"), fields);
  }
}

Json text_part(const std::string& text) { return {{"type", "text"}, {"text", text}}; }

// Messages in the making: contents are lists of parts until they are taken.
class Conversation {
 public:
  // Adds the blocks of a message.
  void add(const std::string& role, const Json& content, const std::string& name) {
    each_block(content, name, [&](const std::string& type, Fields& block) {
      if (type == "text") {
        turn(role)["content"].push_back(text_part(wanted(block, "text")));
      } else if (role == "user" && type == "tool_result") {
        add_result(block);
      } else if (role == "assistant" && type == "thinking") {
        Json& thought = turn(role)["reasoning_content"];
        thought =
            thought.is_null() ? wanted(block, "thinking") : thought.get<std::string>() + wanted(block, "thinking");
      } else if (role == "assistant" && type == "tool_use") {
        add_call(block);
      } else if (role != "assistant" || type != "redacted_thinking") {  // which nobody can read
        block.fail("type", role == "user"     ? "want text or tool_result: images and documents are not supported"
                           : role == "system" ? "want text"
                                              : "want text, thinking, redacted_thinking or tool_use");
      }
    });
  }

  Json take() {
    for (Json& message : messages_) {
      Json& content = message["content"];
      if (content.size() == 1) content = Json(content[0]["text"]);
      if (content.empty()) content = message["role"] == "tool" ? Json("") : Json();
    }
    return std::move(messages_);
  }

 private:
  // The last message: neighbours of one role are one turn.
  Json& turn(const std::string& role) {
    if (messages_.empty() || messages_.back()["role"] != role)
      messages_.push_back({{"role", role}, {"content", Json::array()}});
    return messages_.back();
  }

  void add_call(Fields& block) {
    const Json* input = block.find("input");
    if (input == nullptr || !input->is_object()) block.fail("input", "want an object");
    Json function = {{"name", wanted(block, "name")}, {"arguments", *input}};
    turn("assistant")["tool_calls"].push_back(
        {{"id", wanted(block, "id")}, {"type", "function"}, {"function", std::move(function)}});
  }

  void add_result(Fields& block) {
    Json parts = Json::array();
    if (block.flag("is_error").value_or(false)) parts.push_back(text_part("Error:"));
    if (const Json* content = block.find("content"))
      each_block(*content, block.name_of("content"), [&](const std::string& type, Fields& inner) {
        if (type != "text") inner.fail("type", "want text: images and documents are not supported");
        parts.push_back(text_part(wanted(inner, "text")));
      });
    messages_.push_back(
        {{"role", "tool"}, {"tool_call_id", wanted(block, "tool_use_id")}, {"content", std::move(parts)}});
  }

  Json messages_ = Json::array();
};

Json read_messages(Fields& fields) {
  Conversation conversation;
  if (const Json* system = fields.find("system")) conversation.add("system", *system, "system");
  const Json* given = fields.find("messages");
  if (given == nullptr || !given->is_array() || given->empty())
    fields.fail("messages", "want a list of at least one message");
  for (size_t i = 0; i < given->size(); ++i) {
    Fields message((*given)[i], fmt::format("messages[{}].", i));
    const std::string role = wanted(message, "role");
    if (role != "user" && role != "assistant" && role != "system")
      message.fail("role", "want user, assistant or system");
    if (role == "assistant" && i + 1 == given->size())
      message.fail("role", "continuing the last message is not supported: end with a message of the user");
    const Json* content = message.find("content");
    if (content == nullptr) message.fail("content", "want a string or a list of blocks");
    conversation.add(role, *content, message.name_of("content"));
  }
  Json messages = conversation.take();
  if (messages.empty()) fields.fail("messages", "want a message with content");
  return messages;
}

Json read_tools(Fields& fields) {
  Json tools = Json::array();
  const Json* given = fields.find("tools");
  if (given == nullptr) return tools;
  if (!given->is_array()) fields.fail("tools", "want a list of tools");
  for (size_t i = 0; i < given->size(); ++i) {
    Fields tool((*given)[i], fmt::format("tools[{}].", i));
    if (tool.text("type").value_or("custom") != "custom")
      tool.fail("type", "want custom: Anthropic's built-in tools are not supported");
    Json function = {{"name", wanted(tool, "name")}};
    if (const auto description = tool.text("description")) function["description"] = *description;
    const Json* schema = tool.find("input_schema");
    if (schema == nullptr || !schema->is_object()) tool.fail("input_schema", "want a JSON schema as an object");
    function["parameters"] = *schema;
    if (const auto strict = tool.flag("strict")) function["strict"] = *strict;
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return tools;
}

ToolChoice read_tool_choice(Fields& fields) {
  const Json* given = fields.find("tool_choice");
  if (given == nullptr) return {};
  Fields inner(*given, "tool_choice.");
  const std::string type = wanted(inner, "type");
  if (type != "auto" && type != "any" && type != "tool" && type != "none")
    inner.fail("type", "want auto, any, tool or none");
  return {.calls = type != "none",
          .required = type == "any" || type == "tool",
          .only = type == "tool" ? wanted(inner, "name") : "",
          .parallel = !inner.flag("disable_parallel_tool_use").value_or(false)};
}

// What the template's setting enable_thinking becomes, where it has one.
std::optional<bool> read_thinking(Fields& fields) {
  const Json* given = fields.find("thinking");
  if (given == nullptr) return std::nullopt;
  Fields inner(*given, "thinking.");
  const std::string type = wanted(inner, "type");
  if (type == "enabled" || type == "adaptive") return true;
  if (type != "disabled" && type != "between_tools") inner.fail("type", "want enabled, adaptive or disabled");
  return false;
}

}  // namespace

ChatInput read_messages_input(Fields& fields, const ApiModel& model) {
  if (!model.chat) throw ApiError("this model has no chat template (give one with --chat-template)");
  ChatInput input{.messages = read_messages(fields), .tools = read_tools(fields), .choice = read_tool_choice(fields)};
  const std::optional<bool> thinking = read_thinking(fields);
  if (thinking && model.chat->variables().contains("enable_thinking")) input.settings["enable_thinking"] = *thinking;
  return input;
}

}  // namespace octet::serve
