// Fields that forbid tokens whatever guides a text: allowed_token_ids and bad_words, as vLLM has them.
#pragma once

#include <vector>

#include "serve/api.h"

namespace octet::serve {

// Adds them to the masks of a request's prompts. Throws ApiError.
void restrict_tokens(const nlohmann::ordered_json& body, const ApiModel& model,
                     std::vector<GenerationRequest>& prompts);

}  // namespace octet::serve
