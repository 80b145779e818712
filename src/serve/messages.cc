#include "serve/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "serve/guided.h"
#include "serve/messages_input.h"
#include "serve/reply_job.h"

namespace octet::serve {
namespace {

using Json = nlohmann::ordered_json;

// Clients give reasoning back with its signature. Nothing is signed; some drop what has an empty one.
constexpr const char* kSignature = "octet";

std::string event(const Json& data) {
  return fmt::format("event: {}\n{}", data["type"].get_ref<const std::string&>(), sse(data));
}

// Arguments that the text's end cut short become {}, so that nobody takes a part of them for the whole.
Json input_of(const std::string& arguments) {
  Json input = Json::parse(arguments, nullptr, /*allow_exceptions=*/false);
  return input.is_object() ? input : Json::object();
}

class Message final : public ReplyJob, private BlockWatch {
 public:
  Message(const ApiModel& model, bool stream, HttpReply reply, std::string request_id, const ReplyForm& form,
          GenerationRequest request)
      : ReplyJob(model, stream, std::move(reply)),
        id_(make_id("msg_")),
        request_id_(std::move(request_id)),
        prompt_tokens_(static_cast<int64_t>(request.prompt_ids.size())),
        blocks_(form.parser()) {
    priority = request.priority;
    prompts.push_back(std::move(request));
  }

 private:
  void on_news(size_t, const GenerationEvent& news) override {
    if (stream_ && !std::exchange(begun_, true))
      events_ = event({{"type", "message_start"}, {"message", json(Json::array(), {.prompt = prompt_tokens_})}});
    const bool ended = news.finished != FinishReason::kNone;
    blocks_.push(news.text, ended, *this);
    if (ended) finished_ = news.finished, stop_ = news.stop;
    if (stream_ && !events_.empty()) write(std::exchange(events_, {}));
  }

  void on_begin(size_t index, const ReplyBlock& block) override {
    call_ids_.push_back(block.kind == ReplyBlock::Kind::kCall ? make_call_id("toolu_", model_) : "");
    if (stream_)
      events_ +=
          event({{"type", "content_block_start"}, {"index", index}, {"content_block", content_block(index, block)}});
  }

  void on_more(size_t index, const ReplyBlock& block, std::string_view text) override {
    const auto [type, key] = block.kind == ReplyBlock::Kind::kReasoning ? std::pair("thinking_delta", "thinking")
                             : block.kind == ReplyBlock::Kind::kText    ? std::pair("text_delta", "text")
                                                                        : std::pair("input_json_delta", "partial_json");
    add_delta(index, {{"type", type}, {key, text}});
  }

  void on_end(size_t index, const ReplyBlock& block) override {
    if (block.kind == ReplyBlock::Kind::kReasoning)
      add_delta(index, {{"type", "signature_delta"}, {"signature", kSignature}});
    if (stream_) events_ += event({{"type", "content_block_stop"}, {"index", index}});
  }

  void add_delta(size_t index, Json delta) {
    if (stream_) events_ += event({{"type", "content_block_delta"}, {"index", index}, {"delta", std::move(delta)}});
  }

  // A block that is whole, or has just begun and holds nothing.
  Json content_block(size_t index, const ReplyBlock& block) const {
    switch (block.kind) {
      case ReplyBlock::Kind::kReasoning:
        return {{"type", "thinking"}, {"thinking", block.text}, {"signature", block.text.empty() ? "" : kSignature}};
      case ReplyBlock::Kind::kText: return {{"type", "text"}, {"text", block.text}};
      default:
        return {{"type", "tool_use"}, {"id", call_ids_[index]}, {"name", block.name}, {"input", input_of(block.text)}};
    }
  }

  Json stop_reason() const {
    if (finished_ == FinishReason::kNone) return nullptr;
    if (finished_ != FinishReason::kStop) return "max_tokens";
    if (!stop_.empty()) return "stop_sequence";
    const bool calls = std::ranges::any_of(
        blocks_.blocks(), [](const ReplyBlock& block) { return block.kind == ReplyBlock::Kind::kCall; });
    return calls ? "tool_use" : "end_turn";
  }
  Json stop_sequence() const { return stop_.empty() ? Json() : Json(stop_); }

  static Json usage_json(const Usage& usage) {
    return {{"input_tokens", usage.prompt - usage.cached},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", usage.cached},
            {"output_tokens", usage.generated}};
  }

  Json json(Json content, const Usage& usage) const {
    return {{"id", id_},
            {"type", "message"},
            {"role", "assistant"},
            {"model", model_name()},
            {"content", std::move(content)},
            {"stop_reason", stop_reason()},
            {"stop_sequence", stop_sequence()},
            {"usage", usage_json(usage)}};
  }

  std::string whole(const Usage& usage) override {
    Json content = Json::array();
    for (size_t i = 0; i < blocks_.blocks().size(); ++i) content.push_back(content_block(i, blocks_.blocks()[i]));
    return dump(json(std::move(content), usage));
  }

  std::string last_events(const Usage& usage) override {
    const Json delta = {{"stop_reason", stop_reason()}, {"stop_sequence", stop_sequence()}};
    return event({{"type", "message_delta"}, {"delta", delta}, {"usage", usage_json(usage)}}) +
           event({{"type", "message_stop"}});
  }

  std::string error(const ApiError& error) const override {
    ApiError named = error;
    named.set_request_id(request_id_);
    return message_error_body(named);
  }
  std::string error_events(const ApiError& error) const override {
    return "event: error\ndata: " + this->error(error) + "\n\n";
  }

  const std::string id_, request_id_;
  const int64_t prompt_tokens_;
  ReplyBlocks blocks_;
  std::vector<std::string> call_ids_;  // of each block; of calls only
  std::string events_;                 // of a stream, not yet written
  bool begun_ = false;
  FinishReason finished_ = FinishReason::kNone;
  std::string stop_;
};

// Fields of sampling that mean the same in all wire forms; OpenAI's other ones are unknown here.
TextGuide read_sampling(Fields& fields, const ApiModel& model, const std::string& key, GenerationRequest& request) {
  Json known = {{"stop", fields.texts("stop_sequences", 16)}};
  for (const char* key : {"temperature",
                          "top_p",
                          "top_k",
                          "min_p",
                          "repetition_penalty",
                          "presence_penalty",
                          "frequency_penalty",
                          "seed",
                          "logit_bias",
                          "min_tokens",
                          "stop_token_ids",
                          "ignore_eos",
                          "include_stop_str_in_output",
                          "skip_special_tokens",
                          "priority",
                          "cache_salt",
                          "structured_outputs",
                          "speculation",
                          "draft_tokens",
                          "allowed_token_ids",
                          "bad_words"})
    if (const Json* value = fields.find(key)) known[key] = *value;
  Fields inner(known);
  return read_generation(inner, model, key, request);
}

// {"type": "json_schema", "schema"}, in output_config as "format".
void read_format(Fields& fields, const ApiModel& model, const std::string& key, TextGuide& guide) {
  const Json* format = fields.find("output_format");
  std::string name = "output_format";
  if (const Json* config = fields.find("output_config")) {
    Fields inner(*config, "output_config.");
    if (const Json* found = inner.find("format")) format = found, name = inner.name_of("format");
  }
  if (format == nullptr) return;
  Fields inner(*format, name + ".");
  if (inner.text("type") != "json_schema") inner.fail("type", "want json_schema");
  const Json* schema = inner.find("schema");
  if (schema == nullptr || !schema->is_object()) inner.fail("schema", "want a JSON schema as an object");
  if (guide.guide) fields.fail("structured_outputs", name + " is given too: want one of them");
  const std::string source = schema->dump();
  const auto make = [&](const GuideLimits& limits) { return json_schema_guide(source, limits); };
  try {
    guide = {find_guide(model, key, "json", source, make), /*answer=*/true};
  } catch (const Error& error) {
    throw ApiError(fmt::format("{}: {}", inner.name_of("schema"), error.message()), inner.name_of("schema"));
  }
}

}  // namespace

Prepared prepare_message(const ApiRequest& asked, const ApiModel& model, HttpReply reply) {
  Fields fields(asked.json);
  model.check_name(fields);
  GenerationRequest request;
  TextGuide guide = read_sampling(fields, model, asked.key, request);
  read_format(fields, model, asked.key, guide);
  const bool stream = fields.flag("stream").value_or(false);
  const std::optional<int64_t> most = fields.integer("max_tokens", 1, std::numeric_limits<int32_t>::max());
  if (!most) fields.fail("max_tokens", "want the maximum number of tokens to generate");
  for (const char* key :
       {"metadata", "service_tier", "cache_control", "context_management", "diagnostics", "inference_geo", "speed"})
    fields.ignore(key);
  for (const char* key : {"container", "mcp_servers"})
    fields.refuse(key, "tools that run on the server are not supported", "[]");
  for (const char* key : {"response_format", "logprobs", "top_logprobs"})
    fields.refuse(key, "not supported by /v1/messages, whose output output_config.format guides");
  fields.refuse("n", "/v1/messages gives one message", "1");
  const ChatInput input = read_messages_input(fields, model);
  const ReplyForm form = prepare_turn(input, model, asked.key, most, guide, request);

  Prepared prepared{.prompt_tokens = static_cast<int64_t>(request.prompt_ids.size()), .unknown = fields.unknown()};
  std::ranges::copy(form.ignored, std::back_inserter(prepared.unknown));
  prepared.job = std::make_shared<Message>(model, stream, std::move(reply), asked.id, form, std::move(request));
  return prepared;
}

std::string count_message_tokens(const ApiRequest& asked, const ApiModel& model) {
  Fields fields(asked.json);
  model.check_name(fields);
  const ChatPrompt prompt = render(read_messages_input(fields, model), model, kMaxTokens);
  return dump({{"input_tokens", prompt.ids.size()}});
}

std::string message_error_body(const ApiError& error) {
  const int status = error.status();
  const char* type = status == 401   ? "authentication_error"
                     : status == 403 ? "permission_error"
                     : status == 404 ? "not_found_error"
                     : status == 413 ? "request_too_large"
                     : status == 429 ? "rate_limit_error"
                     : status == 503 ? "overloaded_error"
                     : status == 504 ? "timeout_error"
                     : status >= 500 ? "api_error"
                                     : "invalid_request_error";
  Json body = {{"type", "error"}, {"error", {{"type", type}, {"message", error.what()}}}};
  if (!error.request_id().empty()) body["request_id"] = error.request_id();
  return dump(body);
}

}  // namespace octet::serve
