#include "serve/choice_job.h"

#include "base/json.h"

namespace octet::serve {

using Json = nlohmann::ordered_json;

ChoiceJob::Options ChoiceJob::read_options(Fields& fields) {
  Options options{.stream = fields.flag("stream").value_or(false),
                  .ids = fields.flag("return_token_ids").value_or(false)};
  if (const nlohmann::json* stream_options = fields.find("stream_options")) {
    Fields inner(*stream_options, "stream_options.");
    options.usage = inner.flag("include_usage").value_or(false);
    if (!options.stream) fields.fail("stream_options", "only of streams: set stream");
  }
  return options;
}

ChoiceJob::ChoiceJob(const ApiModel& model, const Options& options, HttpReply reply, const char* id_prefix,
                     const char* object)
    : ReplyJob(model, options.stream, std::move(reply)), options_(options), object_(object) {
  reply_id = make_id(id_prefix);
}

void ChoiceJob::write(const Json& choice) { ReplyJob::write(sse(body(Json::array({choice})))); }

void ChoiceJob::set_end(Json& choice, const GenerationEvent& event, const char* reason) const {
  choice["finish_reason"] = nullptr, choice["stop_reason"] = nullptr;
  if (event.finished == FinishReason::kNone) return;
  choice["finish_reason"] = reason;
  if (!event.stop.empty()) choice["stop_reason"] = event.stop;
  if (event.stop.empty() && event.stop_id >= 0 && event.stop_id != model_.tokenizer->eos_id())
    choice["stop_reason"] = event.stop_id;
}

std::string ChoiceJob::whole(const Usage& usage) {
  Json whole = body(choices());
  whole["usage"] = usage_json(usage);
  return dump(whole);
}

std::string ChoiceJob::last_events(const Usage& usage) {
  std::string events;
  if (options_.usage) {
    Json last = body(Json::array());
    last["usage"] = usage_json(usage);
    events = sse(last);
  }
  return events + "data: [DONE]\n\n";
}

std::string ChoiceJob::error_events(const ApiError& error) const {
  return "data: " + error_body(error) + "\n\ndata: [DONE]\n\n";
}

Json ChoiceJob::body(Json choices) const {
  Json body = {{"id", reply_id}, {"object", object_}, {"created", created_}, {"model", model_.names[0]}};
  body["choices"] = std::move(choices);
  if (options_.stream && options_.usage) body["usage"] = nullptr;
  return body;
}

}  // namespace octet::serve
