// Text of `--version`: commit, compiler, CPU instructions and CUDA architectures.
#pragma once

#include <string>

namespace octet {

// "octet 0.1.0 (commit ...)", then one line each for the compiler, the CPU and CUDA.
std::string version_text(const std::string& program);

}  // namespace octet
