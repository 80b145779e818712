// /v1/chat/completions: replies as text, reasoning and tool calls.
#pragma once

#include "serve/api.h"
#include "serve/api_request.h"

namespace octet::serve {

// Throws ApiError. The job answers `reply`.
Prepared prepare_chat(const ApiRequest& request, const ApiModel& model, HttpReply reply);

}  // namespace octet::serve
