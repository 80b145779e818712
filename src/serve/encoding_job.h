// What the wire forms of an engine of whole texts share: their inputs, and a job that gathers values.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "serve/api_request.h"
#include "serve/reply_job.h"

namespace octet::serve {

// Gathers the values of every prompt; a reply is never streamed.
class EncodingJob : public ReplyJob {
 public:
  EncodingJob(const ApiModel& model, const char* id_prefix, HttpReply reply)
      : ReplyJob(model, false, std::move(reply)) {
    reply_id = make_id(id_prefix);
  }

 protected:
  std::vector<std::vector<float>> values_;  // of each prompt

  static nlohmann::ordered_json usage_of(const Usage& usage) {
    return {{"prompt_tokens", usage.prompt}, {"total_tokens", usage.prompt}};
  }

 private:
  void on_news(size_t prompt, const GenerationEvent& event) override {
    values_.resize(prompts.size());
    values_[prompt] = event.values;
  }
  std::string last_events(const Usage&) override { return {}; }
  std::string error_events(const ApiError&) const override { return {}; }
};

// How a request's texts become tokens: what truncate_prompt_tokens says.
class InputReader {
 public:
  InputReader(Fields& fields, const ApiModel& model);

  // Of one text or a pair.
  GenerationRequest text(const std::string& text, const std::optional<std::string_view>& pair = {}) const;
  GenerationRequest ids(const nlohmann::ordered_json& list) const;

 private:
  const ApiModel& model_;
  int64_t most_ = 0;  // tokens; 0: what is longer is refused
};

// Takes the prompts into the job and counts them.
Prepared prepared_job(std::shared_ptr<EncodingJob> job, std::vector<GenerationRequest> prompts, Fields& fields);

inline constexpr size_t kMaxInputs = 2048;  // of one request

}  // namespace octet::serve
