// Where CUDA's libraries lie that a Python package brought: cuBLASLt, cuDNN and CUPTI come from there as well as from
// a toolkit.
#pragma once

#include <string>
#include <vector>

namespace octet::cuda {

// Existing paths of `file` in folder nvidia/`package`/lib of Python's packages: those of the active virtual environment
// first, then the user's, then those under /opt, /usr/local and /usr.
std::vector<std::string> python_libraries(const std::string& package, const std::string& file);

}  // namespace octet::cuda
