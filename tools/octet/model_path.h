// Resolves the model argument of the commands.
#pragma once

#include <string>

namespace octet {

// The newest sound checkpoint of a run folder; any other path unchanged.
std::string model_folder(const std::string& path);

}  // namespace octet
