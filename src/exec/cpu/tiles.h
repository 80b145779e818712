// The matrix unit that FP8 recipes are quick with on a CPU.
#pragma once

namespace octet::cpu {

// Whether products run on AMX-BF16 tiles: the processor, the kernel and this build have them. Elsewhere FP8 codes are
// decoded for float32 products, while bf16 ones have instructions of their own.
bool has_bf16_tiles();

}  // namespace octet::cpu
