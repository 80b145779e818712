#include "serve/chat.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "base/json.h"
#include "serve/chat_core.h"
#include "serve/choice_job.h"

namespace octet::serve {
namespace {

using Json = nlohmann::ordered_json;

class Chat final : public ChoiceJob {
 public:
  Chat(const ApiModel& model, const Options& options, HttpReply reply, const ReplyForm& form, GenerationRequest request,
       std::string echo)
      : ChoiceJob(model, options, std::move(reply), "chatcmpl-",
                  options.stream ? "chat.completion.chunk" : "chat.completion"),
        echo_(std::move(echo)) {
    for (int64_t i = 0; i < request.n; ++i) choices_.push_back({.parser = form.parser()});
    if (options.ids) prompt_ids_ = request.prompt_ids;
    prompts.push_back(std::move(request));
  }

 private:
  struct Call {
    std::string id, name, arguments;
  };
  struct Choice {
    std::unique_ptr<ReplyParser> parser;
    bool echoed = false, begun = false, text = false, reasoning = false;  // something of each has come
    bool ids_begun = false;
    std::string content = {}, thought = {};
    std::vector<Call> calls = {};
    std::vector<int32_t> ids = {};
    Json logprobs = Json::array();
    GenerationEvent last = {};
  };

  void on_news(size_t, const GenerationEvent& event) override {
    if (options_.prompt_logprobs >= 0) add_scores(event, scores_);
    Choice& choice = choices_[static_cast<size_t>(event.sample)];
    std::vector<ReplyEvent> events;
    if (!std::exchange(choice.echoed, true) && !echo_.empty()) events.push_back({.text = echo_});
    choice.parser->push(event.text, events);
    const bool ended = event.finished != FinishReason::kNone;
    if (ended) choice.parser->finish(events);
    for (size_t i = 0; i < event.logprobs.size(); ++i)
      choice.logprobs.push_back(logprob_json(*model_.tokenizer, event, i));
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
  Json take(Choice& choice, const ReplyEvent& event) const {
    switch (event.kind) {
      case ReplyEvent::Kind::kText: choice.content += event.text, choice.text = true; return {{"content", event.text}};
      case ReplyEvent::Kind::kReasoning:
        choice.thought += event.text, choice.reasoning = true;
        return {{"reasoning_content", event.text}};
      case ReplyEvent::Kind::kCallBegin: {
        choice.calls.push_back({.id = make_call_id("call_", model_), .name = event.text});
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

  void finish(Json& json, Choice& choice, const GenerationEvent& end) const {
    set_end(json, end,
            !choice.calls.empty() && end.finished == FinishReason::kStop ? "tool_calls" : finish_name(end.finished));
    if (options_.logprobs >= 0 && !choice.logprobs.empty()) json["logprobs"] = {{"content", choice.logprobs}};
    if (options_.ids) {
      json["token_ids"] = choice.ids;
      if (!std::exchange(choice.ids_begun, true)) json["prompt_token_ids"] = prompt_ids_;
    }
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

  void add_members(Json& whole) override {
    if (options_.prompt_logprobs >= 0) whole["prompt_logprobs"] = std::move(scores_);
  }

  const std::string echo_;  // text of the prompt's last message, before each choice's
  std::vector<int32_t> prompt_ids_;
  Json scores_ = no_scores();
  std::vector<Choice> choices_;
};

}  // namespace

Prepared prepare_chat(const ApiRequest& asked, const ApiModel& model, HttpReply reply) {
  Fields fields(asked.json);
  model.check_name(fields);
  GenerationRequest request;
  const TextGuide guide = read_generation(fields, model, asked.key, request);
  ChoiceJob::Options options = ChoiceJob::read_options(fields);
  const bool logprobs = fields.flag("logprobs").value_or(false);
  const std::optional<int64_t> top = fields.integer("top_logprobs", 0, 20);
  if (top && !logprobs) fields.fail("top_logprobs", "requires logprobs: set it to true");
  if (logprobs) options.logprobs = request.logprobs = top.value_or(0);
  for (const char* key : {"reasoning_effort", "prediction", "verbosity"}) fields.ignore(key);
  fields.refuse("functions", "want tools instead", "[]");
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  std::optional<int64_t> most = read_max_tokens(fields, 1);
  if (const auto newer = fields.integer("max_completion_tokens", 1, kMax)) most = newer;
  const ChatInput input = read_chat_input(fields, model);
  // As vLLM: the last message's text, where its role is the reply's.
  const Json& last = input.messages.back();
  std::string echo;
  if (fields.flag("echo").value_or(false) && last.at("role") == "assistant" && last.contains("content"))
    if (last["content"].is_string()) echo = last["content"].get<std::string>();
  const ReplyForm form = prepare_turn(input, model, asked.key, most, guide, request);
  request.prompt_logprobs = options.prompt_logprobs;
  ChoiceJob::check_scores(fields, "prompt_logprobs", request, request.prompt_ids.size());

  Prepared prepared{.prompt_tokens = static_cast<int64_t>(request.prompt_ids.size()), .unknown = fields.unknown()};
  std::ranges::copy(form.ignored, std::back_inserter(prepared.unknown));
  prepared.job = std::make_shared<Chat>(model, options, std::move(reply), form, request, std::move(echo));
  prepared.job->priority = request.priority;
  return prepared;
}

}  // namespace octet::serve
