// Plain, gzip and zstd files behind ByteSource. A compressed file that ends early is an error, never a short document.
#include "io/corpus_source.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace octet {
namespace {

class PlainSource : public ByteSource {
 public:
  explicit PlainSource(const std::string& path) : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    check(file_ >= 0, errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "cannot open {}: {}", path,
          std::strerror(errno));
    ::posix_fadvise(file_, 0, 0, POSIX_FADV_SEQUENTIAL);
  }
  ~PlainSource() override { ::close(file_); }
  bool read(std::string& out, size_t most) override {
    const size_t before = out.size();
    out.resize(before + most);
    const ssize_t got = ::read(file_, out.data() + before, most);
    const int error = errno;
    out.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    check(got >= 0, ErrorCode::kIo, "reading {} at byte {}: {}", path_, position_, std::strerror(error));
    position_ += got;
    return got > 0;
  }
  int64_t disk_position() const override { return position_; }

 private:
  std::string path_;
  int file_;
  int64_t position_ = 0;
};

class GzipSource : public ByteSource {
 public:
  explicit GzipSource(const std::string& path) : path_(path), file_(gzopen(path.c_str(), "rbe")) {
    check(file_ != nullptr, errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "cannot open {}: {}", path,
          std::strerror(errno));
    gzbuffer(file_, 256 << 10);
  }
  ~GzipSource() override { gzclose(file_); }
  bool read(std::string& out, size_t most) override {
    const size_t before = out.size();
    out.resize(before + most);
    const int got = gzread(file_, out.data() + before, static_cast<unsigned>(most));
    out.resize(before + static_cast<size_t>(std::max(got, 0)));
    int code = Z_OK;
    const char* reason = gzerror(file_, &code);
    check(got >= 0 && (code == Z_OK || code == Z_STREAM_END), ErrorCode::kCorrupt,
          "{}: gzip data is {} after {} unpacked bytes ({})", path_, code == Z_BUF_ERROR ? "truncated" : "damaged",
          unpacked_, reason);
    check(got == 0 || unpacked_ > 0 || !gzdirect(file_), ErrorCode::kCorrupt, "{}: is not gzip data", path_);
    unpacked_ += got;
    return got > 0;
  }
  int64_t disk_position() const override { return gzoffset(file_); }

 private:
  std::string path_;
  gzFile file_;
  int64_t unpacked_ = 0;
};

class ZstdSource : public ByteSource {
 public:
  explicit ZstdSource(const std::string& path) : path_(path), packed_(path), stream_(ZSTD_createDStream()) {
    check(stream_ != nullptr, ErrorCode::kOutOfMemory, "zstd: no memory to unpack {}", path);
  }
  ~ZstdSource() override { ZSTD_freeDStream(stream_); }
  bool read(std::string& out, size_t most) override {
    const size_t before = out.size();
    out.resize(before + most);
    ZSTD_outBuffer to{out.data() + before, most, 0};
    while (to.pos == 0) {
      if (used_ == block_.size()) {
        block_.clear();
        used_ = 0;
        if (!packed_.read(block_, 256 << 10)) {
          check(!inside_frame_, ErrorCode::kCorrupt, "{}: zstd data is truncated after {} unpacked bytes", path_,
                unpacked_);
          break;
        }
      }
      ZSTD_inBuffer from{block_.data(), block_.size(), used_};
      const size_t hint = ZSTD_decompressStream(stream_, &to, &from);
      check(!ZSTD_isError(hint), ErrorCode::kCorrupt, "{}: zstd data is damaged after {} unpacked bytes ({})", path_,
            unpacked_, ZSTD_getErrorName(hint));
      used_ = from.pos;
      inside_frame_ = hint != 0;
    }
    out.resize(before + to.pos);
    unpacked_ += static_cast<int64_t>(to.pos);
    return to.pos > 0;
  }
  int64_t disk_position() const override { return packed_.disk_position(); }

 private:
  std::string path_;
  PlainSource packed_;
  ZSTD_DStream* stream_;
  std::string block_;
  size_t used_ = 0;
  bool inside_frame_ = false;
  int64_t unpacked_ = 0;
};

}  // namespace

std::unique_ptr<ByteSource> open_source(const CorpusFile& file) {
  switch (file.packing) {
    case CorpusFile::Packing::kGzip: return std::make_unique<GzipSource>(file.path);
    case CorpusFile::Packing::kZstd: return std::make_unique<ZstdSource>(file.path);
    case CorpusFile::Packing::kPlain: break;
  }
  return std::make_unique<PlainSource>(file.path);
}

}  // namespace octet
