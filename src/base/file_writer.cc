// Writers: FileWriter (temporary file, then rename), AppendFile, and folder locks. All writes go through write_some(),
// where tests inject faults.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/file.h"

namespace octet {
namespace {

constexpr int64_t kBufferBytes = 1 << 20;

std::atomic<int64_t> fault_after{-1};
std::atomic<int> fault_error{0};

ssize_t write_some(int file, const char* data, int64_t bytes) {
  int64_t left = fault_after;
  if (left < 0) return write(file, data, static_cast<size_t>(bytes));
  if (left == 0) {
    errno = fault_error;
    return -1;
  }
  ssize_t written = write(file, data, static_cast<size_t>(std::min(bytes, left)));
  if (written > 0) fault_after = left - written;
  return written;
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

}  // namespace

void inject_write_fault(int64_t bytes, int error_number) {
  fault_error = error_number;
  fault_after = bytes;
}

void write_file(const std::string& path, std::string_view content) {
  FileWriter writer(path);
  writer.write(content);
  writer.commit();
}

FileWriter::FileWriter(std::string path) : path_(std::move(path)), temporary_(path_ + ".tmp") {
  file_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) fail_write(path_, errno, kOldContentKept);
}

FileWriter::~FileWriter() {
  if (file_ < 0) return;
  close(file_);
  unlink(temporary_.c_str());
}

void FileWriter::write(const void* data, int64_t bytes) {
  check(file_ >= 0, ErrorCode::kInternal, "{}: written to after commit", path_);
  checksum_ = crc32c(data, bytes, checksum_);
  position_ += bytes;
  auto* text = static_cast<const char*>(data);
  if (static_cast<int64_t>(buffer_.size()) + bytes < kBufferBytes) {
    buffer_.append(text, static_cast<size_t>(bytes));
    return;
  }
  flush();
  if (int error_number = write_all(file_, text, bytes)) fail_write(path_, error_number, kOldContentKept);
}

void FileWriter::flush() {
  int error_number = write_all(file_, buffer_.data(), static_cast<int64_t>(buffer_.size()));
  buffer_.clear();
  if (error_number) fail_write(path_, error_number, kOldContentKept);
}

void FileWriter::commit() {
  check(file_ >= 0, ErrorCode::kInternal, "{}: committed twice", path_);
  flush();
  if (fsync(file_) != 0 && errno != EINVAL) fail_write(path_, errno, kOldContentKept);
  // Network file systems report a full disk only here. The descriptor is closed even on error.
  if (close(std::exchange(file_, -1)) != 0) {
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

AppendFile::AppendFile(std::string path) : path_(std::move(path)) {
  file_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0) fail_write(path_, errno, "nothing was appended");
}

AppendFile::~AppendFile() { close(file_); }

void AppendFile::append(std::string_view record) {
  off_t before = lseek(file_, 0, SEEK_END);
  int error_number = write_all(file_, record.data(), static_cast<int64_t>(record.size()));
  if (!error_number) return;
  bool cut = before >= 0 && ftruncate(file_, before) == 0;
  fail_write(path_, error_number, cut ? "earlier records are untouched" : "the last record may be incomplete");
}

void AppendFile::sync() {
  if (fsync(file_) != 0 && errno != EINVAL) fail_write(path_, errno, "earlier records may not be on the disk yet");
}

FolderLock::FolderLock(const std::string& folder) {
  const std::string path = folder + "/lock";
  file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file_ < 0) fail_write(path, errno, "nothing was changed");
  if (flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {  // other errors: the file system has no locks
    char holder[24] = {};
    ssize_t length = pread(file_, holder, sizeof(holder) - 1, 0);
    close(file_);
    fail(ErrorCode::kInvalidArgument, "{}: another run (process {}) is writing here: stop it or choose another folder",
         folder, length > 0 ? holder : "unknown");
  }
  const std::string self = std::to_string(getpid());
  if (ftruncate(file_, 0) != 0 || write_all(file_, self.data(), static_cast<int64_t>(self.size())) != 0) {
    // The process id is only for the error message; the lock does not depend on it.
  }
}

FolderLock::~FolderLock() { close(file_); }

}  // namespace octet
