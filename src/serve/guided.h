// Guided output of requests: structured_outputs, response_format and text.format.
#pragma once

#include "serve/api.h"

namespace octet::serve {

// What a request's texts are guided by. ApiError names the field and what cannot be enforced. `key`: the API key's
// name; guides are shared by requests of one.
TextGuide read_guide(Fields& fields, const ApiModel& model, const std::string& key);
// The same for text.format of the Responses API, after it.
void read_text_format(Fields& fields, const ApiModel& model, const std::string& key, TextGuide& guide);

// A guide of texts; `thought`: as of GuideState.
struct GuideUse {
  std::shared_ptr<const Guide> guide;
  bool thought = false;
};
// Sets the request's mask: each of its texts fits one of the guides; without guides it stays as it is. Its n, stop_ids
// and ignore_eos are read. Throws ApiError.
void set_guides(const std::vector<GuideUse>& guides, const ApiModel& model, GenerationRequest& request);
// The same for a text that is not parsed.
void set_guide(const TextGuide& guide, const ApiModel& model, GenerationRequest& request);

// The guide of this kind and source, made where there is none yet. Throws as `make` and GuideCache.
std::shared_ptr<const Guide> find_guide(const ApiModel& model, const std::string& key, const std::string& kind,
                                        const std::string& source, const GuideCache::Make& make);

}  // namespace octet::serve
