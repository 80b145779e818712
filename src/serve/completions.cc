#include "serve/completions.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/json.h"
#include "serve/choice_job.h"
#include "serve/guided.h"

namespace octet::serve {
namespace {

using Json = nlohmann::ordered_json;

class Completion final : public ChoiceJob {
 public:
  Completion(const ApiModel& model, const Options& options, bool echo, bool skip_special, HttpReply reply)
      : ChoiceJob(model, options, std::move(reply), "cmpl-", "text_completion"),
        echo_(echo),
        skip_special_(skip_special) {}

  void set_prompts(std::vector<GenerationRequest> requests) {
    prompts = std::move(requests);
    for (const GenerationRequest& prompt : prompts) {
      prompt_ids_.push_back(options_.ids ? prompt.prompt_ids : std::vector<int32_t>{});
      scores_.push_back(no_scores());
      const std::string echoed = echo_ ? text_of(prompt.prompt_ids) : "";
      first_.push_back(choices_.size());
      for (int64_t i = 0; i < prompt.n; ++i) {
        const bool text_start =
            std::ranges::all_of(prompt.prompt_ids, [&](int32_t id) { return model_.tokenizer->is_special(id); });
        choices_.push_back({.prompt = first_.size() - 1,
                            .text = echoed,
                            .decoder = StreamDecoder(*model_.tokenizer, text_start, skip_special_)});
        if (!echo_ || options_.logprobs < 0) continue;
        choices_.back().echo.emplace(*model_.tokenizer, /*text_start=*/true, skip_special_);
        add_token(choices_.back(), {prompt.prompt_ids[0], kNoScore}, nullptr, *choices_.back().echo);
      }
    }
  }

 private:
  static constexpr float kNoScore = std::numeric_limits<float>::quiet_NaN();  // null in JSON
  using Tokens = std::vector<TokenLogprob>;

  struct Choice {
    size_t prompt = 0;
    std::string text = {};  // not yet sent
    std::vector<int32_t> ids = {};
    Json logprobs = no_logprobs();
    size_t length = 0;                       // characters of the text before the next token: its offset
    std::optional<StreamDecoder> echo = {};  // of the prompt's text, until it is whole
    StreamDecoder decoder;                   // as the engine's
    bool begun = false;
    GenerationEvent last = {};
  };

  static Json no_logprobs() {
    const Json none = Json::array();
    return {{"text_offset", none}, {"token_logprobs", none}, {"tokens", none}, {"top_logprobs", none}};
  }

  static size_t characters(std::string_view text) {
    return static_cast<size_t>(std::ranges::count_if(text, [](char byte) { return (byte & 0xc0) != 0x80; }));
  }

  // Ids beyond the tokenizer, rows of a padded vocabulary, have no text.
  std::string text_of(std::vector<int32_t> ids) const {
    std::erase_if(ids, [&](int32_t id) { return id >= model_.tokenizer->vocab_size(); });
    return model_.tokenizer->decode(ids, skip_special_);
  }

  void on_news(size_t prompt, const GenerationEvent& event) override {
    const size_t index = first_[prompt] + static_cast<size_t>(event.sample);
    Choice& choice = choices_[index];
    choice.text += event.text;
    choice.ids.insert(choice.ids.end(), event.ids.begin(), event.ids.end());
    if (options_.prompt_logprobs >= 0) add_scores(event, scores_[prompt]);
    if (choice.echo) add_tokens(choice, event.prompt_logprobs, event.prompt_top, *choice.echo);
    if (choice.echo && !event.logprobs.empty()) {
      choice.length += characters(choice.echo->finish());
      choice.echo.reset();
    }
    if (options_.logprobs >= 0) add_tokens(choice, event.logprobs, event.top, choice.decoder);
    if (options_.stream) {
      write(json(index, choice, event));
      choice.text.clear(), choice.ids.clear(), choice.logprobs = no_logprobs();
    } else if (event.finished != FinishReason::kNone) {
      choice.last = {.finished = event.finished, .stop = event.stop, .stop_id = event.stop_id};
    }
  }

  void add_tokens(Choice& choice, const Tokens& tokens, const std::vector<Tokens>& top, StreamDecoder& decoder) const {
    for (size_t i = 0; i < tokens.size(); ++i)
      add_token(choice, tokens[i], i < top.size() ? &top[i] : nullptr, decoder);
  }

  // The most likely tokens, and the one that came, as OpenAI gives them.
  void add_token(Choice& choice, const TokenLogprob& token, const Tokens* top, StreamDecoder& decoder) const {
    const std::string text = token_text(*model_.tokenizer, token.id);
    choice.logprobs["tokens"].push_back(text), choice.logprobs["token_logprobs"].push_back(token.logprob);
    choice.logprobs["text_offset"].push_back(choice.length);
    if (token.id < model_.tokenizer->vocab_size()) choice.length += characters(decoder.push(token.id));
    Json likely;  // null
    if (top != nullptr) {
      likely = Json::object();
      const size_t most = std::min(top->size(), static_cast<size_t>(options_.logprobs));
      for (size_t i = 0; i < most; ++i) likely[token_text(*model_.tokenizer, (*top)[i].id)] = (*top)[i].logprob;
      if (!likely.contains(text)) likely[text] = token.logprob;
    }
    choice.logprobs["top_logprobs"].push_back(std::move(likely));
  }

  Json choices() override {
    Json list = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) list.push_back(json(i, choices_[i], choices_[i].last));
    return list;
  }

  Json json(size_t index, Choice& choice, const GenerationEvent& event) const {
    Json body = {{"index", index}, {"text", choice.text}, {"logprobs", nullptr}};
    set_end(body, event, finish_name(event.finished));
    if (options_.logprobs >= 0) body["logprobs"] = std::move(choice.logprobs);
    if (options_.prompt_logprobs >= 0) body["prompt_logprobs"] = scores_[choice.prompt];
    if (options_.ids) {
      body["token_ids"] = choice.ids;
      if (!std::exchange(choice.begun, true)) body["prompt_token_ids"] = prompt_ids_[choice.prompt];
    }
    return body;
  }

  const bool echo_, skip_special_;
  std::vector<std::vector<int32_t>> prompt_ids_;
  std::vector<Json> scores_;   // of each prompt
  std::vector<size_t> first_;  // choice of each prompt
  std::vector<Choice> choices_;
};

// Prompts as ids: a text, ids, or a list of either.
std::vector<std::vector<int32_t>> read_prompts(Fields& fields, const ApiModel& model) {
  const Json* prompt = fields.find("prompt");
  if (prompt == nullptr) fields.fail("prompt", "want a string, token ids, or a list of either");
  const bool special = fields.flag("add_special_tokens").value_or(true);
  const int64_t kept = read_kept(fields, model);
  std::vector<std::vector<int32_t>> prompts;
  const auto add_text = [&](const std::string& text) {
    prompts.push_back(encode_prompt(fields, text, special, model, kept));
  };
  const auto add_ids = [&](const Json& list) {
    std::vector<int32_t>& ids = prompts.emplace_back();
    for (const Json& id : list) {
      if (!id.is_number_integer() || id.get<double>() < 0 ||
          id.get<double>() >= static_cast<double>(model.engine->vocab_size()))
        throw ApiError(fmt::format("prompt contains {} (want token ids below {})", id.dump().substr(0, 60),
                                   model.engine->vocab_size()),
                       "prompt");
      ids.push_back(id.get<int32_t>());
    }
    if (kept > 0 && std::ssize(ids) > kept) ids.erase(ids.begin(), ids.end() - kept);
  };
  if (prompt->is_string()) {
    add_text(prompt->get<std::string>());
  } else if (prompt->is_array() && !prompt->empty() && prompt->front().is_number()) {
    add_ids(*prompt);
  } else if (prompt->is_array() && !prompt->empty() && prompt->size() <= static_cast<size_t>(model.max_texts)) {
    for (const Json& one : *prompt) {
      if (one.is_string()) {
        add_text(one.get<std::string>());
      } else if (one.is_array()) {
        add_ids(one);
      } else {
        fields.fail("prompt", "want a string, token ids, or a list of either");
      }
    }
  } else {
    fields.fail("prompt", fmt::format("want a string, token ids, or a list of 1 to {} of either", model.max_texts));
  }
  for (const auto& ids : prompts) {
    if (ids.empty()) throw ApiError("a prompt is empty (want at least one token)", "prompt");
    if (std::ssize(ids) >= model.engine->context()) throw too_long(std::ssize(ids), model);
  }
  return prompts;
}

}  // namespace

Prepared prepare_completion(const ApiRequest& asked, const ApiModel& model, HttpReply reply) {
  Fields fields(asked.json);
  model.check_name(fields);
  GenerationRequest request{.max_tokens = 16};
  set_guide(read_generation(fields, model, asked.key, request), model, request);
  ChoiceJob::Options options = ChoiceJob::read_options(fields);
  const bool echo = fields.flag("echo").value_or(false);
  options.logprobs = fields.integer("logprobs", 0, 20).value_or(-1);
  request.logprobs = options.logprobs;
  const bool echo_scores = echo && options.logprobs >= 0, scores = options.prompt_logprobs >= 0;
  // Without a token of its own a reply is the prompt, or its scores.
  request.max_tokens = read_max_tokens(fields, echo || scores ? 0 : 1).value_or(16);
  request.prompt_logprobs = std::max(options.prompt_logprobs, echo_scores ? options.logprobs : -1);

  Prepared prepared;
  std::vector<GenerationRequest> requests;
  for (std::vector<int32_t>& ids : read_prompts(fields, model)) {
    ChoiceJob::check_scores(fields, scores ? "prompt_logprobs" : "echo", request, ids.size());
    prepared.prompt_tokens += static_cast<int64_t>(ids.size());
    requests.push_back(request);
    requests.back().prompt_ids = std::move(ids);
  }
  if (std::ssize(requests) * std::max(request.n, request.beams) > model.max_texts)
    fields.fail("n", fmt::format("{} prompts give more than {} completions", requests.size(), model.max_texts));
  auto job = std::make_shared<Completion>(model, options, echo, request.skip_special_tokens, std::move(reply));
  job->priority = request.priority;
  job->set_prompts(std::move(requests));
  prepared.job = std::move(job);
  prepared.unknown = fields.unknown();
  return prepared;
}

}  // namespace octet::serve
