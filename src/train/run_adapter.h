// The adapter that a run has trained, from its checkpoint: what `octet export` writes.
#pragma once

#include <string>

#include "weights/adapter_folder.h"

namespace octet {

// Whether the folder is a checkpoint that holds an adapter alone, without the model.
bool is_adapter_checkpoint(const std::string& folder);

// `base` becomes the folder of the run's model.from where it is "". P-tuning's encoder has made its last rows: the
// adapter has "prompt.weight" alone. Throws kNotFound where the base is not there, kCorrupt for a tensor that is
// missing or of another shape.
Adapter read_run_adapter(const std::string& checkpoint, std::string& base);

}  // namespace octet
