#include "serve/chat_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "chat/call_guide.h"
#include "serve/guided.h"

namespace octet::serve {
namespace {

using Json = nlohmann::ordered_json;

// "none", "auto", "required" or {"type": "function", "function": {"name"}}.
ToolChoice read_tool_choice(Fields& fields) {
  ToolChoice choice{.parallel = fields.flag("parallel_tool_calls").value_or(true)};
  const Json* given = fields.find("tool_choice");
  if (given == nullptr || *given == "auto") return choice;
  if (given->is_object()) {
    const Json function = given->value("function", Json());
    const Json name = function.is_object() ? function.value("name", Json()) : Json();
    if (name.is_string()) choice.required = true, choice.only = name.get<std::string>();
  }
  choice.required |= *given == "required";
  choice.calls = *given != "none";
  if (choice.calls && !choice.required)
    fields.fail("tool_choice", "want none, auto, required, or a function by {\"function\": {\"name\": ...}}");
  return choice;
}

std::shared_ptr<const ChatTemplate> read_template(Fields& fields, const ApiModel& model) {
  constexpr size_t kMaxBytes = 256 << 10;
  const std::optional<std::string> source = fields.text("chat_template");
  if (!source) return nullptr;
  if (!model.request_templates)
    fields.fail("chat_template", "the server accepts templates of requests only with --trust-request-chat-template");
  if (source->size() > kMaxBytes) fields.fail("chat_template", fmt::format("want at most {} bytes", kMaxBytes));
  try {
    return model.request_templates->get(*source);
  } catch (const Error& error) {
    throw ApiError(error.message(), "chat_template");
  }
}

// The text at the end of the last message: its content, or the last part of it that is text; nullptr: there is none.
Json* last_text(Json& messages) {
  Json& message = messages.back();
  if (!message.contains("content")) return nullptr;
  Json& content = message["content"];
  if (content.is_string()) return &content;
  if (!content.is_array()) return nullptr;
  for (auto part = content.rbegin(); part != content.rend(); ++part)
    if (part->contains("text") && (*part)["text"].is_string()) return &(*part)["text"];
  return nullptr;
}

// Cuts what the template wrote behind the mark, and the mark. Where the template has trimmed the blank at the mark's
// end, it would have trimmed blanks at the end of the message too.
void cut_behind(const std::string& mark, RenderedPrompt& prompt) {
  const size_t at = prompt.text.rfind(mark.substr(0, mark.size() - 1));
  if (at == std::string::npos)
    throw ApiError("continue_final_message: the template does not render the content of the last message verbatim",
                   "continue_final_message");
  const bool trimmed = prompt.text.compare(at, mark.size(), mark) != 0;
  prompt.text.resize(at);
  if (trimmed) prompt.text.resize(prompt.text.find_last_not_of(" \t\n\r\f\v") + 1);
  for (TextRange& range : prompt.from_template) range.end = std::min(range.end, prompt.text.size());
  std::erase_if(prompt.from_template, [](const TextRange& range) { return range.begin >= range.end; });
}

bool is_strict(const Json& tool) {
  const Json function = tool.is_object() ? tool.value("function", Json()) : Json();
  return function.is_object() && function.value("strict", Json()) == true;
}

// Calls that must come, must fit their schema or must be one alone are guided. Where the answer is guided, it or calls
// come; structured_outputs guides all of a reply that need not be calls.
void guide_reply(const ChatInput& input, const ReplyOptions& reply, const TextGuide& guide, const ApiModel& model,
                 const std::string& key, GenerationRequest& request) {
  const ToolChoice& choice = input.choice;
  std::vector<GuideUse> guides;
  if (guide.guide && !choice.required) guides.push_back({guide.guide, /*thought=*/reply.in_reasoning});
  const bool held = !choice.parallel || std::ranges::any_of(input.tools, is_strict);
  const bool calls = guide.guide ? guide.answer : held;
  if (!choice.required && (!calls || reply.format.empty())) return set_guides(guides, model, request);
  const auto refuse = [](const std::string& why) { throw ApiError("tool_choice: " + why, "tool_choice"); };
  if (input.tools.empty()) refuse("a call is required, but there are no tools");
  if (reply.format.empty())
    refuse("a call is required, but the format of this model's tool calls is not known (name it with --tool-calls)");
  const CallRules rules{.format = reply.format,
                        .required = choice.required,
                        .calls_only = !guides.empty(),
                        .only = choice.only,
                        .parallel = choice.parallel,
                        // No tokens are spent on thinking that the prompt has not opened.
                        .reasoning = reply.reasoning && guides.empty() && !choice.required,
                        .open_objects = model.open_tool_schemas,
                        .in_reasoning = reply.in_reasoning};
  const auto make = [&](const GuideLimits& limits) { return call_guide(rules, input.tools, limits); };
  const Json source = {rules.format,   rules.required,  rules.calls_only,   rules.only,
                       rules.parallel, rules.reasoning, rules.in_reasoning, input.tools};
  try {
    guides.push_back({find_guide(model, key, "calls", source.dump(), make)});
  } catch (const Error& error) {
    throw ApiError("tools: " + error.message(), "tools");
  }
  set_guides(guides, model, request);
}

// A template that does not know developers takes their messages as the system's; behind a leading system message they
// are part of it.
void take_developers(Json& messages) {
  Json all = Json::array();
  for (Json& message : messages) {
    const bool developer = message["role"] == "developer";
    if (developer) message["role"] = "system";
    if (!developer || all.size() != 1 || all[0]["role"] != "system") {
      all.push_back(std::move(message));
      continue;
    }
    Json& first = all[0]["content"];
    Json& more = message["content"];
    if (first.is_string() && more.is_string()) {
      first.get_ref<std::string&>() += "\n\n" + more.get<std::string>();
      continue;
    }
    Json parts = Json::array();
    for (Json* content : {&first, &more}) {
      if (content->is_string()) parts.push_back({{"type", "text"}, {"text", *content}});
      if (content->is_array()) parts.insert(parts.end(), content->begin(), content->end());
    }
    first = std::move(parts);
  }
  messages = std::move(all);
}

// Whether the template writes messages of this role, or raises an error for them, wherever they stand.
bool takes_role(const ChatTemplate& chat, const std::string& role, const Json& trusted) {
  const std::string mark = make_id("content-");
  const auto message = [](const char* role) { return Json{{"role", role}, {"content", "a"}}; };
  const Json own = {{"role", role}, {"content", mark}, {"name", "f"}, {"tool_call_id", "000000000"}};
  for (const Json& messages : {Json::array({own}), Json::array({message("user"), own}),
                               Json::array({message("user"), message("assistant"), own})}) {
    const Json bindings = {{"messages", messages_for_template(messages, chat.message_form())},
                           {"tools", nullptr},
                           {"add_generation_prompt", true}};
    try {
      if (chat.render(bindings, trusted, 0).text.find(mark) != std::string::npos) return true;
    } catch (const Error&) {
      return true;
    }
  }
  return false;
}

void check_roles(const Json& messages, const ChatTemplate& chat, const Json& trusted) {
  std::set<std::string> known = {"user"};
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string role = messages[i]["role"].get<std::string>();
    if (!known.insert(role).second || chat.spells(role) || takes_role(chat, role, trusted)) continue;
    const std::string name = fmt::format("messages[{}].role", i);
    throw ApiError(fmt::format("{}: the chat template does not render messages of role '{}'", name, role.substr(0, 60)),
                   name);
  }
}

// The tags of thoughts that the last message spells, its text at the prompt's end: tokens, as where the template writes
// them. Whether the thought is open.
bool find_thoughts(size_t text_size, RenderedPrompt& prompt) {
  const size_t begin = prompt.text.size() - std::min(text_size, prompt.text.size());
  std::vector<TextRange> all = std::move(prompt.from_template);
  for (const std::string_view tag : {"<think>", "</think>"})
    for (size_t at = begin; (at = prompt.text.find(tag, at)) != std::string::npos; at += tag.size())
      all.push_back({at, at + tag.size()});
  std::ranges::sort(all, {}, &TextRange::begin);
  prompt.from_template.clear();
  for (const TextRange& range : all) {
    if (prompt.from_template.empty() || prompt.from_template.back().end < range.begin)
      prompt.from_template.push_back(range);
    else
      prompt.from_template.back().end = std::max(prompt.from_template.back().end, range.end);
  }
  const std::string_view last = std::string_view(prompt.text).substr(begin);
  const size_t opened = last.rfind("<think>"), closed = last.rfind("</think>");
  return opened != last.npos && (closed == last.npos || closed < opened);
}

}  // namespace

void check_messages(const Json& messages, const std::string& field) {
  if (!messages.is_array() || messages.empty()) throw ApiError(field + ": want a list of at least one message", field);
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    const std::string name = fmt::format("{}[{}]", field, i);
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string())
      throw ApiError(name + " has no role (want an object with a role and content)", name);
    if (!message.contains("content") || message["content"].is_string() || message["content"].is_null()) continue;
    if (!message["content"].is_array()) throw ApiError(name + ".content is not a string, a list or null", name);
    for (const Json& part : message["content"])
      if (!part.is_object() || part.value("type", Json()) != "text")
        throw ApiError(name + ".content has a non-text part: images and audio are not supported", name);
  }
}

ChatInput read_chat_input(Fields& fields, const ApiModel& model) {
  ChatInput input{.own_template = read_template(fields, model)};
  const Json* messages = fields.find("messages");
  if (messages == nullptr) fields.fail("messages", "want a list of at least one message");
  input.messages = *messages;
  check_messages(input.messages, "messages");
  if (const Json* tools = fields.find("tools")) {
    if (!tools->is_array()) fields.fail("tools", "want a list of tools");
    input.tools = *tools;
  }
  input.choice = read_tool_choice(fields);
  input.kept = read_kept(fields, model);
  input.generation_prompt = fields.flag("add_generation_prompt").value_or(true);
  input.continue_final = fields.flag("continue_final_message").value_or(false);
  if (input.continue_final && input.generation_prompt)
    fields.fail("continue_final_message", "requires add_generation_prompt to be false, since no new message begins");
  if (const Json* given = fields.find("chat_template_kwargs")) {
    if (!given->is_object()) fields.fail("chat_template_kwargs", "want an object");
    input.settings = *given;
  }
  return input;
}

ChatPrompt render(const ChatInput& input, const ApiModel& model, int64_t most) {
  const std::shared_ptr<const ChatTemplate>& own =
      !input.tools.empty() && model.tool_chat ? model.tool_chat : model.chat;
  const ChatTemplate* chat = input.own_template ? input.own_template.get() : own.get();
  if (chat == nullptr) throw ApiError("this model has no chat template (give one with --chat-template)");
  Json bindings = Json::object();
  bindings["messages"] = nullptr;
  bindings["tools"] = input.tools.empty() ? Json() : input.tools;
  bindings["add_generation_prompt"] = input.generation_prompt;
  ChatPrompt out;
  for (const auto& [name, value] : input.settings.items()) {
    if (name == "messages" || name == "tools" || name == "add_generation_prompt")
      throw ApiError(fmt::format("chat_template_kwargs.{}: give it as a field of the request", name),
                     "chat_template_kwargs");
    if (chat->variables().contains(name))
      bindings[name] = value;
    else
      out.ignored.push_back("chat_template_kwargs." + name);
  }
  try {
    const Json trusted = Json::parse(model.trusted);
    Json messages = input.messages;
    if (!chat->spells("developer")) take_developers(messages);
    check_roles(messages, *chat, trusted);
    const std::string mark = make_id("goes-on-") + " ";
    size_t text_size = 0;
    if (input.continue_final) {
      Json* text = last_text(messages);
      if (text == nullptr) throw ApiError("continue_final_message: the last message has no text", "messages");
      text_size = text->get_ref<const std::string&>().size();
      *text = text->get<std::string>() + mark;
    }
    const bool goes_on = input.continue_final && messages.back()["role"] == "assistant";
    bindings["messages"] = messages_for_template(std::move(messages), chat->message_form());
    RenderedPrompt prompt = chat->render(bindings, trusted, static_cast<double>(unix_seconds()));
    if (input.continue_final) cut_behind(mark, prompt);
    out.in_reasoning = (goes_on && find_thoughts(text_size, prompt)) || opens_reasoning(prompt.text);
    out.ids = encode_within(prompt.text, {.parse_special = true, .enough = most, .added_in = &prompt.from_template},
                            model, input.kept);
    out.text = std::move(prompt.text);
    return out;
  } catch (const Error& error) {
    throw ApiError(error.message(), "messages");
  }
}

ReplyForm prepare_turn(const ChatInput& input, const ApiModel& model, const std::string& key,
                       std::optional<int64_t> max_tokens, const TextGuide& guide, GenerationRequest& request) {
  const ChatPrompt prompt = render(input, model);
  const int64_t room = model.engine->context() - std::ssize(prompt.ids);
  if (room < 1) throw too_long(std::ssize(prompt.ids), model);
  request.prompt_ids = prompt.ids;
  request.max_tokens = max_tokens.value_or(room);
  const bool calls = input.choice.calls && !input.tools.empty();
  ReplyForm form{.options = {.format = calls ? model.reply_format : "", .in_reasoning = prompt.in_reasoning},
                 .tools = calls ? input.tools : Json::array(),
                 .ignored = prompt.ignored};
  guide_reply(input, form.options, guide, model, key, request);
  // Marks of calls may be special tokens.
  if (!form.options.format.empty()) request.skip_special_tokens = false;
  return form;
}

void ReplyBlocks::push(std::string_view text, bool ended, BlockWatch& watch) {
  std::vector<ReplyEvent> events;
  parser_->push(text, events);
  if (ended) parser_->finish(events);
  for (const ReplyEvent& event : events) {
    using Event = ReplyEvent::Kind;
    if (event.kind == Event::kCallBegin) {
      begin(ReplyBlock::Kind::kCall, event.text, watch);
      continue;
    }
    if (event.kind == Event::kCallEnd) {
      end(watch);
      continue;
    }
    const auto kind = event.kind == Event::kReasoning ? ReplyBlock::Kind::kReasoning
                      : event.kind == Event::kText    ? ReplyBlock::Kind::kText
                                                      : ReplyBlock::Kind::kCall;
    if (!open_ || blocks_.back().kind != kind) begin(kind, {}, watch);
    blocks_.back().text += event.text;
    watch.on_more(blocks_.size() - 1, blocks_.back(), event.text);
  }
  if (ended) end(watch);
}

void ReplyBlocks::begin(ReplyBlock::Kind kind, const std::string& name, BlockWatch& watch) {
  end(watch);
  blocks_.push_back({.kind = kind, .text = {}, .name = name});
  open_ = true;
  watch.on_begin(blocks_.size() - 1, blocks_.back());
}

void ReplyBlocks::end(BlockWatch& watch) {
  if (std::exchange(open_, false)) watch.on_end(blocks_.size() - 1, blocks_.back());
}

}  // namespace octet::serve
