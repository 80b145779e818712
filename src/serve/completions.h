// /v1/completions: prompts in text or ids, one or many; whole or streamed.
#pragma once

#include "serve/api.h"
#include "serve/api_request.h"

namespace octet::serve {

// Throws ApiError. The job answers `reply`.
Prepared prepare_completion(const ApiRequest& request, const ApiModel& model, HttpReply reply);

}  // namespace octet::serve
