#include "serve/responses.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <utility>

#include "base/json.h"
#include "serve/guided.h"
#include "serve/reply_job.h"
#include "serve/response_input.h"
#include "serve/response_store.h"

namespace octet::serve {
namespace {

using Json = nlohmann::ordered_json;
using Kind = ReplyBlock::Kind;

struct ResponseOptions {
  bool stream = false;
  bool logprobs = false;
  bool keep = false;   // for GET and previous_response_id
  Json asked = {};     // members of the response that repeat the request
  Json messages = {};  // where it is kept: the conversation, without instructions
};

// A response of items: reasoning, messages and calls, each a block of the reply.
class ResponseJob final : public ReplyJob, private BlockWatch {
 public:
  ResponseJob(const ApiModel& model, ResponseOptions options, HttpReply reply, const ReplyForm& form,
              GenerationRequest request)
      : ReplyJob(model, options.stream, std::move(reply)),
        options_(std::move(options)),
        id_(make_id("resp_")),
        blocks_(form.parser()),
        decoder_(*model.tokenizer, /*text_start=*/false, request.skip_special_tokens) {
    prompts.push_back(std::move(request));
  }

 private:
  struct Token {
    size_t end = 0;  // of its text, in the reply's
    Json logprob = {};
  };
  struct Item {  // of the block that is open
    std::string id = {}, call_id = {};
    std::string delta = {};                                // of its text, not yet sent
    Json logprobs = Json::array(), fresh = Json::array();  // of the text's tokens: all, and of the delta
  };

  void on_news(size_t, const GenerationEvent& event) override {
    if (stream_ && next_ == 0) {
      emit("response.created", {{"response", response("in_progress")}});
      emit("response.in_progress", {{"response", response("in_progress")}});
    }
    finished_ = event.finished;
    const bool ended = finished_ != FinishReason::kNone;
    text_ += event.text;
    for (size_t i = 0; i < event.ids.size(); ++i) {
      // Rows of a padded vocabulary have no text.
      if (event.ids[i] < model_.tokenizer->vocab_size()) length_ += decoder_.push(event.ids[i]).size();
      tokens_.push_back({length_, options_.logprobs ? logprob_json(*model_.tokenizer, event, i) : Json()});
    }
    // Token by token, whatever came together: what a token is part of does not depend on it.
    for (; !tokens_.empty() && (ended || tokens_.front().end <= text_.size()); tokens_.pop_front())
      take(tokens_.front());
    feed(text_.size());
    cut_ = ended && finished_ != FinishReason::kStop;
    if (ended) blocks_.push("", /*ended=*/true, *this);
    send_delta();
    if (!events_.empty()) write(std::exchange(events_, {}));
  }

  void take(Token& token) {
    if (options_.logprobs) pending_.push_back(std::move(token.logprob));
    feed(token.end);
    if (blocks_.blocks().empty() || blocks_.blocks().back().kind == Kind::kText) return;
    pending_.clear();
    if (blocks_.blocks().back().kind == Kind::kReasoning) ++reasoning_tokens_;
  }

  // The reply's text up to this byte.
  void feed(size_t end) {
    end = std::min(end, text_.size());
    if (end <= fed_) return;
    const size_t begin = std::exchange(fed_, end);
    blocks_.push(std::string_view(text_).substr(begin, end - begin), /*ended=*/false, *this);
  }

  // --- blocks as items
  void on_begin(size_t index, const ReplyBlock& block) override {
    const bool call = block.kind == Kind::kCall;
    item_ = {.id = make_id(block.kind == Kind::kReasoning ? "rs_"
                           : call                         ? "fc_"
                                                          : "msg_"),
             .call_id = call ? make_call_id("call_", model_) : ""};
    emit("response.output_item.added", {{"output_index", index}, {"item", item_json(block, "in_progress", {})}});
    if (!call) emit("response.content_part.added", place(index, block, "part", part_json(block)));
  }

  void on_more(size_t, const ReplyBlock& block, std::string_view text) override {
    item_.delta += text;
    if (block.kind == Kind::kText) {
      for (Json& token : pending_) {
        item_.logprobs.push_back(token);
        item_.fresh.push_back(std::move(token));
      }
    }
    pending_.clear();
  }

  void on_end(size_t index, const ReplyBlock& block) override {
    send_delta();
    const bool call = block.kind == Kind::kCall;
    Json done = place(index, block, call ? "arguments" : "text", block.text);
    if (call) done["name"] = block.name;
    if (block.kind == Kind::kText) done["logprobs"] = item_.logprobs;
    emit(name_of(block) + ".done", done);
    const Json part = part_json(block);
    if (!call) emit("response.content_part.done", place(index, block, "part", part));
    output_.push_back(item_json(block, cut_ ? "incomplete" : "completed", Json::array({part})));
    emit("response.output_item.done", {{"output_index", index}, {"item", output_.back()}});
  }

  void send_delta() {
    if (item_.delta.empty()) return;
    const ReplyBlock& block = blocks_.blocks().back();
    Json event = place(blocks_.blocks().size() - 1, block, "delta", std::exchange(item_.delta, {}));
    if (block.kind == Kind::kText) event["logprobs"] = std::exchange(item_.fresh, Json::array());
    emit(name_of(block) + ".delta", event);
  }

  static std::string name_of(const ReplyBlock& block) {
    return block.kind == Kind::kReasoning ? "response.reasoning_text"
           : block.kind == Kind::kText    ? "response.output_text"
                                          : "response.function_call_arguments";
  }

  // A member of an event, and the item that it is of.
  Json place(size_t index, const ReplyBlock& block, const char* key, Json value) const {
    Json json = {{"item_id", item_.id}, {"output_index", index}};
    if (block.kind != Kind::kCall) json["content_index"] = 0;
    json[key] = std::move(value);
    return json;
  }

  Json part_json(const ReplyBlock& block) const {
    if (block.kind == Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", block.text}};
    return {
        {"type", "output_text"}, {"text", block.text}, {"annotations", Json::array()}, {"logprobs", item_.logprobs}};
  }

  // `content`: its parts; null: none yet.
  Json item_json(const ReplyBlock& block, const char* status, Json content) const {
    if (block.kind == Kind::kCall)
      return {{"id", item_.id},           {"type", "function_call"}, {"status", status},
              {"call_id", item_.call_id}, {"name", block.name},      {"arguments", block.text}};
    if (content.is_null()) content = Json::array();
    Json json = {{"id", item_.id}, {"type", "message"}, {"status", status}};
    if (block.kind == Kind::kText) json["role"] = "assistant";
    if (block.kind == Kind::kReasoning) json["type"] = "reasoning", json["summary"] = Json::array();
    json["content"] = std::move(content);
    return json;
  }

  // --- the response
  Json response(const char* status) const {
    Json json = {{"id", id_},
                 {"object", "response"},
                 {"created_at", created_},
                 {"status", status},
                 {"completed_at", nullptr},
                 {"error", nullptr},
                 {"model", model_name()},
                 {"incomplete_details", nullptr},
                 {"output", output_},
                 {"usage", nullptr}};
    json.update(options_.asked);
    return json;
  }

  // The whole one; keeps it.
  Json finish(const Usage& usage) {
    const bool completed = finished_ == FinishReason::kStop;
    Json json = response(completed ? "completed" : "incomplete");
    if (completed) json["completed_at"] = unix_seconds();
    if (!completed) json["incomplete_details"] = {{"reason", "max_output_tokens"}};
    json["usage"] = {{"input_tokens", usage.prompt},
                     {"input_tokens_details", {{"cached_tokens", usage.cached}, {"cache_write_tokens", 0}}},
                     {"output_tokens", usage.generated},
                     {"output_tokens_details", {{"reasoning_tokens", reasoning_tokens_}}},
                     {"total_tokens", usage.prompt + usage.generated}};
    if (!options_.keep || finished_ == FinishReason::kCancelled) return json;
    Json said = Json::array();
    for (const Json& item : output_)  // a call that was cut short cannot be taken back
      if (item["type"] != "function_call" ||
          Json::parse(item["arguments"].get<std::string>(), nullptr, false).is_object())
        said.push_back(item);
    add_items(said, "output", options_.messages);
    model_.responses->put(key, id_, {.body = dump(json), .messages = dump(options_.messages)});
    return json;
  }

  std::string whole(const Usage& usage) override { return dump(finish(usage)); }

  std::string last_events(const Usage& usage) override {
    const Json json = finish(usage);
    emit("response." + json["status"].get<std::string>(), {{"response", json}});
    return std::exchange(events_, {});
  }

  std::string error_events(const ApiError& error) const override {
    Json json = response("failed");
    json["error"] = {{"code", error.status() == 429  ? "rate_limit_exceeded"
                              : error.status() < 500 ? "invalid_prompt"
                                                     : "server_error"},
                     {"message", error.what()}};
    return event_text("response.failed", next_, {{"response", std::move(json)}});
  }

  static std::string event_text(const std::string& type, int64_t number, const Json& members) {
    Json json = {{"type", type}, {"sequence_number", number}};
    json.update(members);
    return fmt::format("event: {}\n{}", type, sse(json));
  }
  void emit(const std::string& type, const Json& members) {
    if (stream_) events_ += event_text(type, next_++, members);
  }

  ResponseOptions options_;
  const std::string id_;
  ReplyBlocks blocks_;
  StreamDecoder decoder_;  // as the engine's
  std::string text_;       // of the reply
  size_t fed_ = 0;         // bytes of it that the blocks have
  size_t length_ = 0;      // of the texts of all tokens
  std::deque<Token> tokens_;
  std::vector<Json> pending_;  // log-probabilities of tokens whose text is not yet known to be of a message
  int64_t reasoning_tokens_ = 0;
  Item item_;
  Json output_ = Json::array();
  bool cut_ = false;  // the reply has ended before its end
  FinishReason finished_ = FinishReason::kNone;
  std::string events_;
  int64_t next_ = 0;  // number of the next event
};

std::shared_ptr<const ResponseStore::Entry> find_response(const std::string& key, const std::string& id,
                                                          const ApiModel& model) {
  auto found = model.responses != nullptr ? model.responses->find(key, id) : nullptr;
  if (found) return found;
  throw ApiError(model.responses != nullptr
                     ? fmt::format("response '{}' does not exist, or was dropped", id.substr(0, 60))
                     : "responses are not kept (start the server with --response-memory)",
                 "response_id", 404, "response_not_found");
}

// The conversation up to previous_response_id.
Json read_history(Fields& fields, const std::string& key, const ApiModel& model) {
  const auto id = fields.text("previous_response_id");
  if (!id) return Json::array();
  if (model.responses == nullptr)
    fields.fail("previous_response_id", "responses are not kept: start the server with --response-memory");
  const auto found = model.responses->find(key, *id);
  if (found) return Json::parse(found->messages);
  throw ApiError(fmt::format("previous_response_id: '{}' does not exist, or was dropped", id->substr(0, 60)),
                 "previous_response_id", 404, "previous_response_not_found");
}

// Whether log-probabilities are asked for, and how many of each token.
std::optional<int64_t> read_logprobs(Fields& fields) {
  const auto top = fields.integer("top_logprobs", 0, 20);
  bool asked = false;
  if (const Json* include = fields.find("include")) {
    if (!include->is_array()) fields.fail("include", "want a list");
    for (const Json& one : *include) {
      if (one != "message.output_text.logprobs" && one != "reasoning.encrypted_content")  // reasoning is never hidden
        fields.fail("include", "want message.output_text.logprobs only");
      asked |= one == "message.output_text.logprobs";
    }
  }
  if (!asked && top.value_or(0) > 0) fields.fail("top_logprobs", "want message.output_text.logprobs in include");
  return asked ? std::optional(top.value_or(0)) : std::nullopt;
}

void refuse_what_is_not_served(Fields& fields) {
  fields.refuse("background", "background responses are not supported");
  fields.refuse("conversation", "conversations are not kept: use previous_response_id, or send the items in input");
  fields.refuse("prompt", "prompt templates are not kept: use instructions and input");
  fields.refuse("context_management", "not supported");
  fields.refuse("truncation", "want disabled: conversations are never truncated", "\"disabled\"");
  fields.refuse("chat_template", "templates of requests are not supported here");
  for (const char* key : {"max_tool_calls", "stream_options", "prompt_cache_retention", "prompt_cache_options"})
    fields.ignore(key);
}

void check_metadata(Fields& fields) {
  const Json* metadata = fields.find("metadata");
  if (metadata == nullptr) return;
  bool fits = metadata->is_object() && metadata->size() <= 16;
  for (const Json& value : *metadata) fits = fits && value.is_string();
  if (!fits) fields.fail("metadata", "want an object of at most 16 strings");
}

// Members of the response that say what was asked for, and what holds where nothing was.
Json repeat(const Json& asked, const GenerationRequest& request, bool keep) {
  Json json = {{"background", false},
               {"instructions", nullptr},
               {"max_output_tokens", nullptr},
               {"max_tool_calls", nullptr},
               {"metadata", Json::object()},
               {"parallel_tool_calls", true},
               {"previous_response_id", nullptr},
               {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
               {"service_tier", "default"},
               {"text", {{"format", {{"type", "text"}}}}},
               {"tool_choice", "auto"},
               {"tools", Json::array()},
               {"top_logprobs", 0},
               {"truncation", "disabled"},
               {"user", nullptr}};
  for (auto& [key, value] : json.items())
    if (const auto given = asked.find(key); given != asked.end() && !given->is_null() && key != "service_tier")
      value = *given;
  json["temperature"] = request.sampling.temperature, json["top_p"] = request.sampling.top_p;
  json["store"] = keep;
  return json;
}

}  // namespace

Prepared prepare_response(const ApiRequest& asked, const ApiModel& model, HttpReply reply) {
  Fields fields(asked.json);
  model.check_name(fields);
  GenerationRequest request;
  TextGuide guide = read_generation(fields, model, asked.key, request);
  read_text_format(fields, model, asked.key, guide);
  if (request.n != 1) fields.fail("n", "a response is one completion");
  refuse_what_is_not_served(fields);
  check_metadata(fields);
  const std::optional<int64_t> logprobs = read_logprobs(fields);
  request.logprobs = logprobs.value_or(-1);
  const auto most = fields.integer("max_output_tokens", 1, std::numeric_limits<int32_t>::max());
  const ChatInput input = read_response_input(fields, model, read_history(fields, asked.key, model));
  const ReplyForm form = prepare_turn(input, model, asked.key, most, guide, request);

  ResponseOptions options{.stream = fields.flag("stream").value_or(false),
                          .logprobs = logprobs.has_value(),
                          .keep = fields.flag("store").value_or(true) && model.responses != nullptr};
  options.asked = repeat(asked.json, request, options.keep);
  if (options.keep) {
    options.messages = input.messages;
    if (fields.text("instructions")) options.messages.erase(0);
  }
  Prepared prepared{.prompt_tokens = static_cast<int64_t>(request.prompt_ids.size()), .unknown = fields.unknown()};
  std::ranges::copy(form.ignored, std::back_inserter(prepared.unknown));
  prepared.job = std::make_shared<ResponseJob>(model, std::move(options), std::move(reply), form, request);
  prepared.job->priority = request.priority;
  return prepared;
}

std::string show_response(const ApiRequest& request, const ApiModel& model) {
  return find_response(request.key, request.parts.at(0), model)->body;
}

std::string delete_response(const ApiRequest& request, const ApiModel& model) {
  const std::string& id = request.parts.at(0);
  find_response(request.key, id, model);
  model.responses->remove(request.key, id);
  return dump({{"id", id}, {"object", "response"}, {"deleted", true}});
}

}  // namespace octet::serve
