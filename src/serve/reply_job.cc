#include "serve/reply_job.h"

#include <fmt/format.h>

#include <utility>

#include "base/json.h"

namespace octet::serve {

using Json = nlohmann::ordered_json;

ReplyJob::Options ReplyJob::read_options(Fields& fields) {
  Options options{.stream = fields.flag("stream").value_or(false),
                  .ids = fields.flag("return_token_ids").value_or(false)};
  if (const nlohmann::json* stream_options = fields.find("stream_options")) {
    Fields inner(*stream_options, "stream_options.");
    options.usage = inner.flag("include_usage").value_or(false);
    if (!options.stream) fields.fail("stream_options", "only of streams: set stream");
  }
  return options;
}

ReplyJob::ReplyJob(const ApiModel& model, const Options& options, HttpReply reply, const char* id_prefix,
                   const char* object)
    : model_(model),
      options_(options),
      reply_(std::move(reply)),
      id_(make_id(id_prefix)),
      object_(object),
      created_(unix_seconds()) {}

void ReplyJob::on_refusal(const Refusal& refusal) {
  if (refusal.retry_after > 0)
    reply_.add_field("Retry-After", fmt::format("{:.0f}", std::max(1.0, refusal.retry_after + 0.5)));
  fail(ApiError(refusal.message, {}, refusal.status, refusal.reason));
}

void ReplyJob::on_event(size_t prompt, const GenerationEvent& event) {
  if (failed_) return;
  if (event.finished == FinishReason::kError || event.finished == FinishReason::kTimeout) return fail(api_error(event));
  on_news(prompt, event);
}

void ReplyJob::on_end(const std::vector<RequestTimes>& times) {
  if (failed_) return;
  const Usage usage = add_up(times);
  if (!options_.stream) {
    Json whole = body(choices());
    whole["usage"] = usage_json(usage);
    return reply_.send(200, "application/json", dump(whole));
  }
  begin();
  if (options_.usage) {
    Json last = body(Json::array());
    last["usage"] = usage_json(usage);
    reply_.write(sse(last));
  }
  reply_.write("data: [DONE]\n\n");
  reply_.end();
}

void ReplyJob::write(const Json& choice) {
  begin();
  reply_.write(sse(body(Json::array({choice}))));
}

void ReplyJob::set_end(Json& choice, const GenerationEvent& event, const char* reason) const {
  choice["finish_reason"] = nullptr, choice["stop_reason"] = nullptr;
  if (event.finished == FinishReason::kNone) return;
  choice["finish_reason"] = reason;
  if (!event.stop.empty()) choice["stop_reason"] = event.stop;
  if (event.stop.empty() && event.stop_id >= 0 && event.stop_id != model_.tokenizer->eos_id())
    choice["stop_reason"] = event.stop_id;
}

Json ReplyJob::body(Json choices) const {
  Json body = {{"id", id_}, {"object", object_}, {"created", created_}, {"model", model_.names[0]}};
  body["choices"] = std::move(choices);
  if (options_.stream && options_.usage) body["usage"] = nullptr;
  return body;
}

void ReplyJob::begin() {
  if (!reply_.begun()) reply_.begin(200, "text/event-stream", {{"Cache-Control", "no-cache"}});
}

void ReplyJob::fail(const ApiError& error) {
  if (std::exchange(failed_, true)) return;
  if (!reply_.begun()) return reply_.send(error.status(), "application/json", error_body(error));
  reply_.write("data: " + error_body(error) + "\n\ndata: [DONE]\n\n");
  reply_.end();
}

}  // namespace octet::serve
