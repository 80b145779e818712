// See corpus.h: listing inputs, opening them, settling by their first bytes how they are read and cutting them into
// batches. A compressed file that ends early is an error, never a short document.
#include "io/corpus.h"

#include <fcntl.h>
#include <glob.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>

#include "base/error.h"
#include "base/log.h"
#include "io/tokenizer_utf8.h"

namespace octet {

namespace fs = std::filesystem;

// One file opened for reading, unpacked on the fly.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Appends up to `most` bytes to `out`; false at the end of the file.
  bool read(std::string& out, size_t most) {
    const size_t before = out.size();
    out.resize(before + most);
    const size_t got = read_some(out.data() + before, most);
    out.resize(before + got);
    return got > 0;
  }
  virtual int64_t disk_position() const = 0;  // bytes of the file on disk consumed so far

 protected:
  virtual size_t read_some(char* to, size_t most) = 0;  // 0 at the end of the file
};

namespace {

class PlainSource : public ByteSource {
 public:
  explicit PlainSource(const std::string& path) : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    check(file_ >= 0, errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "cannot open {}: {}", path,
          std::strerror(errno));
    ::posix_fadvise(file_, 0, 0, POSIX_FADV_SEQUENTIAL);
  }
  ~PlainSource() override { ::close(file_); }
  size_t read_some(char* to, size_t most) override {
    const ssize_t got = ::read(file_, to, most);
    check(got >= 0, ErrorCode::kIo, "reading {} at byte {}: {}", path_, position_, std::strerror(errno));
    position_ += got;
    return static_cast<size_t>(got);
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
  size_t read_some(char* to, size_t most) override {
    const int got = gzread(file_, to, static_cast<unsigned>(most));
    int code = Z_OK;
    const char* reason = gzerror(file_, &code);
    check(got >= 0 && (code == Z_OK || code == Z_STREAM_END), ErrorCode::kCorrupt,
          "{}: gzip data is {} after {} unpacked bytes ({})", path_, code == Z_BUF_ERROR ? "truncated" : "damaged",
          unpacked_, reason);
    check(got == 0 || unpacked_ > 0 || !gzdirect(file_), ErrorCode::kCorrupt, "{}: is not gzip data", path_);
    unpacked_ += got;
    return static_cast<size_t>(got);
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
  size_t read_some(char* buffer, size_t most) override {
    ZSTD_outBuffer to{buffer, most, 0};
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
    unpacked_ += static_cast<int64_t>(to.pos);
    return to.pos;
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

std::unique_ptr<ByteSource> open_source(const CorpusFile& file) {
  switch (file.packing) {
    case CorpusFile::Packing::kGzip: return std::make_unique<GzipSource>(file.path);
    case CorpusFile::Packing::kZstd: return std::make_unique<ZstdSource>(file.path);
    case CorpusFile::Packing::kPlain: break;
  }
  return std::make_unique<PlainSource>(file.path);
}

constexpr size_t kReadBytes = 256 << 10;
constexpr size_t kLongestUncut = 16 << 20;  // of text without a position to cut
constexpr size_t kBinaryProbe = 8 << 10;    // a NUL this early means the file is not text

// How files that hold no UTF-8 text begin.
constexpr struct {
  size_t at;
  std::string_view bytes, kind;
} kKinds[] = {{0, "\x1f\x8b", "gzip data (unpacked where the name ends in .gz)"},
              {0, "\x28\xb5\x2f\xfd", "zstd data (unpacked where the name ends in .zst)"},
              {4, "1AY&SY", "bzip2 data"},
              {0, "\xfd\x37zXZ", "xz data"},
              {0, "\x04\x22\x4d\x18", "lz4 data"},
              {0, "7z\xbc\xaf", "a 7z archive"},
              {0, "PK\x03\x04", "a zip archive or an office document"},
              {257, "ustar", "a tar archive"},
              {0, "%PDF-", "a PDF"},
              {0, "{\\rtf", "an RTF document"},
              {0, "PAR1", "a Parquet file"},
              {0, "ARROW1", "an Arrow file"},
              {0, "MMIDIDX", "the index of prepared tokens"},
              {0, "\xff\xfe", "UTF-16 text (iconv -f UTF-16 -t UTF-8)"},
              {0, "\xfe\xff", "UTF-16 text (iconv -f UTF-16 -t UTF-8)"}};

// What the first bytes of a file say it is instead of UTF-8 text; "": nothing.
std::string_view kind_of(std::string_view head, bool json_lines) {
  for (const auto& [at, bytes, kind] : kKinds)
    if (head.size() > at && head.substr(at).starts_with(bytes)) return kind;
  return json_lines || head.find('\0') == std::string_view::npos ? "" : "binary (it contains zero bytes)";
}

// Whether octet wrote it: a run, a vocabulary, a file of a prepared set (which has PREFIX_tokenizer beside it), or what
// `octet data dedup` and `clean` write beside the kept documents.
bool is_own_output(const fs::path& path) {
  std::error_code error;
  const std::string name = path.filename().string(), extension = path.extension().string();
  std::string prefix = path.string();
  if (fs::is_directory(path, error)) {
    if (fs::exists(path / "log.jsonl", error) && fs::exists(path / "config.yaml", error)) return true;
    if (name == "dropped" && fs::exists(path.parent_path() / "report.json", error)) return true;
    if (!name.ends_with("_tokenizer")) return false;
    return prefix.resize(prefix.size() - 10), fs::exists(prefix + ".json", error);
  }
  if (name == "tokenizer.json" || name == "tokenizer_config.json" || name == "characters.json") return true;
  if (name == "report.json" && fs::is_directory(path.parent_path() / "dropped", error)) return true;
  if (extension != ".json" && extension != ".bin" && extension != ".idx" && extension != ".mask" &&
      extension != ".weights")
    return false;
  prefix.resize(prefix.size() - extension.size());
  for (const std::string_view split : {"", "_train", "_val", "_test"})
    if (prefix.ends_with(split) &&
        fs::is_directory(prefix.substr(0, prefix.size() - split.size()) + "_tokenizer", error))
      return true;
  return false;
}

CorpusFile describe(const fs::path& path, bool from_folder) {
  CorpusFile file;
  file.path = path.string();
  file.from_folder = from_folder;
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  check(type != fs::file_type::character && type != fs::file_type::block, ErrorCode::kInvalidArgument,
        "{}: is a device, which may be endless: give files, folders or a pipe", file.path);
  file.bytes = static_cast<int64_t>(fs::file_size(path, error));
  if (error) file.bytes = 0;
  std::string name = path.filename().string();
  const auto strip = [&](const char* suffix) {
    if (!name.ends_with(suffix)) return false;
    name.resize(name.size() - std::string_view(suffix).size());
    return true;
  };
  if (strip(".gz")) {
    file.packing = CorpusFile::Packing::kGzip;
  } else if (strip(".zst") || strip(".zstd")) {
    file.packing = CorpusFile::Packing::kZstd;
  }
  file.named_json = name.ends_with(".json");
  file.json_lines = name.ends_with(".jsonl") || name.ends_with(".ndjson");
  return file;
}

void walk(const fs::path& folder, const std::function<bool(const fs::path&)>& left_out,
          std::vector<CorpusFile>& files) {
  std::vector<fs::path> entries;
  std::error_code problem;
  fs::directory_iterator listing(folder, problem);
  check(!problem, ErrorCode::kIo, "cannot read the folder {}: {}", folder.string(), problem.message());
  for (const auto& entry : listing) {
    if (entry.path().filename().string().front() != '.') entries.push_back(entry.path());
  }
  std::sort(entries.begin(), entries.end());
  for (const fs::path& path : entries) {
    std::error_code error;
    if (left_out(path)) continue;
    if (fs::is_directory(path, error)) {
      if (!fs::is_symlink(path, error)) walk(path, left_out, files);  // links to folders may form a circle
    } else if (fs::is_regular_file(path, error)) {
      files.push_back(describe(path, true));
    }
  }
}

bool is_letter(char c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; }

}  // namespace

std::vector<CorpusFile> list_corpus(const std::vector<std::string>& inputs, const std::string& tokenizer) {
  std::vector<CorpusFile> files;
  std::vector<std::string> own;
  const auto left_out = [&](const fs::path& path) {
    std::error_code error;
    if (!is_own_output(path) && (tokenizer.empty() || !fs::equivalent(path, tokenizer, error))) return false;
    own.push_back(path.string());
    return true;
  };
  const auto add = [&](const std::string& path) {
    std::error_code error;
    if (fs::is_directory(path, error)) {
      const size_t before = files.size() + own.size();
      walk(path, left_out, files);
      check(files.size() + own.size() > before, ErrorCode::kNotFound, "{}: the folder contains no files", path);
    } else {
      files.push_back(describe(path, false));
    }
  };
  check(!inputs.empty(), ErrorCode::kInvalidArgument, "no input files given");
  for (const std::string& input : inputs) {
    std::error_code error;
    if (fs::exists(input, error)) {
      if (!is_own_output(input) || !left_out(input)) add(input);
      continue;
    }
    glob_t found{};
    const int result = ::glob(input.c_str(), 0, nullptr, &found);
    std::vector<std::string> paths;
    if (result == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    ::globfree(&found);
    check(!paths.empty(), ErrorCode::kNotFound, "{}: no such file, folder or matching glob", input);
    for (const std::string& path : paths)
      if (!left_out(path)) add(path);
  }
  if (!own.empty())
    log_warning("{} file(s) or folder(s) that octet wrote are left out of the corpus: {}{}", own.size(),
                fmt::join(own.begin(), own.begin() + std::min<ptrdiff_t>(std::ssize(own), 8), ", "),
                own.size() > 8 ? ", ..." : "");
  return files;
}

size_t find_text_cut(std::string_view text, bool must) {
  for (size_t at = text.size() < 2 ? 0 : text.size() - 2; at > 0; --at) {
    if (text[at] == ' ' && is_letter(text[at - 1]) && is_letter(text[at + 1])) return at;
  }
  if (!must) return 0;
  if (const size_t line = text.rfind('\n'); line != std::string_view::npos && line > 0) return line + 1;
  return text.size() - utf8_incomplete_suffix(text);
}

CorpusReader::CorpusReader(std::vector<CorpusFile> files, TextOptions options, size_t batch_bytes)
    : files_(std::move(files)), options_(std::move(options)), batch_bytes_(batch_bytes) {
  for (const CorpusFile& file : files_) total_ += file.bytes;
}

CorpusReader::~CorpusReader() = default;

// Whether an opened file is read, as JSON lines or as text.
bool CorpusReader::settle_format(CorpusFile& file) {
  const std::string_view kind = kind_of(std::string_view(pending_).substr(0, kBinaryProbe), file.json_lines);
  if (!kind.empty() && file.from_folder) return ++binary_skipped_, false;
  check(kind.empty() || options_.format == CorpusFormat::kText, ErrorCode::kInvalidArgument,
        "{}: is {}, not UTF-8 text: convert or unpack it first (--format text reads it as it is)", file.path, kind);
  if (options_.format != CorpusFormat::kAuto) file.json_lines = options_.format == CorpusFormat::kJsonLines;
  if (options_.format != CorpusFormat::kAuto || file.json_lines) return true;
  const size_t begin = std::min(pending_.find_first_not_of("\xEF\xBB\xBF \t\r\n"), pending_.size());
  if (begin == pending_.size() || (pending_[begin] != '{' && !(pending_[begin] == '[' && file.named_json))) return true;
  const auto line_end = [&] { return std::min(pending_.find('\n', begin), pending_.size()); };
  while (line_end() == pending_.size() && pending_.size() < kLongestUncut && !file_ended_)
    file_ended_ = !source_->read(pending_, kReadBytes);
  const size_t end = line_end();
  const LineKind line = kind_of_line(std::string_view(pending_).substr(begin, end - begin), options_.json_key);
  file.json_lines = line == LineKind::kText;
  if (file.json_lines && !file.from_folder) log_info("{}: read as JSON lines (--format text: as text)", file.path);
  const bool lines = line == LineKind::kOtherObject && pending_.find_first_not_of(" \t\r\n", end) != std::string::npos;
  constexpr const char* ways = "--key names the key of its texts; --format text or jsonl says how to read it";
  check(file.from_folder || line == LineKind::kText || (line == LineKind::kNoObject && !file.named_json),
        ErrorCode::kInvalidArgument,
        "{}: contains JSON, but not lines with a text under \"{}\": {}; jq -c '.[]' turns an array into lines",
        file.path, options_.json_key, ways);
  if (lines)
    log_warning("{}: contains JSON lines without a \"{}\", read as text: {}", file.path, options_.json_key, ways);
  return true;
}

bool CorpusReader::open_next() {
  if (source_ != nullptr) done_bytes_ += files_[current_].bytes;
  source_.reset();
  while (opened_ < files_.size()) {
    current_ = opened_++;
    CorpusFile& file = files_[current_];
    source_ = open_source(file);
    pending_.clear();
    file_ended_ = !source_->read(pending_, kReadBytes);
    if (file_ended_ || !settle_format(file)) {  // an empty file holds no document
      done_bytes_ += file.bytes;
      source_.reset();
      continue;
    }
    position_ = file.json_lines ? 1 : 0;
    at_document_start_ = true;
    return true;
  }
  return false;
}

void CorpusReader::take_from_file(CorpusBatch& batch) {
  const bool json = files_[current_].json_lines;
  const size_t room = batch.bytes.size() < batch_bytes_ ? batch_bytes_ - batch.bytes.size() : 1;
  size_t cut = 0;
  for (;;) {
    while (!file_ended_ && pending_.size() < room) file_ended_ = !source_->read(pending_, kReadBytes);
    if (file_ended_) {
      cut = pending_.size();
      break;
    }
    // Not the end of the file: return the text up to a position to cut, or read on until there is one.
    if (json) {
      const size_t line = pending_.rfind('\n');
      cut = line == std::string::npos ? 0 : line + 1;
      check(cut > 0 || std::ssize(pending_) < options_.longest_line, ErrorCode::kCorrupt,
            "{}:{}: a line of more than {} bytes: not JSON lines?{}", files_[current_].path, position_,
            options_.longest_line, options_.longest_line < (1 << 30) ? " --max-line allows longer ones" : "");
    } else {
      cut = find_text_cut(pending_, pending_.size() >= kLongestUncut);
    }
    if (cut > 0) break;
    file_ended_ = !source_->read(pending_, std::max(kReadBytes, pending_.size()));
  }
  if (cut == 0) return;
  CorpusSegment segment;
  segment.begin = batch.bytes.size();
  segment.end = segment.begin + cut;
  segment.file = current_;
  segment.position = position_;
  segment.json_lines = json;
  segment.begins_document = at_document_start_;
  segment.ends_document = file_ended_;
  batch.segments.push_back(segment);
  batch.bytes.append(pending_, 0, cut);
  position_ += json ? std::count(pending_.begin(), pending_.begin() + static_cast<ptrdiff_t>(cut), '\n')
                    : static_cast<int64_t>(cut);
  pending_.erase(0, cut);
  at_document_start_ = false;
}

bool CorpusReader::next(CorpusBatch& batch) {
  batch.bytes.clear();
  batch.segments.clear();
  while (batch.bytes.size() < batch_bytes_) {
    if (source_ == nullptr || (file_ended_ && pending_.empty())) {
      if (!open_next()) break;
    }
    take_from_file(batch);
  }
  batch.disk_bytes = done_bytes_ + (source_ ? std::min(source_->disk_position(), files_[current_].bytes) : 0);
  batch.number = batches_;
  if (batch.segments.empty()) return false;
  ++batches_;
  return true;
}

}  // namespace octet
