// Files, with errors that name the path, the reason and the remedy. Readers map; writers write a temporary file and
// rename it, so that a file has either its old or its complete new content. File formats are in io/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

bool path_exists(const std::string& path);
bool is_folder(const std::string& path);
int64_t file_size(const std::string& path);                     // kNotFound when there is no such regular file
void make_folders(const std::string& path);                     // with parents; no error if it exists
std::vector<std::string> list_folder(const std::string& path);  // sorted names, not paths
void remove_path(const std::string& path);                      // a file or a whole folder; no error if absent
void rename_path(const std::string& from, const std::string& to);
void sync_path(const std::string& path);             // fsync of a file or a folder (its names)
std::string parent_folder(const std::string& path);  // "." for a bare name

// The whole file. Refuses more than `limit` bytes: pass what the format allows, so that a wrong path fails early.
std::string read_file(const std::string& path, int64_t limit = int64_t{1} << 30);

// Replaces `path` with `content`, durably.
void write_file(const std::string& path, std::string_view content);

// A read-only memory map. The bytes are valid during the object's lifetime (also after a move). Truncating the file
// meanwhile raises SIGBUS: files of Octet are replaced by rename, never rewritten in place.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);

  std::span<const std::byte> bytes() const { return {data_.get(), static_cast<size_t>(size())}; }
  int64_t size() const { return data_ ? size_ : 0; }  // 0 after a move
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int64_t size_ = 0;
  std::shared_ptr<const std::byte> data_;  // unmaps
};

// An open file of the operating system; closed with the object.
struct Descriptor {
  explicit Descriptor(int opened) : value(opened) {}
  Descriptor(const Descriptor&) = delete;
  ~Descriptor();
  int value;  // negative: not open
};

// Writes path + ".tmp"; commit() makes it durable and renames it to `path`. Without commit() the destructor removes it
// and `path` keeps its old content, whatever failed. A second writer meanwhile throws kInvalidArgument.
class FileWriter {
 public:
  explicit FileWriter(std::string path);
  ~FileWriter();

  void write(const void* data, int64_t bytes);
  void write(std::string_view text) { write(text.data(), static_cast<int64_t>(text.size())); }
  int64_t position() const { return position_; }   // bytes written so far
  uint32_t checksum() const { return checksum_; }  // crc32c of them
  void commit();

 private:
  void flush();

  std::string path_, temporary_;
  std::string buffer_;
  Descriptor file_;
  int64_t position_ = 0;
  uint32_t checksum_ = 0;
};

// Appends whole records to a log-like file; each append is one write to the operating system. A partial
// record is truncated, so that the file always ends with a whole record.
class AppendFile {
 public:
  explicit AppendFile(std::string path);

  void append(std::string_view record);
  void sync();  // to the disk
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  Descriptor file_;
};

// Locks `folder` for this object: a second lock in any process throws kInvalidArgument naming the first process. The
// kernel releases the lock when the process ends; the file `folder`/lock remains.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder);

 private:
  Descriptor file_;
};

// For tests: every write after `bytes` more bytes fails with `error_number` (ENOSPC, EIO, ...), the last one short, as
// the kernel does it. A negative count removes the fault. Process-wide.
void inject_write_fault(int64_t bytes, int error_number);

}  // namespace octet
