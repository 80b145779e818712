// Guided output of requests: structured_outputs, response_format and text.format.
#pragma once

#include "serve/api.h"

namespace octet::serve {

// Sets the request's mask where it asks for a guide. ApiError names the field and what cannot be enforced.
void read_guide(Fields& fields, const ApiModel& model, GenerationRequest& request);
// The same for text.format of the Responses API, after it.
void read_text_format(Fields& fields, const ApiModel& model, GenerationRequest& request);

}  // namespace octet::serve
