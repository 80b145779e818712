#include "serve/choice_job.h"

#include <fmt/format.h>

#include "base/json.h"

namespace octet::serve {

using Json = nlohmann::ordered_json;

ChoiceJob::Options ChoiceJob::read_options(Fields& fields) {
  Options options{.stream = fields.flag("stream").value_or(false),
                  .ids = fields.flag("return_token_ids").value_or(false)};
  if (const Json* stream_options = fields.find("stream_options")) {
    Fields inner(*stream_options, "stream_options.");
    options.usage = inner.flag("include_usage").value_or(false);
    if (!options.stream) fields.fail("stream_options", "requires stream: set it to true");
  }
  options.prompt_logprobs = fields.integer("prompt_logprobs", 0, 20).value_or(-1);
  if (options.prompt_logprobs >= 0 && options.stream)
    fields.fail("prompt_logprobs", "not supported in streams: leave stream out");
  return options;
}

void ChoiceJob::check_scores(const Fields& fields, const char* field, const GenerationRequest& request, size_t tokens) {
  constexpr int64_t kMaxEntries = 500'000;
  if (request.prompt_logprobs < 0) return;
  if (request.n > 1 || request.beams > 0)
    fields.fail(field, "log-probabilities of a prompt require n = 1 and no beam search");
  if (static_cast<int64_t>(tokens) > kMaxEntries / (request.prompt_logprobs + 1))
    fields.fail(field, fmt::format("{} tokens with {} log-probabilities each: want at most {} in total", tokens,
                                   request.prompt_logprobs + 1, kMaxEntries));
}

Json ChoiceJob::no_scores() { return Json::array({nullptr}); }

void ChoiceJob::add_scores(const GenerationEvent& event, Json& scores) const {
  const auto entry = [&](const TokenLogprob& token, const Json& rank) {
    return Json{{"logprob", token.logprob}, {"rank", rank}, {"decoded_token", token_text(*model_.tokenizer, token.id)}};
  };
  for (size_t i = 0; i < event.prompt_logprobs.size(); ++i) {
    const TokenLogprob& token = event.prompt_logprobs[i];
    Json all = Json::object();
    all[std::to_string(token.id)] = entry(token, nullptr);  // its rank is known among the most likely ones
    const auto most = std::min(event.prompt_top[i].size(), static_cast<size_t>(options_.prompt_logprobs));
    for (size_t rank = 1; rank <= most; ++rank) {
      const TokenLogprob& one = event.prompt_top[i][rank - 1];
      all[std::to_string(one.id)] = entry(one, rank);
    }
    scores.push_back(std::move(all));
  }
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
  add_members(whole);
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
  Json body = {{"id", reply_id}, {"object", object_}, {"created", created_}, {"model", model_name()}};
  body["choices"] = std::move(choices);
  if (options_.stream && options_.usage) body["usage"] = nullptr;
  return body;
}

}  // namespace octet::serve
