// What a request of the Responses API gives the model, in the form of chat completions.
#pragma once

#include "serve/chat_core.h"

namespace octet::serve {

// Appends the items of a conversation as messages. Reasoning, text and calls that follow each other are one message of
// the assistant; reasoning that leads to neither is dropped. `field`: of the items in errors. Throws ApiError.
void add_items(const nlohmann::ordered_json& items, const std::string& field, nlohmann::ordered_json& messages);

// Reads instructions, input, tools, tool_choice, parallel_tool_calls, reasoning and chat_template_kwargs. `history`:
// earlier messages, between instructions and input. Throws ApiError.
ChatInput read_response_input(Fields& fields, const ApiModel& model, const nlohmann::ordered_json& history);

}  // namespace octet::serve
