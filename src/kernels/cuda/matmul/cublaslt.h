// cuBLASLt, opened at run time: the handle and the functions the rows use.
#pragma once

namespace octet::cuda {

class CublasLt {
 public:
  CublasLt() = default;
};

}  // namespace octet::cuda
