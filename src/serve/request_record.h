// What a request was and became, as the access log and traces tell it: never a prompt, a text or a key.
#pragma once

#include <string>
#include <vector>

#include "octet/engine.h"
#include "serve/http.h"
#include "serve/trace_context.h"

namespace octet::serve {

// Shared by those who fill it, each fields of its own; RequestLog::begin says what becomes of it.
struct RequestRecord {
  double time = 0;  // of its arrival, seconds since 1970
  std::string id, peer, method, path;
  bool probe = false;
  std::string route, key;  // of the table of routes; the key's name
  std::string error;       // code of a refusal or of a text's error
  HttpOutcome outcome;
  TraceContext trace;  // empty where no traces are sent

  // Of a request for texts; empty: of another one.
  std::string operation, model, reply_id;  // "chat" or "text_completion"; the model's name; of the object that answers
  int64_t max_tokens = 0, choices = 1;
  double temperature = 0, top_p = 0;

  // Of the front: all texts together, seconds from the request's entering the queue.
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  double scheduled = 0, first_token = 0, last_token = 0;
  std::vector<FinishReason> finished;  // of texts, as they end
  // `queued`: seconds outside of the engine; `times`: of each prompt inside of it.
  void add(const std::vector<RequestTimes>& times, double queued);
};

}  // namespace octet::serve
