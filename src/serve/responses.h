// OpenAI's Responses API.
#pragma once

#include "serve/api.h"
#include "serve/api_request.h"

namespace octet::serve {

// A request of /v1/responses. Throws ApiError.
Prepared prepare_response(const ApiRequest& request, const ApiModel& model, HttpReply reply);

// A response that is kept (ApiModel::responses), its JSON text. ApiError 404.
std::string show_response(const ApiRequest& request, const ApiModel& model);
std::string delete_response(const ApiRequest& request, const ApiModel& model);

}  // namespace octet::serve
