// What the jobs of all wire forms do alike: the stream's head, errors, the end.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "serve/api.h"
#include "serve/front.h"

namespace octet::serve {

class ReplyJob : public Job {
 public:
  struct Options {
    bool stream = false;
    bool usage = false;  // of a stream: a last chunk with it
    bool ids = false;    // token ids of prompts and texts
    int64_t logprobs = -1;
  };
  // Reads stream, stream_options and return_token_ids.
  static Options read_options(Fields& fields);

  ReplyJob(const ApiModel& model, const Options& options, HttpReply reply, const char* id_prefix, const char* object);

  void on_refusal(const Refusal& refusal) final;
  void on_end(const std::vector<RequestTimes>& times) final;
  void on_event(size_t prompt, const GenerationEvent& event) final;

 protected:
  // A text's news, no error, and whether they end it.
  virtual void on_news(size_t prompt, const GenerationEvent& event) = 0;
  // "choices" of the whole reply.
  virtual nlohmann::ordered_json choices() = 0;

  void write(const nlohmann::ordered_json& choice);  // a chunk of the stream
  // The members "finish_reason" and "stop_reason" of a choice.
  void set_end(nlohmann::ordered_json& choice, const GenerationEvent& event, const char* reason) const;

  const ApiModel& model_;
  const Options options_;

 private:
  nlohmann::ordered_json body(nlohmann::ordered_json choices) const;
  void begin();
  void fail(const ApiError& error);

  HttpReply reply_;
  const std::string id_, object_;
  const int64_t created_;
  bool failed_ = false;
};

}  // namespace octet::serve
