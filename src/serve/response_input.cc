#include "serve/response_input.h"

#include <fmt/format.h>

#include <utility>

#include "base/json.h"

namespace octet::serve {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void fail(const std::string& name, const std::string& message) {
  throw ApiError(fmt::format("{}: {}", name, message), name);
}

// A member that is a text; `otherwise`: for one that is not there, nullptr: it must be.
std::string text_of(const Json& object, const char* key, const std::string& name, const char* otherwise = nullptr) {
  if (!object.is_object()) fail(name, "want an object");
  const auto found = object.find(key);
  if (found == object.end() && otherwise != nullptr) return otherwise;
  if (found == object.end() || !found->is_string()) fail(fmt::format("{}.{}", name, key), "want a string");
  return found->get<std::string>();
}

// A text, or a list of parts that are texts.
Json content_of(const Json& item, const char* key, const std::string& name) {
  const std::string field = fmt::format("{}.{}", name, key);
  const auto found = item.find(key);
  if (found != item.end() && found->is_string()) return *found;
  if (found == item.end() || !found->is_array()) fail(field, "want a string or a list of parts");
  Json parts = Json::array();
  for (size_t i = 0; i < found->size(); ++i) {
    const std::string part = fmt::format("{}[{}]", field, i);
    const std::string type = text_of((*found)[i], "type", part);
    if (type != "input_text" && type != "output_text" && type != "text")
      fail(part + ".type", fmt::format("'{}' is not supported (want input_text, output_text or text)", type));
    parts.push_back({{"type", "text"}, {"text", text_of((*found)[i], "text", part)}});
  }
  return parts;
}

// Text of a reasoning item; empty where it has a summary only, or is encrypted.
std::string thought_of(const Json& item, const std::string& name) {
  std::string thought;
  const auto content = item.find("content");
  if (content == item.end() || content->is_null()) return thought;
  if (!content->is_array()) fail(name + ".content", "want a list of parts");
  for (size_t i = 0; i < content->size(); ++i)
    thought += text_of((*content)[i], "text", fmt::format("{}.content[{}]", name, i));
  return thought;
}

Json call_of(const Json& item, const std::string& name) {
  const std::string arguments = text_of(item, "arguments", name);
  if (!Json::parse(arguments, nullptr, /*allow_exceptions=*/false).is_object())
    fail(name + ".arguments", "want a JSON object as a string");
  Json function = {{"name", text_of(item, "name", name)}, {"arguments", arguments}};
  return {{"id", text_of(item, "call_id", name)}, {"type", "function"}, {"function", std::move(function)}};
}

std::string role_of(const Json& item, const std::string& name) {
  std::string role = text_of(item, "role", name);
  if (role != "user" && role != "system" && role != "assistant" && role != "developer")
    fail(name + ".role", fmt::format("'{}' is not supported (want user, assistant, system or developer)", role));
  return role;
}

Json read_tools(Fields& fields) {
  Json tools = Json::array();
  const Json* given = fields.find("tools");
  if (given == nullptr) return tools;
  if (!given->is_array()) fields.fail("tools", "want a list of tools");
  for (size_t i = 0; i < given->size(); ++i) {
    const Json& tool = (*given)[i];
    const std::string name = fmt::format("tools[{}]", i);
    if (const std::string type = text_of(tool, "type", name); type != "function")
      fail(name + ".type", fmt::format("'{}' is not supported (want function)", type));
    text_of(tool, "name", name);
    Json function = Json::object();
    for (const auto& [key, value] : tool.items())
      if (key != "type" && !value.is_null()) function[key] = value;
    if (function.contains("parameters") && !function["parameters"].is_object())
      fail(name + ".parameters", "want a JSON schema as an object");
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return tools;
}

// "none", "auto", "required" or {"type": "function", "name"}.
ToolChoice read_choice(Fields& fields) {
  ToolChoice choice{.parallel = fields.flag("parallel_tool_calls").value_or(true)};
  const Json* given = fields.find("tool_choice");
  if (given == nullptr || *given == "auto") return choice;
  if (given->is_object() && given->value("type", Json()) == "function") {
    Fields inner(*given, "tool_choice.");
    choice.only = inner.text("name").value_or("");
  }
  choice.required = *given == "required" || !choice.only.empty();
  choice.calls = *given != "none";
  if (choice.calls && !choice.required)
    fields.fail("tool_choice", "want none, auto, required, or {\"type\": \"function\", \"name\": ...}");
  return choice;
}

// Variables of the template, by reasoning.effort where it has one for that, and by chat_template_kwargs.
Json read_settings(Fields& fields, const ApiModel& model) {
  Json settings = Json::object();
  if (const Json* reasoning = fields.find("reasoning")) {
    Fields inner(*reasoning, "reasoning.");
    const std::string effort = inner.text("effort").value_or("");
    if (model.chat->variables().contains("reasoning_effort")) {
      if (!effort.empty()) settings["reasoning_effort"] = effort;
    } else if (effort == "none" && model.chat->variables().contains("enable_thinking")) {
      settings["enable_thinking"] = false;
    }
  }
  if (const Json* given = fields.find("chat_template_kwargs")) {
    if (!given->is_object()) fields.fail("chat_template_kwargs", "want an object");
    settings.update(*given);
  }
  return settings;
}

}  // namespace

void add_items(const Json& items, const std::string& field, Json& messages) {
  std::string thought;  // reasoning, for the message that it leads to
  bool open = false;    // calls go to the last message
  const auto add_message = [&](Json message) {
    if (message["role"] == "assistant" && !thought.empty()) message["reasoning_content"] = thought;
    thought.clear();
    open = message["role"] == "assistant";
    messages.push_back(std::move(message));
  };
  for (size_t i = 0; i < items.size(); ++i) {
    const Json& item = items[i];
    const std::string name = fmt::format("{}[{}]", field, i), type = text_of(item, "type", name, "message");
    if (type == "message") {
      add_message({{"role", role_of(item, name)}, {"content", content_of(item, "content", name)}});
    } else if (type == "reasoning") {
      thought += thought_of(item, name);
      open = false;
    } else if (type == "function_call") {
      Json call = call_of(item, name);
      if (!open) add_message({{"role", "assistant"}, {"content", nullptr}});
      messages.back()["tool_calls"].push_back(std::move(call));
    } else if (type == "function_call_output") {
      add_message({{"role", "tool"},
                   {"tool_call_id", text_of(item, "call_id", name)},
                   {"content", content_of(item, "output", name)}});
    } else {
      fail(name + ".type",
           fmt::format("'{}' is not supported (want message, reasoning, function_call or function_call_output)", type));
    }
  }
}

ChatInput read_response_input(Fields& fields, const ApiModel& model, const Json& history) {
  if (!model.chat) throw ApiError("this model has no chat template (give one with --chat-template)");
  ChatInput input;
  if (const auto instructions = fields.text("instructions"))
    input.messages.push_back({{"role", "system"}, {"content", *instructions}});
  for (const Json& message : history) input.messages.push_back(message);
  const Json* given = fields.find("input");
  if (given == nullptr || (!given->is_string() && (!given->is_array() || given->empty())))
    fields.fail("input", "want a string, or a list of at least one item");
  if (given->is_string())
    input.messages.push_back({{"role", "user"}, {"content", given->get<std::string>()}});
  else
    add_items(*given, "input", input.messages);
  if (input.messages.empty()) fields.fail("input", "the input has reasoning alone: want at least one message");
  input.tools = read_tools(fields);
  input.choice = read_choice(fields);
  input.settings = read_settings(fields, model);
  return input;
}

}  // namespace octet::serve
