// See file.h. All writes go through write_some(), where tests inject faults.
#include "base/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/crc32c.h"
#include "base/error.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_errno(const std::string& action, const std::string& path, int error_number) {
  ErrorCode code = error_number == ENOENT || error_number == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kIo;
  fail(code, "{}: cannot {}: {}", path, action, std::strerror(error_number));
}

int open_to_read(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail_errno("open", path, errno);
  return descriptor;
}

int64_t regular_size(int descriptor, const std::string& path) {
  struct stat info {};
  if (fstat(descriptor, &info) != 0) fail_errno("stat", path, errno);
  check(!S_ISDIR(info.st_mode), ErrorCode::kInvalidArgument, "{}: is a folder; want a file", path);
  check(S_ISREG(info.st_mode), ErrorCode::kInvalidArgument, "{}: is not a regular file", path);
  return info.st_size;
}

constexpr int64_t kBufferBytes = 1 << 20;

std::atomic<int64_t> fault_after{-1};
std::atomic<int> fault_error{0};

ssize_t write_some(int file, const char* data, int64_t bytes) {
  int64_t left = fault_after;
  while (left > 0 &&
         !fault_after.compare_exchange_weak(left, left - std::min(bytes, left))) {  // other threads write too
  }
  if (left < 0) return write(file, data, static_cast<size_t>(bytes));
  if (left == 0) {
    errno = fault_error;
    return -1;
  }
  return write(file, data, static_cast<size_t>(std::min(bytes, left)));
}

// Returns 0 or the errno that stopped it.
int write_all(int file, const char* data, int64_t bytes) {
  while (bytes > 0) {
    ssize_t written = write_some(file, data, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    if (written == 0) return EIO;
    data += written;
    bytes -= written;
  }
  return 0;
}

[[noreturn]] void fail_write(const std::string& path, int error_number, const std::string& kept) {
  if (error_number == ENOSPC || error_number == EDQUOT) {
    struct statvfs disk {};
    bool known = statvfs(parent_folder(path).c_str(), &disk) == 0;
    fail(ErrorCode::kIo, "{}: the disk is full or over quota ({}); {}; free space or write elsewhere", path,
         known ? fmt::format("{} MiB free", disk.f_bavail * (disk.f_frsize / 1024) / 1024) : "free space unknown",
         kept);
  }
  fail(error_number == ENOENT || error_number == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kIo,
       "{}: cannot write: {}; {}", path, std::strerror(error_number), kept);
}

constexpr const char* kOldContentKept = "the previous file, if any, is untouched";

// `temporary`, emptied, for one writer of `path` at a time. A lock on a file that its writer has renamed or removed
// meanwhile is worth nothing: it is taken anew on the one that has the name.
int open_alone(const std::string& path, const std::string& temporary) {
  for (;;) {
    const int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) return file;
    // Other errors: the file system has no locks.
    const bool taken = flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    struct stat own {
    }, named{};
    const bool same = fstat(file, &own) == 0 && stat(temporary.c_str(), &named) == 0 && own.st_ino == named.st_ino;
    if (!taken && same && ftruncate(file, 0) == 0) return file;
    const int error_number = errno;
    close(file);
    check(!taken, ErrorCode::kInvalidArgument, "{}: another process is writing it: wait for it or choose another name",
          path);
    if (same) return errno = error_number, -1;
  }
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

int64_t file_size(const std::string& path) { return regular_size(Descriptor(open_to_read(path)).value, path); }

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
  const Descriptor descriptor(open_to_read(path));
  // EINVAL: the file system does not support fsync (some network and FUSE mounts).
  if (fsync(descriptor.value) != 0 && errno != EINVAL) fail_errno("sync to disk", path, errno);
}

std::string parent_folder(const std::string& path) {
  std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

std::string read_file(const std::string& path, int64_t limit) {
  const Descriptor descriptor(open_to_read(path));
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
  const Descriptor descriptor(open_to_read(path));
  size_ = regular_size(descriptor.value, path);
  if (size_ == 0) return;  // mmap refuses empty ranges
  void* address = mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_SHARED, descriptor.value, 0);
  if (address == MAP_FAILED) fail_errno("map", path, errno);
  data_ = {static_cast<const std::byte*>(address),
           [size = size_](const std::byte* data) { munmap(const_cast<std::byte*>(data), static_cast<size_t>(size)); }};
}

Descriptor::~Descriptor() {
  if (value >= 0) close(value);
}

void inject_write_fault(int64_t bytes, int error_number) {
  fault_error = error_number;
  fault_after = bytes;
}

void write_file(const std::string& path, std::string_view content) {
  FileWriter writer(path);
  writer.write(content);
  writer.commit();
}

FileWriter::FileWriter(std::string path)
    : path_(std::move(path)), temporary_(path_ + ".tmp"), file_(open_alone(path_, temporary_)) {
  if (file_.value < 0) fail_write(path_, errno, kOldContentKept);
}

FileWriter::~FileWriter() {
  if (file_.value >= 0) unlink(temporary_.c_str());
}

void FileWriter::write(const void* data, int64_t bytes) {
  check(file_.value >= 0, ErrorCode::kInternal, "{}: written to after commit", path_);
  checksum_ = crc32c(data, bytes, checksum_);
  position_ += bytes;
  auto* text = static_cast<const char*>(data);
  if (static_cast<int64_t>(buffer_.size()) + bytes < kBufferBytes) {
    buffer_.append(text, static_cast<size_t>(bytes));
    return;
  }
  flush();
  if (int error_number = write_all(file_.value, text, bytes)) fail_write(path_, error_number, kOldContentKept);
}

void FileWriter::flush() {
  int error_number = write_all(file_.value, buffer_.data(), static_cast<int64_t>(buffer_.size()));
  buffer_.clear();
  if (error_number) fail_write(path_, error_number, kOldContentKept);
}

void FileWriter::commit() {
  check(file_.value >= 0, ErrorCode::kInternal, "{}: committed twice", path_);
  flush();
  if (fsync(file_.value) != 0 && errno != EINVAL) fail_write(path_, errno, kOldContentKept);
  const Descriptor lock(fcntl(file_.value, F_DUPFD_CLOEXEC, 0));  // held until the file has its name
  // Network file systems report a full disk only here. The descriptor is closed even on error.
  if (close(std::exchange(file_.value, -1)) != 0) {
    int error_number = errno;
    unlink(temporary_.c_str());
    fail_write(path_, error_number, kOldContentKept);
  }
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    int error_number = errno;
    unlink(temporary_.c_str());
    fail_write(path_, error_number, kOldContentKept);
  }
  sync_path(parent_folder(path_));
}

AppendFile::AppendFile(std::string path)
    : path_(std::move(path)), file_(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  if (file_.value < 0) fail_write(path_, errno, "nothing was appended");
}

void AppendFile::append(std::string_view record) {
  off_t before = lseek(file_.value, 0, SEEK_END);
  int error_number = write_all(file_.value, record.data(), static_cast<int64_t>(record.size()));
  if (!error_number) return;
  bool cut = before >= 0 && ftruncate(file_.value, before) == 0;
  fail_write(path_, error_number, cut ? "earlier records are untouched" : "the last record may be incomplete");
}

void AppendFile::sync() {
  if (fsync(file_.value) != 0 && errno != EINVAL)
    fail_write(path_, errno, "earlier records may not be on the disk yet");
}

FolderLock::FolderLock(const std::string& folder)
    : file_(open((folder + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
  if (file_.value < 0) fail_write(folder + "/lock", errno, "nothing was changed");
  if (flock(file_.value, LOCK_EX | LOCK_NB) != 0 &&
      errno == EWOULDBLOCK) {  // other errors: the file system has no locks
    char holder[24] = {};
    ssize_t length = pread(file_.value, holder, sizeof(holder) - 1, 0);
    fail(ErrorCode::kInvalidArgument, "{}: another run (process {}) is writing here: stop it or choose another folder",
         folder, length > 0 ? holder : "unknown");
  }
  const std::string self = std::to_string(getpid());
  if (ftruncate(file_.value, 0) != 0 || write_all(file_.value, self.data(), static_cast<int64_t>(self.size())) != 0) {
    // The process id is only for the error message; the lock does not depend on it.
  }
}

}  // namespace octet
