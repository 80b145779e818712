// Anthropic's Messages API: /v1/messages and /v1/messages/count_tokens.
#pragma once

#include "serve/api_request.h"

namespace octet::serve {

// Throws ApiError. The job answers `reply`.
Prepared prepare_message(const ApiRequest& asked, const ApiModel& model, HttpReply reply);
// {"input_tokens"} of the prompt. Throws ApiError.
std::string count_message_tokens(const ApiRequest& asked, const ApiModel& model);
// {"type": "error", "error": {"type", "message"}, "request_id"}.
std::string message_error_body(const ApiError& error);

}  // namespace octet::serve
