// Guided output of requests: structured_outputs, response_format and text.format.
#pragma once

#include "serve/api.h"

namespace octet::serve {

// Sets the request's mask where it asks for a guide. ApiError names the field and what cannot be enforced. `key`: the
// API key's name; guides are shared by requests of one.
void read_guide(Fields& fields, const ApiModel& model, const std::string& key, GenerationRequest& request);
// The same for text.format of the Responses API, after it.
void read_text_format(Fields& fields, const ApiModel& model, const std::string& key, GenerationRequest& request);
// Sets the request's mask: each of its texts fits the guide. Its n, stop_ids and ignore_eos are read. Throws ApiError.
void set_guide(const std::shared_ptr<const Guide>& guide, const ApiModel& model, GenerationRequest& request);

// The guide of this kind and source, made where there is none yet. Throws as `make` and GuideCache.
std::shared_ptr<const Guide> find_guide(const ApiModel& model, const std::string& key, const std::string& kind,
                                        const std::string& source, const GuideCache::Make& make);

}  // namespace octet::serve
