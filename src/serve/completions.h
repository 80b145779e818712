// /v1/completions: prompts in text or ids, one or many; whole or streamed.
#pragma once

#include "serve/api.h"
#include "serve/front.h"

namespace octet::serve {

// A request that is ready for the front, and what it costs.
struct Prepared {
  std::shared_ptr<Job> job;
  int64_t prompt_tokens = 0;
  std::vector<std::string> unknown;  // fields that were ignored
};

// Throws ApiError. The job answers `reply`.
Prepared prepare_completion(const nlohmann::json& body, const ApiModel& model, HttpReply reply);

}  // namespace octet::serve
