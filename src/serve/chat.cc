#include "serve/chat.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/json.h"
#include "chat/reply_parser.h"
#include "serve/reply_job.h"

namespace octet::serve {
namespace {

using Json = nlohmann::ordered_json;

Json token_json(const Tokenizer& tokenizer, const TokenLogprob& token) {
  const std::string_view bytes = token.id < tokenizer.vocab_size() ? tokenizer.token_bytes(token.id) : "";
  Json list = Json::array();
  for (unsigned char byte : bytes) list.push_back(byte);
  return {{"token", token_text(tokenizer, token.id)}, {"logprob", token.logprob}, {"bytes", std::move(list)}};
}

class Chat final : public ReplyJob {
 public:
  Chat(const ApiModel& model, const Options& options, HttpReply reply, const ReplyOptions& reply_options,
       const Json& tools, GenerationRequest request)
      : ReplyJob(model, options, std::move(reply), "chatcmpl-",
                 options.stream ? "chat.completion.chunk" : "chat.completion") {
    for (int64_t i = 0; i < request.n; ++i) choices_.push_back({.parser = make_reply_parser(reply_options, tools)});
    if (options.ids) prompt_ids_ = request.prompt_ids;
    prompts.push_back(std::move(request));
  }

 private:
  struct Call {
    std::string id, name, arguments;
  };
  struct Choice {
    std::unique_ptr<ReplyParser> parser;
    bool begun = false, text = false, reasoning = false;  // something of each has come
    std::string content = {}, thought = {};
    std::vector<Call> calls = {};
    std::vector<int32_t> ids = {};
    Json logprobs = Json::array();
    GenerationEvent last = {};
  };

  void on_news(size_t, const GenerationEvent& event) override {
    Choice& choice = choices_[static_cast<size_t>(event.sample)];
    std::vector<ReplyEvent> events;
    choice.parser->push(event.text, events);
    const bool ended = event.finished != FinishReason::kNone;
    if (ended) choice.parser->finish(events);
    for (size_t i = 0; i < event.logprobs.size(); ++i) {
      Json token = token_json(*model_.tokenizer, event.logprobs[i]);
      token["top_logprobs"] = Json::array();
      if (i < event.top.size())
        for (const TokenLogprob& one : event.top[i])
          token["top_logprobs"].push_back(token_json(*model_.tokenizer, one));
      choice.logprobs.push_back(std::move(token));
    }
    choice.ids.insert(choice.ids.end(), event.ids.begin(), event.ids.end());
    if (ended) choice.last = {.finished = event.finished, .stop = event.stop, .stop_id = event.stop_id};
    for (const ReplyEvent& one : events) {
      Json delta = take(choice, one);
      if (options_.stream && !delta.empty()) send(choice, event.sample, std::move(delta), nullptr);
    }
    if (options_.stream && (ended || !choice.logprobs.empty() || (options_.ids && !choice.ids.empty())))
      send(choice, event.sample, Json::object(), ended ? &choice.last : nullptr);
  }

  static Json call_delta(Json call) {
    Json delta = Json::object();
    delta["tool_calls"].push_back(std::move(call));
    return delta;
  }

  // Adds the event to the choice; what it is as a delta.
  static Json take(Choice& choice, const ReplyEvent& event) {
    switch (event.kind) {
      case ReplyEvent::Kind::kText: choice.content += event.text, choice.text = true; return {{"content", event.text}};
      case ReplyEvent::Kind::kReasoning:
        choice.thought += event.text, choice.reasoning = true;
        return {{"reasoning_content", event.text}};
      case ReplyEvent::Kind::kCallBegin: {
        choice.calls.push_back({.id = make_id("call_"), .name = event.text});
        Json function = {{"name", event.text}, {"arguments", ""}};
        return call_delta({{"index", choice.calls.size() - 1},
                           {"id", choice.calls.back().id},
                           {"type", "function"},
                           {"function", std::move(function)}});
      }
      case ReplyEvent::Kind::kArguments: {
        choice.calls.back().arguments += event.text;
        Json function = {{"arguments", event.text}};
        return call_delta({{"index", choice.calls.size() - 1}, {"function", std::move(function)}});
      }
      default: return Json::object();
    }
  }

  void send(Choice& choice, int64_t index, Json delta, const GenerationEvent* end) {
    if (!std::exchange(choice.begun, true)) {
      Json role = {{"role", "assistant"}, {"content", ""}};
      write({{"index", index}, {"delta", std::move(role)}, {"logprobs", nullptr}, {"finish_reason", nullptr}});
    }
    Json json = {{"index", index}, {"delta", std::move(delta)}, {"logprobs", nullptr}};
    finish(json, choice, end != nullptr ? *end : GenerationEvent{});
    choice.logprobs = Json::array(), choice.ids.clear();
    write(json);
  }

  void finish(Json& json, const Choice& choice, const GenerationEvent& end) const {
    set_end(json, end,
            !choice.calls.empty() && end.finished == FinishReason::kStop ? "tool_calls" : finish_name(end.finished));
    if (options_.logprobs >= 0 && !choice.logprobs.empty()) json["logprobs"] = {{"content", choice.logprobs}};
    if (options_.ids) json["token_ids"] = choice.ids, json["prompt_token_ids"] = prompt_ids_;
  }

  Json choices() override {
    Json list = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      Choice& choice = choices_[i];
      Json message = {{"role", "assistant"}, {"content", nullptr}};
      if (choice.text || choice.calls.empty()) message["content"] = choice.content;
      if (choice.reasoning) message["reasoning_content"] = choice.thought;
      for (const Call& call : choice.calls)
        message["tool_calls"].push_back({{"id", call.id},
                                         {"type", "function"},
                                         {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
      Json json = {{"index", i}, {"message", std::move(message)}, {"logprobs", nullptr}};
      finish(json, choice, choice.last);
      list.push_back(std::move(json));
    }
    return list;
  }

  std::vector<int32_t> prompt_ids_;
  std::vector<Choice> choices_;
};

void check_messages(Fields& fields) {
  const nlohmann::json* messages = fields.find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty())
    fields.fail("messages", "want a list of at least one message");
  for (size_t i = 0; i < messages->size(); ++i) {
    const nlohmann::json& message = (*messages)[i];
    const std::string name = fmt::format("messages[{}]", i);
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string())
      throw ApiError(name + " has no role (want an object with a role and content)", name);
    if (!message.contains("content") || message["content"].is_string() || message["content"].is_null()) continue;
    if (!message["content"].is_array()) throw ApiError(name + ".content is no text, list of parts or null", name);
    for (const nlohmann::json& part : message["content"])
      if (!part.is_object() || part.value("type", "") != "text")
        throw ApiError(name + ".content has a part that is no text: images and sounds are not served", name);
  }
}

}  // namespace

ChatPrompt chat_prompt(Fields& fields, const Json& ordered, const ApiModel& model) {
  if (!model.chat) throw ApiError("this model has no chat template (give one by --chat-template)");
  check_messages(fields);
  const nlohmann::json* tools = fields.find("tools");
  if (tools != nullptr && !tools->is_array()) fields.fail("tools", "want a list of tools");
  Json bindings = Json::object();
  try {
    bindings["messages"] = messages_for_template(ordered.at("messages"), model.chat->message_form());
    bindings["tools"] = tools != nullptr && !tools->empty() ? ordered.at("tools") : Json();
    bindings["add_generation_prompt"] = fields.flag("add_generation_prompt").value_or(true);
    if (const nlohmann::json* given = fields.find("chat_template_kwargs")) {
      if (!given->is_object()) fields.fail("chat_template_kwargs", "want an object");
      for (const auto& [name, value] : ordered.at("chat_template_kwargs").items()) {
        if (bindings.contains(name) || !model.chat->variables().contains(name))
          throw ApiError(fmt::format("chat_template_kwargs.{}: the template has no such setting", name),
                         "chat_template_kwargs");
        bindings[name] = value;
      }
    }
    const RenderedPrompt prompt =
        model.chat->render(bindings, Json::parse(model.trusted), static_cast<double>(unix_seconds()));
    return {prompt.text,
            model.tokenizer->encode(prompt.text, {.parse_special = true, .added_in = &prompt.from_template})};
  } catch (const Error& error) {
    throw ApiError(error.message(), "messages");
  }
}

Prepared prepare_chat(const nlohmann::json& json, const Json& ordered, const ApiModel& model, HttpReply reply) {
  Fields fields(json);
  model.check_name(fields);
  GenerationRequest request;
  read_generation(fields, model, request);
  ReplyJob::Options options = ReplyJob::read_options(fields);
  const bool logprobs = fields.flag("logprobs").value_or(false);
  const std::optional<int64_t> top = fields.integer("top_logprobs", 0, 20);
  if (top && !logprobs) fields.fail("top_logprobs", "only with logprobs: set it to true");
  if (logprobs) options.logprobs = request.logprobs = top.value_or(0);
  for (const char* key : {"parallel_tool_calls", "reasoning_effort", "modalities", "prediction", "verbosity"})
    fields.ignore(key);
  fields.refuse("chat_template", "a request's own template is not taken");
  fields.refuse("continue_final_message", "going on with the last message is not served yet");
  fields.refuse("functions", "want tools instead", "[]");
  const nlohmann::json* choice = fields.find("tool_choice");
  const bool with_tools = fields.find("tools") != nullptr && (choice == nullptr || *choice != "none");
  if (choice != nullptr && *choice != "none" && *choice != "auto")
    fields.fail("tool_choice", "want none or auto: required and named calls are not served yet");

  const ChatPrompt prompt = chat_prompt(fields, ordered, model);
  request.prompt_ids = prompt.ids;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const std::optional<int64_t> most = fields.integer("max_tokens", 1, kMost);
  const int64_t room = model.engine->context() - static_cast<int64_t>(prompt.ids.size());
  request.max_tokens =
      fields.integer("max_completion_tokens", 1, kMost).value_or(most.value_or(std::max<int64_t>(room, 1)));
  const std::string format = with_tools ? model.reply_format : "";
  // Marks of calls may be special tokens.
  if (!format.empty()) request.skip_special_tokens = false;

  Prepared prepared{.prompt_tokens = static_cast<int64_t>(prompt.ids.size()), .unknown = fields.unknown()};
  const Json tools = with_tools ? ordered.at("tools") : Json::array();
  prepared.job = std::make_shared<Chat>(model, options, std::move(reply),
                                        ReplyOptions{.format = format, .in_reasoning = opens_reasoning(prompt.text)},
                                        tools, request);
  prepared.job->priority = request.priority;
  return prepared;
}

}  // namespace octet::serve
