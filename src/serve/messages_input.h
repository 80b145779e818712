// Conversations as Anthropic's Messages API writes them, in the form of chat completions, which templates read.
#pragma once

#include "serve/chat_core.h"

namespace octet::serve {

// Fields system, messages, tools, tool_choice and thinking. Throws ApiError.
ChatInput read_messages_input(Fields& fields, const ApiModel& model);

}  // namespace octet::serve
