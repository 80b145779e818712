// What completions and chat completions answer alike: choices of one object, whole or as chunks of a stream.
#pragma once

#include "serve/reply_job.h"

namespace octet::serve {

class ChoiceJob : public ReplyJob {
 public:
  struct Options {
    bool stream = false;
    bool usage = false;  // of a stream: a last chunk with it
    bool ids = false;    // token ids of prompts and texts
    int64_t logprobs = -1, prompt_logprobs = -1;
  };
  // Reads stream, stream_options, return_token_ids and prompt_logprobs.
  static Options read_options(Fields& fields);
  // Throws ApiError, naming the field, where a request for scores of a prompt cannot be served.
  static void check_scores(const Fields& fields, const char* field, const GenerationRequest& request, size_t tokens);

  ChoiceJob(const ApiModel& model, const Options& options, HttpReply reply, const char* id_prefix, const char* object);

 protected:
  // "choices" of the whole reply.
  virtual nlohmann::ordered_json choices() = 0;

  void write(const nlohmann::ordered_json& choice);  // a chunk of the stream
  // vLLM's form of a prompt's scores, null for its first token; more of them.
  static nlohmann::ordered_json no_scores();
  void add_scores(const GenerationEvent& event, nlohmann::ordered_json& scores) const;
  // Members of the whole reply beside its choices.
  virtual void add_members(nlohmann::ordered_json& whole) {}
  // The members "finish_reason" and "stop_reason" of a choice.
  void set_end(nlohmann::ordered_json& choice, const GenerationEvent& event, const char* reason) const;

  const Options options_;

 private:
  std::string whole(const Usage& usage) final;
  std::string last_events(const Usage& usage) final;
  std::string error_events(const ApiError& error) const final;
  nlohmann::ordered_json body(nlohmann::ordered_json choices) const;

  const std::string object_;
};

}  // namespace octet::serve
