// libFuzzer: any bytes either parse or throw octet::Error, and what parses keeps the promises of safetensors.h.
#include <cstdlib>

#include "base/error.h"
#include "io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::span<const std::byte> file{reinterpret_cast<const std::byte*>(data), size};
  try {
    octet::SafetensorsHeader header = octet::parse_safetensors(file, "fuzz");
    int64_t previous = 8;
    for (const octet::SafetensorsEntry& entry : header.tensors) {
      if (entry.offset < previous || entry.bytes < 0 || entry.offset + entry.bytes > static_cast<int64_t>(size) ||
          entry.type.bytes() != entry.bytes)
        std::abort();
      previous = entry.offset + entry.bytes;
    }
  } catch (const octet::Error&) {
  }
  return 0;
}
