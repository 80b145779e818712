// cuBLASLt, opened at run time, so that one program also runs where it is not installed: the handle and the functions
// the matrix products use.
#pragma once

#include <cublasLt.h>

#include <string>

#include "kernels/cuda/context.h"

namespace octet::cuda {

class CublasLt final : public DeviceLibrary {
 public:
  // Throws kUnsupported naming the library, the places looked at, the versions found and the one wanted.
  explicit CublasLt(DeviceContext& context);
  ~CublasLt() override;
  CublasLt(const CublasLt&) = delete;

  cublasLtHandle_t handle() const { return handle_; }
  size_t version() const { return version_; }  // 130100 is 13.1.0
  const std::string& path() const { return path_; }

  // Throws kInternal with the library's text of the status; `what` says what was being done.
  void check(cublasStatus_t status, const char* what) const;

  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) get_heuristic = nullptr;
  decltype(&cublasLtMatmulAlgoCheck) check_algorithm = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_desc = nullptr;
  decltype(&cublasLtMatmulDescDestroy) destroy_desc = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_desc = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;

 private:
  bool open(const std::string& path, std::string& tried);

  void* library_ = nullptr;
  cublasLtHandle_t handle_ = nullptr;
  size_t version_ = 0;
  std::string path_;
  decltype(&cublasLtCreate) create_ = nullptr;
  decltype(&cublasLtDestroy) destroy_ = nullptr;
  decltype(&cublasLtGetVersion) get_version_ = nullptr;
  decltype(&cublasLtGetStatusString) status_string_ = nullptr;
};

}  // namespace octet::cuda
