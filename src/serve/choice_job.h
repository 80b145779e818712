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
    int64_t logprobs = -1;
  };
  // Reads stream, stream_options and return_token_ids.
  static Options read_options(Fields& fields);

  ChoiceJob(const ApiModel& model, const Options& options, HttpReply reply, const char* id_prefix, const char* object);

 protected:
  // "choices" of the whole reply.
  virtual nlohmann::ordered_json choices() = 0;

  void write(const nlohmann::ordered_json& choice);  // a chunk of the stream
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
