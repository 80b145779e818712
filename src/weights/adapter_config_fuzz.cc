// libFuzzer: any text either parses or throws octet::Error, and what parses keeps the promises of adapter_config.h.
#include <cstdlib>

#include "base/error.h"
#include "weights/adapter_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto config = octet::parse_adapter_config({reinterpret_cast<const char*>(data), size}, "fuzz");
    const bool lora = config.method == octet::PeftMethod::kLora;
    if (lora ? config.rank < 1 || !(config.dropout >= 0 && config.dropout < 1) : config.virtual_tokens < 1)
      std::abort();
    for (const auto& [pattern, rank] : config.ranks)
      if (rank < 1) std::abort();
  } catch (const octet::Error&) {
  }
  return 0;
}
