// Finding and opening the library: the loader's own search, the toolkit's folder, then Python's packages.
#include "kernels/cuda/matmul/cublaslt.h"

#include <dlfcn.h>

#include <vector>

#include "base/error.h"

namespace octet::cuda {
namespace {

constexpr size_t kWanted = 130100;
constexpr const char* kName = "libcublasLt.so.13";

std::string version_text(size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::vector<std::string> places() {
  std::vector<std::string> list = {kName, std::string("/usr/local/cuda/lib64/") + kName};
  const std::vector<std::string> wheels = python_libraries("cu13", kName);
  list.insert(list.end(), wheels.begin(), wheels.end());
  return list;
}

}  // namespace

// Adds to `tried` what is there and does not do.
bool CublasLt::open(const std::string& path, std::string& tried) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return false;
  bool complete = true;
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    complete = complete && function != nullptr;
  };
  find("cublasLtCreate", create_);
  find("cublasLtDestroy", destroy_);
  find("cublasLtGetVersion", get_version_);
  find("cublasLtGetStatusString", status_string_);
  find("cublasLtMatmul", matmul);
  find("cublasLtMatmulAlgoGetHeuristic", get_heuristic);
  find("cublasLtMatmulAlgoCheck", check_algorithm);
  find("cublasLtMatmulDescCreate", create_desc);
  find("cublasLtMatmulDescDestroy", destroy_desc);
  find("cublasLtMatmulDescSetAttribute", set_desc);
  find("cublasLtMatrixLayoutCreate", create_layout);
  find("cublasLtMatrixLayoutDestroy", destroy_layout);
  find("cublasLtMatmulPreferenceCreate", create_preference);
  find("cublasLtMatmulPreferenceDestroy", destroy_preference);
  find("cublasLtMatmulPreferenceSetAttribute", set_preference);
  version_ = complete ? get_version_() : 0;
  if (complete && version_ >= kWanted && version_ / 10000 == kWanted / 10000) {
    library_ = library;
    path_ = path;
    return true;
  }
  tried += fmt::format("; {} is {}", path, complete ? "version " + version_text(version_) : "not a whole cuBLASLt");
  dlclose(library);
  return false;
}

CublasLt::CublasLt(DeviceContext&) {
  std::string tried;
  for (const std::string& path : places()) {
    if (open(path, tried)) break;
  }
  octet::check(library_ != nullptr, ErrorCode::kUnsupported,
               "matrix products need {} (cuBLASLt {} or a later 13.x): looked for with the system's loader, in "
               "/usr/local/cuda/lib64 and in nvidia/cu13/lib of Python's packages{}; install CUDA 13.0 update 2 or the "
               "Python package nvidia-cublas",
               kName, version_text(kWanted), tried.empty() ? ", and not found" : tried);
  check(create_(&handle_), "opening the library");
}

CublasLt::~CublasLt() {
  if (handle_ != nullptr) destroy_(handle_);
  // The library stays loaded: it has threads and exit handlers of its own.
}

void CublasLt::check(cublasStatus_t status, const char* what) const {
  octet::check(status == CUBLAS_STATUS_SUCCESS, ErrorCode::kInternal, "cuBLASLt {}: {}: {}", version_text(version_),
               what, status_string_(status));
}

}  // namespace octet::cuda
