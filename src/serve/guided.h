// Guided output of requests: structured_outputs and response_format.
#pragma once

#include "serve/api.h"

namespace octet::serve {

// Sets the request's mask where it asks for a guide. ApiError names the field and what cannot be enforced.
void read_guide(Fields& fields, const ApiModel& model, GenerationRequest& request);

}  // namespace octet::serve
