#include "serve/completions.h"

#include <fmt/format.h>

#include "base/json.h"

namespace octet::serve {
namespace {

using Json = nlohmann::ordered_json;

class Completion final : public Job {
 public:
  struct Options {
    bool stream = false, usage = false, echo = false, ids = false;
    int64_t logprobs = -1;
  };
  Completion(const ServedModel& model, Options options, HttpReply reply)
      : model_(model), options_(options), reply_(std::move(reply)), id_(make_id("cmpl-")), created_(unix_seconds()) {}

  void set_prompts(std::vector<GenerationRequest> requests, std::vector<std::string> echoed) {
    prompts = std::move(requests), echoed_ = std::move(echoed);
    for (const GenerationRequest& prompt : prompts) {
      prompt_ids_.push_back(options_.ids ? prompt.prompt_ids : std::vector<int32_t>{});
      first_.push_back(choices_.size());
      choices_.resize(choices_.size() + static_cast<size_t>(prompt.n));
      for (size_t i = first_.back(); i < choices_.size(); ++i) choices_[i].prompt = first_.size() - 1;
    }
  }

  void on_refusal(const Refusal& refusal) override {
    reply_.add_field("Retry-After", fmt::format("{:.0f}", std::max(1.0, refusal.retry_after + 0.5)));
    fail(ApiError(refusal.message, {}, refusal.status, refusal.reason));
  }

  void on_event(size_t prompt, const GenerationEvent& event) override {
    const size_t index = first_[prompt] + static_cast<size_t>(event.sample);
    Choice& choice = choices_[index];
    if (failed_) return;
    if (event.finished == FinishReason::kError || event.finished == FinishReason::kTimeout)
      return fail(api_error(event));
    if (options_.stream) {
      begin();
      Choice piece{.prompt = prompt, .length = choice.length};
      if (!choice.begun && options_.echo) piece.text = echoed_[prompt];
      add(piece, event);
      choice.begun = true, choice.length = piece.length;
      reply_.write(sse(chunk(Json::array({json(index, piece, &event)}))));
    } else {
      if (!choice.begun && options_.echo) choice.text = echoed_[prompt];
      choice.begun = true;
      add(choice, event);
      if (event.finished != FinishReason::kNone)
        choice.last = event, choice.last.logprobs.clear(), choice.last.top.clear();
    }
  }

  void on_end(const std::vector<RequestTimes>& times) override {
    if (failed_) return;
    const Usage usage = add_up(times);
    if (options_.stream) {
      begin();
      if (options_.usage) {
        Json last = chunk(Json::array());
        last["usage"] = usage_json(usage);
        reply_.write(sse(last));
      }
      reply_.write("data: [DONE]\n\n");
      return reply_.end();
    }
    Json choices = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) choices.push_back(json(i, choices_[i], &choices_[i].last));
    Json body = chunk(std::move(choices));
    body["usage"] = usage_json(usage);
    reply_.send(200, "application/json", dump(body));
  }

 private:
  struct Choice {
    size_t prompt = 0;
    std::string text = {};
    std::vector<int32_t> ids = {};
    std::vector<TokenLogprob> logprobs = {};
    std::vector<std::vector<TokenLogprob>> top = {};
    size_t length = 0;  // of the text before this piece: offsets of tokens
    bool begun = false;
    GenerationEvent last = {};
  };

  void begin() {
    if (!reply_.begun()) reply_.begin(200, "text/event-stream", {{"Cache-Control", "no-cache"}});
  }

  void fail(const ApiError& error) {
    if (std::exchange(failed_, true)) return;
    if (!reply_.begun()) return reply_.send(error.status(), "application/json", error_body(error));
    reply_.write("data: " + error_body(error) + "\n\n");
    reply_.write("data: [DONE]\n\n");
    reply_.end();
  }

  static void add(Choice& choice, const GenerationEvent& event) {
    choice.text += event.text;
    choice.ids.insert(choice.ids.end(), event.ids.begin(), event.ids.end());
    choice.logprobs.insert(choice.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    choice.top.insert(choice.top.end(), event.top.begin(), event.top.end());
  }

  Json chunk(Json choices) const {
    Json body = {{"id", id_}, {"object", "text_completion"}, {"created", created_}, {"model", model_.names[0]}};
    body["choices"] = std::move(choices);
    if (options_.stream && options_.usage) body["usage"] = nullptr;
    return body;
  }

  Json json(size_t index, Choice& choice, const GenerationEvent* end) {
    Json body = {{"index", index}, {"text", choice.text}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
    body["stop_reason"] = nullptr;
    if (end->finished != FinishReason::kNone) {
      body["finish_reason"] = finish_name(end->finished);
      if (!end->stop.empty()) body["stop_reason"] = end->stop;
      if (end->stop.empty() && end->stop_id >= 0 && end->stop_id != model_.tokenizer->eos_id())
        body["stop_reason"] = end->stop_id;
    }
    if (options_.logprobs >= 0) body["logprobs"] = logprobs(choice);
    if (options_.ids) {
      body["token_ids"] = choice.ids;
      body["prompt_token_ids"] = prompt_ids_[choice.prompt];
    }
    return body;
  }

  Json logprobs(Choice& choice) const {
    Json tokens = Json::array(), values = Json::array(), tops = Json::array(), offsets = Json::array();
    for (size_t i = 0; i < choice.logprobs.size(); ++i) {
      const std::string text = token_text(*model_.tokenizer, choice.logprobs[i].id);
      tokens.push_back(text), values.push_back(choice.logprobs[i].logprob), offsets.push_back(choice.length);
      choice.length += text.size();
      Json top = Json::object();
      if (i < choice.top.size())
        for (const TokenLogprob& one : choice.top[i]) top[token_text(*model_.tokenizer, one.id)] = one.logprob;
      tops.push_back(std::move(top));
    }
    return {{"text_offset", offsets}, {"token_logprobs", values}, {"tokens", tokens}, {"top_logprobs", tops}};
  }

  const ServedModel& model_;
  const Options options_;
  HttpReply reply_;
  const std::string id_;
  const int64_t created_;
  std::vector<std::string> echoed_;
  std::vector<std::vector<int32_t>> prompt_ids_;
  std::vector<size_t> first_;  // choice of each prompt
  std::vector<Choice> choices_;
  bool failed_ = false;
};

// Prompts as ids: a text, ids, or a list of either.
std::vector<std::vector<int32_t>> read_prompts(Fields& fields, const ServedModel& model) {
  const nlohmann::json* prompt = fields.find("prompt");
  if (prompt == nullptr) fields.fail("prompt", "want a text, token ids, or a list of either");
  const bool special = fields.flag("add_special_tokens").value_or(true);
  std::vector<std::vector<int32_t>> prompts;
  const auto add_text = [&](const std::string& text) {
    prompts.push_back(model.tokenizer->encode(text, {.add_bos = special && model.tokenizer->adds_bos()}));
  };
  const auto add_ids = [&](const nlohmann::json& list) {
    std::vector<int32_t>& ids = prompts.emplace_back();
    for (const nlohmann::json& id : list) {
      if (!id.is_number_integer() || id.get<double>() < 0 ||
          id.get<double>() >= static_cast<double>(model.engine->vocab_size()))
        throw ApiError(fmt::format("prompt holds {} where a token id below {} is wanted", id.dump().substr(0, 60),
                                   model.engine->vocab_size()),
                       "prompt");
      ids.push_back(id.get<int32_t>());
    }
  };
  if (prompt->is_string()) {
    add_text(prompt->get<std::string>());
  } else if (prompt->is_array() && !prompt->empty() && prompt->front().is_number()) {
    add_ids(*prompt);
  } else if (prompt->is_array() && !prompt->empty() && prompt->size() <= static_cast<size_t>(model.max_texts)) {
    for (const nlohmann::json& one : *prompt) {
      if (one.is_string()) {
        add_text(one.get<std::string>());
      } else if (one.is_array()) {
        add_ids(one);
      } else {
        fields.fail("prompt", "want a text, token ids, or a list of either");
      }
    }
  } else {
    fields.fail("prompt", fmt::format("want a text, token ids, or a list of 1 to {} of either", model.max_texts));
  }
  for (const auto& ids : prompts)
    if (ids.empty()) throw ApiError("a prompt is empty: it has no token (give it at least one)", "prompt");
  return prompts;
}

}  // namespace

Prepared prepare_completion(const nlohmann::json& body, const ServedModel& model, HttpReply reply) {
  Fields fields(body);
  model.check_name(fields);
  GenerationRequest request{.max_tokens = 16};
  read_generation(fields, model, request);
  Completion::Options options{.stream = fields.flag("stream").value_or(false),
                              .echo = fields.flag("echo").value_or(false),
                              .ids = fields.flag("return_token_ids").value_or(false)};
  if (const nlohmann::json* stream_options = fields.find("stream_options")) {
    Fields inner(*stream_options, "stream_options.");
    options.usage = inner.flag("include_usage").value_or(false);
    if (!options.stream) fields.fail("stream_options", "only of streams: set stream");
  }
  options.logprobs = fields.integer("logprobs", 0, 20).value_or(-1);
  request.logprobs = options.logprobs;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const std::optional<int64_t> max_tokens = fields.integer("max_tokens", 1, kMost);
  request.max_tokens = max_tokens.value_or(16);
  if (options.echo && options.logprobs >= 0) fields.fail("echo", "with logprobs it is not served yet");
  fields.refuse("suffix", "suffixes are not served", "\"\"");
  if (const auto best = fields.integer("best_of", 1, model.max_texts); best && *best != request.n)
    fields.fail("best_of", "other than n it is not served yet");

  Prepared prepared;
  std::vector<GenerationRequest> requests;
  std::vector<std::string> echoed;
  for (std::vector<int32_t>& ids : read_prompts(fields, model)) {
    prepared.prompt_tokens += static_cast<int64_t>(ids.size());
    if (options.echo) echoed.push_back(model.tokenizer->decode(ids, /*skip_special=*/true));
    requests.push_back(request);
    requests.back().prompt_ids = std::move(ids);
  }
  if (static_cast<int64_t>(requests.size()) * request.n > model.max_texts)
    fields.fail("n", fmt::format("{} prompts give more than {} texts", requests.size(), model.max_texts));
  auto job = std::make_shared<Completion>(model, options, reply);
  job->priority = request.priority;
  job->set_prompts(std::move(requests), std::move(echoed));
  prepared.job = std::move(job);
  prepared.unknown = fields.unknown();
  return prepared;
}

}  // namespace octet::serve
