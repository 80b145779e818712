// What users may name as a model.
#pragma once

#include <string>

namespace octet {

// A run folder stands for its newest sound checkpoint; anything else for itself.
std::string model_folder(const std::string& path);

}  // namespace octet
