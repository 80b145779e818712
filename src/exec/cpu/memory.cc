// mmap with alignment and transparent huge pages; available memory from /proc and the cgroup.
#include "exec/cpu/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/error.h"

namespace octet::cpu {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kPage = 4096;

int64_t read_number(const char* path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? number : -1;  // "max" is no number
}

}  // namespace

MappedMemory::MappedMemory(int64_t bytes, const std::string& purpose) : bytes_(bytes) {
  if (bytes <= 0) {
    bytes_ = 0;
    return;
  }
  // Small pieces must not be rounded up to a huge page.
  const int64_t alignment = bytes >= 2 * kHugePage ? kHugePage : kPage;
  const int64_t reserved = (bytes + kPage - 1) / kPage * kPage + (alignment > kPage ? alignment : 0);
  void* base = mmap(nullptr, static_cast<size_t>(reserved), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const int error = errno;  // what follows opens files
  check(base != MAP_FAILED, ErrorCode::kOutOfMemory,
        "cannot map {} bytes for {}: {} ({} bytes are available): use a smaller model, fewer tokens a batch or "
        "recompute",
        bytes, purpose, std::strerror(error), available_memory_bytes());
  auto* begin = static_cast<std::byte*>(base);
  auto* aligned = begin + (-reinterpret_cast<intptr_t>(begin) & (alignment - 1));
  const int64_t mapped = (bytes + kPage - 1) / kPage * kPage;
  if (aligned > begin) munmap(begin, static_cast<size_t>(aligned - begin));
  if (aligned + mapped < begin + reserved) {
    munmap(aligned + mapped, static_cast<size_t>(begin + reserved - (aligned + mapped)));
  }
  if (alignment == kHugePage) madvise(aligned, static_cast<size_t>(bytes / kHugePage * kHugePage), MADV_HUGEPAGE);
  data_ = aligned;
}

MappedMemory::MappedMemory(MappedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedMemory::~MappedMemory() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>((bytes_ + kPage - 1) / kPage * kPage));
}

int64_t available_memory_bytes() {
  int64_t available = 0;
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key; meminfo >> key;) {
    int64_t kilobytes = 0;
    if (key == "MemAvailable:" && meminfo >> kilobytes) available = kilobytes * 1024;
    meminfo.ignore(256, '\n');
  }
  const int64_t limit = read_number("/sys/fs/cgroup/memory.max");
  const int64_t used = read_number("/sys/fs/cgroup/memory.current");
  if (limit > 0 && used >= 0) {
    const int64_t left = std::max<int64_t>(limit - used, 1);
    available = available > 0 ? std::min(available, left) : left;
  }
  return available;
}

}  // namespace octet::cpu
