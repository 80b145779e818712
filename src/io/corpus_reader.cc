// See corpus_reader.h: listing inputs and cutting their bytes into batches.
#include "io/corpus_reader.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "io/corpus_source.h"
#include "io/tokenizer_utf8.h"

namespace octet {

namespace fs = std::filesystem;

namespace {

constexpr size_t kReadBytes = 256 << 10;
constexpr size_t kLongestUncut = 16 << 20;   // of text without a position to cut
constexpr size_t kLongestLine = 1ull << 30;  // of JSON
constexpr size_t kBinaryProbe = 8 << 10;     // a NUL this early means the file is not text

CorpusFile describe(const fs::path& path, bool from_folder) {
  CorpusFile file;
  file.path = path.string();
  file.from_folder = from_folder;
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  check(type != fs::file_type::character && type != fs::file_type::block, ErrorCode::kInvalidArgument,
        "{}: is a device, whose bytes need not end: give files, folders or a pipe", file.path);
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
  file.json_lines = name.ends_with(".jsonl") || name.ends_with(".ndjson");
  return file;
}

void walk(const fs::path& folder, std::vector<CorpusFile>& files) {
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
    if (fs::is_directory(path, error)) {
      if (!fs::is_symlink(path, error)) walk(path, files);  // links to folders may form a circle
    } else if (fs::is_regular_file(path, error)) {
      files.push_back(describe(path, true));
    }
  }
}

bool is_letter(char c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; }

}  // namespace

std::vector<CorpusFile> list_corpus(const std::vector<std::string>& inputs) {
  std::vector<CorpusFile> files;
  const auto add = [&](const std::string& path) {
    std::error_code error;
    if (fs::is_directory(path, error)) {
      const size_t before = files.size();
      walk(path, files);
      check(files.size() > before, ErrorCode::kNotFound, "{}: the folder holds no files", path);
    } else {
      files.push_back(describe(path, false));
    }
  };
  check(!inputs.empty(), ErrorCode::kInvalidArgument, "no input files given");
  for (const std::string& input : inputs) {
    std::error_code error;
    if (fs::exists(input, error)) {
      add(input);
      continue;
    }
    glob_t found{};
    const int result = ::glob(input.c_str(), 0, nullptr, &found);
    std::vector<std::string> paths;
    if (result == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    ::globfree(&found);
    check(!paths.empty(), ErrorCode::kNotFound, "{}: no such file, folder or matching glob", input);
    for (const std::string& path : paths) add(path);
  }
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

CorpusReader::CorpusReader(std::vector<CorpusFile> files, size_t batch_bytes)
    : files_(std::move(files)), batch_bytes_(batch_bytes) {
  for (const CorpusFile& file : files_) total_ += file.bytes;
}

CorpusReader::~CorpusReader() = default;

bool CorpusReader::open_next() {
  if (source_ != nullptr) done_bytes_ += files_[current_].bytes;
  source_.reset();
  while (opened_ < files_.size()) {
    current_ = opened_++;
    const CorpusFile& file = files_[current_];
    source_ = open_source(file);
    pending_.clear();
    file_ended_ = !source_->read(pending_, kReadBytes);
    const std::string_view head = std::string_view(pending_).substr(0, kBinaryProbe);
    const bool binary = file.from_folder && !file.json_lines && head.find('\0') != std::string_view::npos;
    if (binary) ++binary_skipped_;
    if (file_ended_ || binary) {  // an empty file holds no document
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
      check(cut > 0 || pending_.size() < kLongestLine, ErrorCode::kCorrupt,
            "{}:{}: a line of more than {} bytes: not JSON lines?", files_[current_].path, position_, kLongestLine);
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
