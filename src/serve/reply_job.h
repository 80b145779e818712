// What the jobs of all wire forms do alike: a reply that is whole or streamed, and its errors.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "serve/api.h"
#include "serve/front.h"

namespace octet::serve {

// What a client is told of a refusal; `reply` says when to try again.
ApiError refusal_error(const Refusal& refusal, HttpReply& reply);

class ReplyJob : public Job {
 public:
  ReplyJob(const ApiModel& model, bool stream, HttpReply reply);

  void on_refusal(const Refusal& refusal) final;
  void on_end(const std::vector<RequestTimes>& times) final;
  void on_event(size_t prompt, const GenerationEvent& event) final;

 protected:
  // A text's news, no error, and whether they end it.
  virtual void on_news(size_t prompt, const GenerationEvent& event) = 0;
  // The body of a reply that is not streamed.
  virtual std::string whole(const Usage& usage) = 0;
  virtual const char* content_type() const { return "application/json"; }  // of whole()
  // The last events of a stream.
  virtual std::string last_events(const Usage& usage) = 0;
  // An error before a stream's head, and inside of a stream.
  virtual std::string error(const ApiError& error) const { return error_body(error); }
  virtual std::string error_events(const ApiError& error) const = 0;

  void write(std::string_view events);  // of a stream; its head before the first ones
  void add_field(const std::string& name, const std::string& value) { reply_.add_field(name, value); }

  // What the reply calls the model.
  const std::string& model_name() const { return adapter.empty() ? model_.names[0] : adapter; }

  const ApiModel& model_;
  const bool stream_;
  const int64_t created_;  // seconds since 1970

 private:
  void begin();
  void fail(const ApiError& error);

  HttpReply reply_;
  bool failed_ = false;
};

}  // namespace octet::serve
