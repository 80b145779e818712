// vLLM's routes that load and unload adapters while the server runs: folders below --adapter-root, for an admin's key.
#pragma once

#include <string>

#include "serve/api_request.h"

namespace octet::serve {

// {"lora_name", "lora_path", "load_inplace"?}; the path is relative to the root or below it.
std::string load_lora_adapter(const ApiRequest& request, const ApiModel& model);
// {"lora_name"}. What runs with it ends with it.
std::string unload_lora_adapter(const ApiRequest& request, const ApiModel& model);

}  // namespace octet::serve
