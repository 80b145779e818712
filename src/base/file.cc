// Folders, whole files and the read-only map. The writers are file_writer.cc.
#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_errno(const std::string& action, const std::string& path, int error_number) {
  ErrorCode code = error_number == ENOENT || error_number == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kIo;
  fail(code, "{}: cannot {}: {}", path, action, std::strerror(error_number));
}

// Closes the descriptor on scope exit.
struct Descriptor {
  explicit Descriptor(const std::string& path) : value(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (value < 0) fail_errno("open", path, errno);
  }
  ~Descriptor() { close(value); }
  int value;
};

int64_t regular_size(int descriptor, const std::string& path) {
  struct stat info {};
  if (fstat(descriptor, &info) != 0) fail_errno("stat", path, errno);
  check(!S_ISDIR(info.st_mode), ErrorCode::kInvalidArgument, "{}: is a folder; want a file", path);
  check(S_ISREG(info.st_mode), ErrorCode::kInvalidArgument, "{}: is not a regular file", path);
  return info.st_size;
}

}  // namespace

bool path_exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

bool is_folder(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

int64_t file_size(const std::string& path) { return regular_size(Descriptor(path).value, path); }

void make_folders(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!error && !is_folder(path)) error = std::make_error_code(std::errc::not_a_directory);
  check(!error, ErrorCode::kIo, "{}: cannot make this folder: {}", path, error.message());
}

std::vector<std::string> list_folder(const std::string& path) {
  std::error_code error;
  std::vector<std::string> names;
  fs::directory_iterator entry(path, error), end;
  for (; !error && entry != end; entry.increment(error)) names.push_back(entry->path().filename().string());
  check(!error, ErrorCode::kNotFound, "{}: cannot list this folder: {}", path, error.message());
  std::sort(names.begin(), names.end());
  return names;
}

void remove_path(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  check(!error, ErrorCode::kIo, "{}: cannot remove: {}", path, error.message());
}

void rename_path(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) fail_errno("rename to " + to, from, errno);
}

void sync_path(const std::string& path) {
  Descriptor descriptor(path);
  // EINVAL: the file system does not support fsync (some network and FUSE mounts).
  if (fsync(descriptor.value) != 0 && errno != EINVAL) fail_errno("sync to disk", path, errno);
}

std::string parent_folder(const std::string& path) {
  std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

std::string read_file(const std::string& path, int64_t limit) {
  Descriptor descriptor(path);
  int64_t size = regular_size(descriptor.value, path);
  check(size <= limit, ErrorCode::kInvalidArgument, "{}: {} bytes, more than the {} this kind of file may have", path,
        size, limit);
  std::string content(static_cast<size_t>(size), '\0');
  int64_t done = 0;
  while (done < size) {
    ssize_t got = read(descriptor.value, content.data() + done, static_cast<size_t>(size - done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno("read", path, errno);
    check(got > 0, ErrorCode::kIo, "{}: ended at byte {} of {} while being read", path, done, size);
    done += got;
  }
  return content;
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  Descriptor descriptor(path);
  size_ = regular_size(descriptor.value, path);
  if (size_ == 0) return;  // mmap refuses empty ranges
  void* address = mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_SHARED, descriptor.value, 0);
  if (address == MAP_FAILED) fail_errno("map", path, errno);
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_) munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_));
}

}  // namespace octet
