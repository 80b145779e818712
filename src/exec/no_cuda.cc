// What a build without CUDA says when it is asked for a GPU.
#include "base/error.h"
#include "exec/executor.h"

namespace octet {

bool cuda_available(std::string* why) {
  if (why != nullptr) *why = "this program was built without CUDA (-DOCTET_CUDA=ON builds with it)";
  return false;
}

std::unique_ptr<Executor> make_cuda_executor(Plan, const CudaOptions&) {
  std::string why;
  cuda_available(&why);
  fail(ErrorCode::kUnsupported, "no GPU can be used: {}", why);
}

Target cuda_target(const CudaOptions&) {
  std::string why;
  cuda_available(&why);
  fail(ErrorCode::kUnsupported, "no GPU can be used: {}", why);
}

}  // namespace octet
