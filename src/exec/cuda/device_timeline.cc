// The only file that sees CUPTI, which it opens at run time.
#include "exec/timeline.h"

#if __has_include(<cupti.h>)
#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "base/error.h"
#include "kernels/cuda/context.h"

namespace octet {
namespace {

struct SeenActivity {
  uint32_t device;  // CUDA's index
  DeviceActivity activity;
};

// Filled by CUPTI's own threads, through callbacks that carry no pointer: everything that the process does, on whatever
// device.
struct Seen {
  std::mutex mutex;
  std::vector<SeenActivity> activities;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
};
Seen& seen() {
  static Seen& everything = *new Seen;  // CUPTI may call until the process has ended
  return everything;
}

std::string readable(const char* name) {
  if (name == nullptr) return "?";
  int status = 0;
  char* plain = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string text = status == 0 ? plain : name;
  std::free(plain);
  int depth = 0;  // the arguments' list is the last pair of parentheses at depth 0
  for (size_t i = text.size(); i-- > 0;) {
    depth += text[i] == ')' ? 1 : text[i] == '(' ? -1 : 0;
    if (depth == 0) return text[i] == '(' ? text.substr(0, i) : text;
  }
  return text;
}

double seconds(uint64_t nanoseconds) { return 1e-9 * static_cast<double>(nanoseconds); }

void CUPTIAPI request_buffer(uint8_t** buffer, size_t* size, size_t* records) {
  constexpr size_t kBytes = size_t{8} << 20;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBytes));
  *size = *buffer != nullptr ? kBytes : 0, *records = 0;
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  Seen& all = seen();
  CUpti_Activity* record = nullptr;
  {
    std::lock_guard lock(all.mutex);
    while (valid > 0 && all.next_record(buffer, valid, &record) == CUPTI_SUCCESS) {
      if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        const auto& kernel = *reinterpret_cast<const CUpti_ActivityKernel10*>(record);
        all.activities.push_back(
            {kernel.deviceId, {readable(kernel.name), seconds(kernel.start), seconds(kernel.end)}});
      } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const auto& copy = *reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
        all.activities.push_back({copy.deviceId, {"(copy)", seconds(copy.start), seconds(copy.end)}});
      } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY2) {
        const auto& copy = *reinterpret_cast<const CUpti_ActivityMemcpyPtoP4*>(record);
        all.activities.push_back({copy.deviceId, {kPeerCopy, seconds(copy.start), seconds(copy.end)}});
      } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        const auto& fill = *reinterpret_cast<const CUpti_ActivityMemset4*>(record);
        all.activities.push_back({fill.deviceId, {"(fill)", seconds(fill.start), seconds(fill.end)}});
      }
    }
  }
  std::free(buffer);
}

void* open_library() {
  constexpr const char* kName = "libcupti.so.13";
  std::vector<std::string> paths = {kName};
  for (const char* folder : {"/usr/local/cuda/lib64/", "/usr/local/cuda/extras/CUPTI/lib64/"})
    paths.push_back(folder + std::string(kName));
  const std::vector<std::string> wheels = cuda::python_libraries("cu13", kName);
  paths.insert(paths.end(), wheels.begin(), wheels.end());
  std::string refused;
  for (const std::string& path : paths) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    const auto version = reinterpret_cast<decltype(&cuptiGetVersion)>(dlsym(library, "cuptiGetVersion"));
    uint32_t found = 0;
    if (version != nullptr) version(&found);
    const std::string objection = cupti_mismatch(found, CUPTI_API_VERSION);
    if (objection.empty()) return library;
    refused += fmt::format("{}{} {}", refused.empty() ? " (" : ", ", path, objection);
  }
  fail(ErrorCode::kUnsupported,
       "a device timeline needs {} of version {} or a later 13.x, which is in none of the usual places{}: add its "
       "folder "
       "to LD_LIBRARY_PATH, or install it, for example with pip install nvidia-cuda-cupti",
       kName, CUPTI_API_VERSION, refused.empty() ? "" : refused + ")");
}

class CuptiTimeline : public DeviceTimeline {
 public:
  explicit CuptiTimeline(int device) : device_(static_cast<uint32_t>(cuda::device_facts(device).index)) {
    void* library = open_library();
    const auto find = [&](const char* name, auto& function) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      check(function != nullptr, ErrorCode::kUnsupported, "CUPTI has no function {}", name);
    };
    decltype(&cuptiActivityRegisterCallbacks) register_callbacks;
    decltype(&cuptiActivityEnable) enable;
    find("cuptiActivityRegisterCallbacks", register_callbacks);
    find("cuptiActivityEnable", enable);
    find("cuptiActivityFlushAll", flush_);
    find("cuptiGetTimestamp", timestamp_);
    {
      std::lock_guard lock(seen().mutex);
      find("cuptiActivityGetNextRecord", seen().next_record);
    }
    check_cupti(register_callbacks(request_buffer, take_buffer));
    for (CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                    CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_MEMSET})
      check_cupti(enable(kind));
  }
  void begin() override {
    check_cupti(flush_(0));
    take();
  }
  std::vector<DeviceActivity> end() override {
    check_cupti(flush_(0));
    std::vector<DeviceActivity> activities = take();
    std::sort(activities.begin(), activities.end(),
              [](const DeviceActivity& a, const DeviceActivity& b) { return a.begin < b.begin; });
    return activities;
  }
  double now() override {
    uint64_t nanoseconds = 0;
    check_cupti(timestamp_(&nanoseconds));
    return seconds(nanoseconds);
  }

 private:
  // Out of what was seen, this device's.
  std::vector<DeviceActivity> take() const {
    std::vector<DeviceActivity> activities;
    std::lock_guard lock(seen().mutex);
    std::erase_if(seen().activities, [&](SeenActivity& seen) {
      if (seen.device == device_) activities.push_back(std::move(seen.activity));
      return seen.device == device_;
    });
    return activities;
  }
  static void check_cupti(CUptiResult result) {
    check(result == CUPTI_SUCCESS, ErrorCode::kUnsupported,
          "CUPTI refuses (error {}): another profiler may be attached", static_cast<int>(result));
  }
  uint32_t device_;
  decltype(&cuptiActivityFlushAll) flush_ = nullptr;
  decltype(&cuptiGetTimestamp) timestamp_ = nullptr;
};

}  // namespace

std::unique_ptr<DeviceTimeline> make_device_timeline(int device) { return std::make_unique<CuptiTimeline>(device); }

}  // namespace octet

#else
#include "base/error.h"

namespace octet {

std::unique_ptr<DeviceTimeline> make_device_timeline(int) {
  fail(ErrorCode::kUnsupported, "this program was built without cupti.h: no device timeline");
}

}  // namespace octet
#endif
