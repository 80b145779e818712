#include "serve/completions.h"

#include <fmt/format.h>

#include <utility>

#include "base/json.h"
#include "serve/choice_job.h"

namespace octet::serve {
namespace {

using Json = nlohmann::ordered_json;

class Completion final : public ChoiceJob {
 public:
  Completion(const ApiModel& model, const Options& options, bool echo, HttpReply reply)
      : ChoiceJob(model, options, std::move(reply), "cmpl-", "text_completion"), echo_(echo) {}

  void set_prompts(std::vector<GenerationRequest> requests) {
    prompts = std::move(requests);
    for (const GenerationRequest& prompt : prompts) {
      prompt_ids_.push_back(options_.ids ? prompt.prompt_ids : std::vector<int32_t>{});
      echoed_.push_back(echo_ ? model_.tokenizer->decode(prompt.prompt_ids, /*skip_special=*/true) : "");
      first_.push_back(choices_.size());
      for (int64_t i = 0; i < prompt.n; ++i) choices_.push_back({.prompt = first_.size() - 1, .text = echoed_.back()});
    }
  }

 private:
  struct Choice {
    size_t prompt = 0;
    std::string text = {};  // not yet sent
    std::vector<int32_t> ids = {};
    std::vector<TokenLogprob> logprobs = {};
    std::vector<std::vector<TokenLogprob>> top = {};
    size_t length = 0;  // of the tokens' texts before these: their offsets
    bool begun = false;
    GenerationEvent last = {};
  };

  void on_news(size_t prompt, const GenerationEvent& event) override {
    const size_t index = first_[prompt] + static_cast<size_t>(event.sample);
    Choice& choice = choices_[index];
    choice.text += event.text;
    choice.ids.insert(choice.ids.end(), event.ids.begin(), event.ids.end());
    choice.logprobs.insert(choice.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    choice.top.insert(choice.top.end(), event.top.begin(), event.top.end());
    if (options_.stream) {
      write(json(index, choice, event));
      choice.text.clear(), choice.ids.clear(), choice.logprobs.clear(), choice.top.clear();
    } else if (event.finished != FinishReason::kNone) {
      choice.last = {.finished = event.finished, .stop = event.stop, .stop_id = event.stop_id};
    }
  }

  Json choices() override {
    Json list = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) list.push_back(json(i, choices_[i], choices_[i].last));
    return list;
  }

  Json json(size_t index, Choice& choice, const GenerationEvent& event) {
    Json body = {{"index", index}, {"text", choice.text}, {"logprobs", nullptr}};
    set_end(body, event, finish_name(event.finished));
    if (options_.logprobs >= 0) body["logprobs"] = logprobs(choice);
    if (options_.ids) {
      body["token_ids"] = choice.ids;
      if (!std::exchange(choice.begun, true)) body["prompt_token_ids"] = prompt_ids_[choice.prompt];
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

  const bool echo_;
  std::vector<std::string> echoed_;
  std::vector<std::vector<int32_t>> prompt_ids_;
  std::vector<size_t> first_;  // choice of each prompt
  std::vector<Choice> choices_;
};

// Prompts as ids: a text, ids, or a list of either.
std::vector<std::vector<int32_t>> read_prompts(Fields& fields, const ApiModel& model) {
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
  for (const auto& ids : prompts) {
    if (ids.empty()) throw ApiError("a prompt is empty: it has no token (give it at least one)", "prompt");
    if (std::ssize(ids) >= model.engine->context())
      throw ApiError(
          fmt::format("a prompt has {} tokens and the context is {}: shorten it", ids.size(), model.engine->context()),
          "prompt", 400, error_kind_name(ErrorKind::kTooLong));
  }
  return prompts;
}

}  // namespace

Prepared prepare_completion(const ApiRequest& asked, const ApiModel& model, HttpReply reply) {
  Fields fields(asked.json);
  model.check_name(fields);
  GenerationRequest request{.max_tokens = 16};
  read_generation(fields, model, request);
  ChoiceJob::Options options = ChoiceJob::read_options(fields);
  const bool echo = fields.flag("echo").value_or(false);
  options.logprobs = fields.integer("logprobs", 0, 20).value_or(-1);
  request.logprobs = options.logprobs;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const std::optional<int64_t> max_tokens = fields.integer("max_tokens", 1, kMost);
  request.max_tokens = max_tokens.value_or(16);
  if (echo && options.logprobs >= 0) fields.fail("echo", "with logprobs it is not served yet");
  fields.refuse("suffix", "suffixes are not served", "\"\"");
  if (const auto best = fields.integer("best_of", 1, model.max_texts); best && *best != request.n)
    fields.fail("best_of", "other than n it is not served yet");

  Prepared prepared;
  std::vector<GenerationRequest> requests;
  for (std::vector<int32_t>& ids : read_prompts(fields, model)) {
    prepared.prompt_tokens += static_cast<int64_t>(ids.size());
    requests.push_back(request);
    requests.back().prompt_ids = std::move(ids);
  }
  if (static_cast<int64_t>(requests.size()) * request.n > model.max_texts)
    fields.fail("n", fmt::format("{} prompts give more than {} texts", requests.size(), model.max_texts));
  auto job = std::make_shared<Completion>(model, options, echo, std::move(reply));
  job->priority = request.priority;
  job->set_prompts(std::move(requests));
  prepared.job = std::move(job);
  prepared.unknown = fields.unknown();
  return prepared;
}

}  // namespace octet::serve
