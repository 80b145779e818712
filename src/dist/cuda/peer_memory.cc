#include "dist/cuda/peer_memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <mutex>
#include <numeric>

#include "base/error.h"
#include "kernels/cuda/context.h"

namespace octet {
namespace {

using cuda::check_cuda;

struct Driver {
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemAddressFree) unreserve;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) set_access;
  decltype(&cuMemGetAllocationGranularity) granularity;
  decltype(&cuMemRetainAllocationHandle) retain;
  decltype(&cuMemExportToShareableHandle) give;
  decltype(&cuMemImportFromShareableHandle) take;

  Driver() {
    const auto find = [](const char* name, auto& function) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(cuda::driver_function(name));
    };
    find("cuMemCreate", create);
    find("cuMemRelease", release);
    find("cuMemAddressReserve", reserve);
    find("cuMemAddressFree", unreserve);
    find("cuMemMap", map);
    find("cuMemUnmap", unmap);
    find("cuMemSetAccess", set_access);
    find("cuMemGetAllocationGranularity", granularity);
    find("cuMemRetainAllocationHandle", retain);
    find("cuMemExportToShareableHandle", give);
    find("cuMemImportFromShareableHandle", take);
  }
};

const Driver& driver() {
  static const Driver functions;
  return functions;
}

// Ranks that are threads of one process make, map, unmap and release allocations one at a time: the driver frees its
// own records twice where two threads do so with an allocation that several devices map.
std::mutex& mapping() {
  static std::mutex one;
  return one;
}

CUmemAllocationProp properties(int device) {
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return prop;
}

// Maps an allocation here, for the device; null where that cannot be. Under mapping().
std::byte* map_here(CUmemGenericAllocationHandle handle, size_t bytes, int device) {
  CUdeviceptr at = 0;
  if (driver().reserve(&at, bytes, 0, 0, 0) != CUDA_SUCCESS) return nullptr;
  CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  if (driver().map(at, bytes, 0, handle, 0) == CUDA_SUCCESS) {
    if (driver().set_access(at, bytes, &access, 1) == CUDA_SUCCESS) return reinterpret_cast<std::byte*>(at);
    driver().unmap(at, bytes);
  }
  driver().unreserve(at, bytes);
  return nullptr;
}

void unmap_here(std::byte* memory, size_t bytes) {
  if (memory == nullptr) return;
  const std::lock_guard lock(mapping());
  driver().unmap(reinterpret_cast<CUdeviceptr>(memory), bytes);
  driver().unreserve(reinterpret_cast<CUdeviceptr>(memory), bytes);
}

constexpr size_t kNameBytes = 64, kMaxRanks = 1024;
using Name = std::array<char, kNameBytes>;

// Of a machine's running system.
Name machine() {
  Name name = {};
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  if (std::getline(file, id)) std::memcpy(name.data(), id.data(), std::min(id.size(), kNameBytes - 1));
  return name;
}

struct Place {
  Name machine = {}, bus = {};
};

template <typename T>
std::vector<T> from_all(Communicator& ranks, const std::vector<int32_t>& members, const T& own) {
  std::vector<T> all(members.size());
  const std::vector<std::span<const std::byte>> send(members.size(), std::as_bytes(std::span(&own, 1)));
  std::vector<std::span<std::byte>> receive;
  for (T& other : all) receive.push_back(std::as_writable_bytes(std::span(&other, 1)));
  ranks.exchange(members, send, receive);
  return all;
}

std::vector<int32_t> everyone(const Mesh& mesh) {
  std::vector<int32_t> ranks(static_cast<size_t>(mesh.ranks()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

// Of an allocation: by its address for threads of one process, by a file descriptor for other processes.
struct PeerMemory::Address {
  int64_t process = 0, bytes = 0;
  std::byte* memory = nullptr;
  int file = -1;
};

PeerMemory::PeerMemory(Communicator& ranks, int device) : ranks_(ranks), device_(device) {
  const cuda::DeviceGuard guard(device_);
  const std::vector<int32_t> all = everyone(ranks.mesh());
  Place own{.machine = machine()};
  check_cuda(cudaDeviceGetPCIBusId(own.bus.data(), static_cast<int>(kNameBytes), device_), "asking for a device's bus");
  const std::vector<Place> places = from_all(ranks, all, own);
  void* word = nullptr;
  check_cuda(cudaHostAlloc(&word, sizeof(int), cudaHostAllocPortable | cudaHostAllocMapped), "a word of the host");
  aborted_ = static_cast<int*>(word);
  *aborted_ = 0;
  // Who may be reached, then who is: a small allocation of each is mapped.
  const size_t count = all.size();
  std::array<char, kMaxRanks> reached = {};
  for (size_t r = 0; r < std::min(count, kMaxRanks); ++r) {
    int other = 0, access = 0;
    if (places[r].machine != own.machine || own.machine == Name{}) continue;
    if (static_cast<int32_t>(r) == ranks.rank()) {
      reached[r] = 1;
    } else if (cudaDeviceGetByPCIBusId(&other, places[r].bus.data()) == cudaSuccess && other != device_ &&
               cudaDeviceCanAccessPeer(&access, device_, other) == cudaSuccess) {
      reached[r] = access != 0;  // not of one's own device: its kernels may not run at once, and wait for each other
    }
    cudaGetLastError();
  }
  const auto agree = [&] {
    reaches_.clear();
    for (const auto& row : from_all(ranks, all, reached))
      reaches_.insert(reaches_.end(), row.begin(), row.begin() + static_cast<ptrdiff_t>(std::min(count, kMaxRanks)));
  };
  agree();
  std::shared_ptr<const Mapped> trial = allocate(all, 1, "a trial of peer memory");
  for (size_t r = 0; r < std::min(count, kMaxRanks); ++r) reached[r] = trial->at[r] != nullptr;
  trial.reset();
  agree();  // all have unmapped it
}

PeerMemory::~PeerMemory() {
  const cuda::DeviceGuard guard(device_);
  cudaFreeHost(aborted_);
}

bool PeerMemory::reach(const std::vector<int32_t>& ranks) const {
  const auto count = static_cast<size_t>(ranks_.mesh().ranks());
  if (count > kMaxRanks) return false;
  return std::ranges::all_of(ranks, [&](int32_t a) {
    return std::ranges::all_of(
        ranks, [&](int32_t b) { return reaches_[static_cast<size_t>(a) * count + static_cast<size_t>(b)] != 0; });
  });
}

bool PeerMemory::any() const {
  const auto count = static_cast<size_t>(ranks_.mesh().ranks());
  for (size_t i = 0; i < reaches_.size(); ++i)
    if (i / count != i % count && reaches_[i] != 0) return true;
  return false;
}

std::byte* PeerMemory::import(const Address& address, int64_t bytes) const {
  const std::lock_guard lock(mapping());
  CUmemGenericAllocationHandle handle = 0;
  if (address.process == getpid()) {
    if (driver().retain(&handle, address.memory) != CUDA_SUCCESS) return nullptr;
  } else {
    const auto process = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(address.process), 0));
    const auto file = process < 0 ? -1 : static_cast<int>(syscall(SYS_pidfd_getfd, process, address.file, 0));
    const bool taken = file >= 0 && driver().take(&handle, reinterpret_cast<void*>(static_cast<intptr_t>(file)),
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS;
    for (const int open : {process, file})
      if (open >= 0) close(open);
    if (!taken) return nullptr;
  }
  std::byte* memory = map_here(handle, static_cast<size_t>(bytes), device_);
  driver().release(handle);
  return memory;
}

std::shared_ptr<const PeerMemory::Mapped> PeerMemory::allocate(const std::vector<int32_t>& ranks, int64_t bytes,
                                                               const std::string& purpose,
                                                               const std::function<void(std::byte*)>& initialize) {
  const cuda::DeviceGuard guard(device_);
  check_cuda(cudaFree(nullptr), "making a context");
  const auto release = [device = device_](const Mapped* mapped) {
    const cuda::DeviceGuard guard(device);
    cudaDeviceSynchronize();
    for (std::byte* memory : mapped->at) unmap_here(memory, static_cast<size_t>(mapped->bytes));
    delete mapped;
  };
  const std::shared_ptr<Mapped> mapped(new Mapped, release);
  mapped->at.resize(ranks.size());
  const CUmemAllocationProp prop = properties(device_);
  size_t grain = 0;
  check(driver().granularity(&grain, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) == CUDA_SUCCESS,
        ErrorCode::kUnsupported, "the CUDA driver has no virtual memory management");
  const size_t size = (static_cast<size_t>(bytes) + grain - 1) / grain * grain;
  mapped->bytes = static_cast<int64_t>(size);
  Address own{.process = getpid(), .bytes = mapped->bytes};
  CUmemGenericAllocationHandle handle = 0;
  if (size > 0) {
    CUresult status;
    {
      const std::lock_guard lock(mapping());
      status = driver().create(&handle, size, &prop, 0);
      if (status == CUDA_SUCCESS) mapped->own = map_here(handle, size, device_);
    }
    check(mapped->own != nullptr, ErrorCode::kOutOfMemory, "{}: {} bytes are wanted of the GPU (CUDA error {})",
          purpose, size, static_cast<int>(status));
    own.memory = mapped->own;
    if (initialize) {
      initialize(mapped->own);
      check_cuda(cudaDeviceSynchronize(), purpose.c_str());
    }
    if (driver().give(&own.file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS) own.file = -1;
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);  // whom another rank's process may take the file from
  }
  const std::vector<Address> all = from_all(ranks_, ranks, own);
  for (size_t i = 0; i < all.size() && size > 0; ++i) {
    if (ranks[i] == ranks_.rank()) {
      mapped->at[i] = mapped->own;
    } else if (all[i].bytes == mapped->bytes && reach({ranks[i], ranks_.rank()})) {
      mapped->at[i] = import(all[i], mapped->bytes);
    }
  }
  from_all(ranks_, ranks, char{});  // all have mapped it
  if (own.file >= 0) close(own.file);
  if (handle != 0) {
    const std::lock_guard lock(mapping());
    driver().release(handle);
  }
  return mapped;
}

std::shared_ptr<std::byte> PeerMemory::share(int64_t bytes, const std::string& purpose) {
  const std::shared_ptr<const Mapped> mapped = allocate(everyone(ranks_.mesh()), bytes, purpose);
  std::erase_if(shared_, [](const auto& other) { return other.expired(); });
  if (mapped->own == nullptr) return nullptr;
  shared_.push_back(mapped);
  return {mapped, mapped->own};
}

std::byte* PeerMemory::there(const void* address, int32_t rank) const {
  const auto* at = static_cast<const std::byte*>(address);
  for (const auto& weak : shared_) {
    const std::shared_ptr<const Mapped> mapped = weak.lock();
    if (mapped == nullptr || at < mapped->own || at >= mapped->own + mapped->bytes) continue;
    std::byte* other = mapped->at[static_cast<size_t>(rank)];
    return other == nullptr ? nullptr : other + (at - mapped->own);
  }
  return nullptr;
}

}  // namespace octet
