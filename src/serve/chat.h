// /v1/chat/completions: messages and tools to a prompt, and replies as text, reasoning and tool calls.
#pragma once

#include "serve/completions.h"

namespace octet::serve {

// A request's messages as the model's template writes them.
struct ChatPrompt {
  std::string text;
  std::vector<int32_t> ids;
};
// `ordered`: the request with its members in the client's order, in which templates print them. Throws ApiError.
ChatPrompt chat_prompt(Fields& fields, const nlohmann::ordered_json& ordered, const ApiModel& model);

// Throws ApiError. The job answers `reply`.
Prepared prepare_chat(const nlohmann::json& json, const nlohmann::ordered_json& ordered, const ApiModel& model,
                      HttpReply reply);

}  // namespace octet::serve
