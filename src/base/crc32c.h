// CRC-32C (Castagnoli), the checksum of manifests and of TensorBoard's records. Uses the CPU's instruction where it has
// one (several GB/s); the table fallback gives the same values.
#pragma once

#include <cstdint>

namespace octet {

// Checksum of `bytes` bytes at `data`, continuing from `crc`, the checksum of what came before (0 at the start).
uint32_t crc32c(const void* data, int64_t bytes, uint32_t crc = 0);

// The table version, exposed so that a test can compare the two.
uint32_t crc32c_portable(const void* data, int64_t bytes, uint32_t crc = 0);

}  // namespace octet
