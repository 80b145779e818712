// /v1/chat/completions: messages and tools to a prompt, and replies as text, reasoning and tool calls.
#pragma once

#include "serve/completions.h"

namespace octet::serve {

// A request's messages as the model's template writes them.
struct ChatPrompt {
  std::string text;
  std::vector<int32_t> ids;
};
// `body` as the client wrote it: templates print members in their order. Throws ApiError.
ChatPrompt chat_prompt(Fields& fields, std::string_view body, const ServedModel& model);

// Throws ApiError. The job answers `reply`.
Prepared prepare_chat(const nlohmann::json& json, std::string_view body, const ServedModel& model, HttpReply reply);

}  // namespace octet::serve
