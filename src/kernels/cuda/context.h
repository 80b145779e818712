// What kernels may know of the device they are bound on: properties, library handles, options. One per executor.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <typeindex>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/device_facts.h"

namespace octet::cuda {

// Throws kInternal with CUDA's name and text of the error; `what` says what was being done.
void check_cuda(cudaError_t status, const char* what);

// Makes a device (CUDA's index) current for the calling thread in a scope. The previous one is restored if it has a
// context: creating one on an unused device would cost hundreds of MiB there. In a thread without a context the
// runtime's question to the driver which device is current fails; it then answers 0. A debugger logs this as
// CUDA_ERROR_INVALID_CONTEXT of cuCtxGetDevice.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) noexcept;  // where it fails, so does what is done next
  DeviceGuard(const DeviceGuard&) = delete;
  ~DeviceGuard();

 private:
  int device_ = 0, before_ = 0;
};

class DeviceRanks;

struct ContextOptions {
  int device = 0;                   // which of the usable ones
  bool deterministic = false;       // the same bits every run: no atomics on floats, no timing-dependent choices
  bool tune_gemms = true;           // time candidate algorithms of new shapes when binding
  std::string gemm_cache = "auto";  // file of algorithm choices; "auto": octet/ in the user's cache folder, "": none
  DeviceRanks* ranks = nullptr;     // of the mesh, where the program is one for a mesh: it outlives the context
};

// A library's handle, or what was learnt of it, on one device. The first kernel that asks makes it.
class DeviceLibrary {
 public:
  virtual ~DeviceLibrary() = default;
  virtual void save() {}  // for later runs
};

enum class StreamRole : uint8_t {
  kCompute,  // kernels and what must lie between them
  kCopy,     // states from the host
  kRanks,    // collectives beside kernels
};

// Any thread may use a context, one at a time, with the device set (DeviceGuard).
class DeviceContext {
 public:
  explicit DeviceContext(ContextOptions options);
  explicit DeviceContext(DeviceFacts facts);  // without a device: to ask which kernels take a node
  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;

  const ContextOptions& options() const { return options_; }
  const DeviceFacts& facts() const { return facts_; }
  bool has_device() const { return stream() != nullptr; }
  int device() const { return facts_.index; }  // CUDA's index
  int sm_count() const { return facts_.sm_count; }
  const std::string& device_name() const { return facts_.name; }
  cudaStream_t stream(StreamRole role = StreamRole::kCompute) const { return streams_[static_cast<size_t>(role)]; }
  // What is put on `after` from now on waits for what is on `before` so far.
  void order(StreamRole before, StreamRole after);
  DeviceRanks& ranks() const;  // throws kInvalidArgument where there are none
  // kCounters words of device memory that are 0 between kernels: what counts in them leaves them at 0. Cleared when
  // they are allocated, by the first call. Null without a device.
  static constexpr int kCounters = 1 << 14;
  uint32_t* counters();

  // The context's own Library, made of the context by the first call: may throw what its constructor throws.
  template <typename Library>
  Library& library();
  void save_libraries();  // when a program is bound

 private:
  static constexpr size_t kStreams = 3;

  ContextOptions options_;
  DeviceFacts facts_;
  std::array<cudaStream_t, kStreams> streams_{};
  std::array<cudaEvent_t, kStreams> reached_{};
  uint32_t* counters_ = nullptr;
  std::vector<std::pair<std::type_index, std::unique_ptr<DeviceLibrary>>> libraries_;  // later ones may use earlier
};

template <typename Library>
Library& DeviceContext::library() {
  for (const auto& [type, made] : libraries_) {
    if (type == typeid(Library)) return static_cast<Library&>(*made);
  }
  auto made = std::make_unique<Library>(*this);
  Library& library = *made;
  libraries_.emplace_back(typeid(Library), std::move(made));
  return library;
}

DeviceContext& facts_alone();  // an H200's, without a device

// Places in the list of those that the kernels are compiled for; where there are none, `why` says what each is.
std::vector<int> devices_with_kernels(std::span<const DeviceFacts> devices, std::string* why = nullptr);

// How many usable devices there are; 0 with the reason in `why` (no driver, no device, none that the kernels run on).
int device_count(std::string* why = nullptr);
// Of a usable device; throws kUnsupported where there is none, kInvalidArgument where there are fewer.
DeviceFacts device_facts(int device);

// A function of the driver, of CUDA 12.0: the library links the runtime alone. Throws kUnsupported where there is none.
void* driver_function(const char* name);

// Where libraries lie that a Python package brought: cuBLASLt, cuDNN and CUPTI come from there as well as from a
// toolkit. Existing paths of `file` in folder nvidia/`package`/lib of Python's packages: those of the active virtual
// environment first, then the user's, then those under /opt, /usr/local and /usr.
std::vector<std::string> python_libraries(const std::string& package, const std::string& file);

}  // namespace octet::cuda
