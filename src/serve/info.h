// Routes that tell of the model and its tokens, without a text of the engine.
#pragma once

#include "serve/api.h"
#include "serve/api_request.h"

namespace octet::serve {

// Each answers by a JSON text. Throws ApiError.
std::string list_models(const ApiRequest& request, const ApiModel& model);
std::string show_model(const ApiRequest& request, const ApiModel& model);
std::string server_info(const ApiRequest& request, const ApiModel& model);
// Of a prompt, or of messages by the chat template.
std::string tokenize(const ApiRequest& request, const ApiModel& model);
std::string detokenize(const ApiRequest& request, const ApiModel& model);
// /v1/chat/completions/render: the prompt of messages, text and ids.
std::string render_chat(const ApiRequest& request, const ApiModel& model);

}  // namespace octet::serve
