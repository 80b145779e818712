// The tensors of a LoRA's folder by PEFT's names, checked against adapter_config.json and the base.
#pragma once

#include <memory>
#include <string>

#include "io/safetensors.h"
#include "weights/adapter_folder.h"

namespace octet {

// Fills spec, tensors, base_copies and unties_head of an adapter whose folder and config are set; `prefix`: of every
// name in the file, in front of PEFT's. Throws as read_adapter does.
void read_lora(Adapter& adapter, const ModelConfig& base, std::shared_ptr<const TensorSource> file,
               const std::string& prefix);

}  // namespace octet
