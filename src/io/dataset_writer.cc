// See dataset_writer.h. Document lengths are spilled to a third partial file and become the .idx in commit().
#include "io/dataset_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace octet {
namespace {

constexpr size_t kBufferBytes = 1 << 20;

template <typename T>
void append_value(OutputFile& file, T value) {
  file.append(&value, sizeof value);
}

// Calls body(length) for each of the spilled lengths.
template <typename Body>
void each_length(const std::string& path, Body body) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  check(file >= 0, ErrorCode::kIo, "cannot reopen {}: {}", path, std::strerror(errno));
  std::vector<int32_t> block(1 << 16);
  ssize_t got;
  while ((got = ::read(file, block.data(), block.size() * 4)) > 0) {
    for (ssize_t i = 0; i < got / 4; ++i) body(block[static_cast<size_t>(i)]);
  }
  ::close(file);
  check(got == 0, ErrorCode::kIo, "reading {}: {}", path, std::strerror(errno));
}

}  // namespace

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  check(file_ >= 0, ErrorCode::kIo, "cannot create {}: {}", path_, std::strerror(errno));
  buffer_.reserve(kBufferBytes);
}

OutputFile::~OutputFile() {
  if (file_ >= 0) ::close(file_);
}

void OutputFile::append(const void* data, size_t bytes) {
  buffer_.append(static_cast<const char*>(data), bytes);
  size_ += static_cast<int64_t>(bytes);
  if (buffer_.size() >= kBufferBytes) flush();
}

void OutputFile::flush() {
  for (size_t done = 0; done < buffer_.size();) {
    const ssize_t put = ::write(file_, buffer_.data() + done, buffer_.size() - done);
    check(put > 0, ErrorCode::kIo, "writing {} after {} bytes: {}", path_, size_ - static_cast<int64_t>(buffer_.size()),
          std::strerror(errno));
    done += static_cast<size_t>(put);
  }
  buffer_.clear();
}

void OutputFile::finish() {
  flush();
  const bool synced = ::fsync(file_) == 0;
  const bool closed = ::close(std::exchange(file_, -1)) == 0;
  check(synced && closed, ErrorCode::kIo, "finishing {}: {}", path_, std::strerror(errno));
}

DatasetWriter::DatasetWriter(std::string prefix, TokenType type) : prefix_(std::move(prefix)), type_(type) {
  check(type == TokenType::kU16 || type == TokenType::kI32, ErrorCode::kUnsupported,
        "token type {} (written: u16, i32)", static_cast<int>(type));
  bin_ = std::make_unique<OutputFile>(partial(".bin"));
  lengths_ = std::make_unique<OutputFile>(partial(".lengths"));
}

DatasetWriter::~DatasetWriter() {
  bin_.reset();
  lengths_.reset();
  mask_.reset();
  ::unlink(partial(".lengths").c_str());
  if (committed_) return;
  for (const char* extension : {".bin", ".idx", ".mask"}) ::unlink(partial(extension).c_str());
}

void DatasetWriter::append_counts(size_t ids, std::span<const uint8_t> counts) {
  if (mask_ == nullptr && std::ranges::count(counts, 0) == 0) return;
  const auto append_ones = [&](int64_t count) {
    const std::vector<uint8_t> ones(static_cast<size_t>(std::min<int64_t>(count, kBufferBytes)), 1);
    for (; count > 0; count -= std::ssize(ones))
      mask_->append(ones.data(), static_cast<size_t>(std::min<int64_t>(count, std::ssize(ones))));
  };
  if (mask_ == nullptr) {
    mask_ = std::make_unique<OutputFile>(partial(".mask"));
    append_ones(tokens_);
  }
  counts.empty() ? append_ones(static_cast<int64_t>(ids)) : mask_->append(counts.data(), counts.size());
}

void DatasetWriter::append(std::span<const int32_t> ids, std::span<const uint8_t> counts) {
  append_counts(ids.size(), counts);
  if (type_ == TokenType::kI32) {
    bin_->append(ids.data(), ids.size() * 4);
  } else {
    uint16_t block[4096];
    for (size_t done = 0; done < ids.size();) {
      const size_t count = std::min(ids.size() - done, std::size(block));
      uint32_t high = 0;
      for (size_t i = 0; i < count; ++i) {
        high |= static_cast<uint32_t>(ids[done + i]);
        block[i] = static_cast<uint16_t>(ids[done + i]);
      }
      check(high <= 0xFFFF, ErrorCode::kInternal, "{}: a token id does not fit in u16", prefix_);
      bin_->append(block, count * 2);
      done += count;
    }
  }
  current_ += static_cast<int64_t>(ids.size());
  tokens_ += static_cast<int64_t>(ids.size());
}

void DatasetWriter::end_document() {
  if (current_ == 0) return;
  check(current_ <= INT32_MAX, ErrorCode::kUnsupported,
        "{}: document {} has {} tokens; the format holds {} at most: cut the file into documents", prefix_, documents_,
        current_, INT32_MAX);
  append_value(*lengths_, static_cast<int32_t>(current_));
  ++documents_;
  current_ = 0;
}

void DatasetWriter::write_index() {
  OutputFile idx(partial(".idx"));
  idx.append("MMIDIDX\0\0", 9);
  append_value<uint64_t>(idx, 1);
  append_value(idx, static_cast<uint8_t>(type_));
  append_value(idx, static_cast<uint64_t>(documents_));
  append_value(idx, static_cast<uint64_t>(documents_ + 1));
  const std::string spilled = partial(".lengths");
  each_length(spilled, [&](int32_t length) { append_value(idx, length); });
  int64_t offset = 0;
  each_length(spilled, [&](int32_t length) {
    append_value(idx, offset);
    offset += length * octet::token_bytes(type_);
  });
  for (int64_t i = 0; i <= documents_; ++i) append_value(idx, i);
  idx.finish();
}

void DatasetWriter::commit() {
  end_document();
  bin_->finish();
  lengths_->finish();
  write_index();
  ::unlink(partial(".lengths").c_str());
  if (mask_ != nullptr) mask_->finish();
  ::unlink((prefix_ + ".mask").c_str());
  for (const char* extension : {".mask", ".bin", ".idx"}) {
    if (extension == std::string_view(".mask") && mask_ == nullptr) continue;
    check(::rename(partial(extension).c_str(), (prefix_ + extension).c_str()) == 0, ErrorCode::kIo,
          "cannot rename {} to {}{}: {}", partial(extension), prefix_, extension, std::strerror(errno));
  }
  committed_ = true;
}

std::vector<int64_t> cut_dataset(const std::string& prefix, const std::vector<std::string>& parts,
                                 const std::vector<int64_t>& counts) {
  const auto whole = TokenDataset::open(prefix);
  std::vector<std::unique_ptr<DatasetWriter>> writers;
  std::vector<int32_t> block(1 << 16);
  std::vector<uint8_t> flags(whole->has_mask() ? block.size() : 0);
  int64_t at = 0, document = 0;
  for (size_t part = 0; part < parts.size(); ++part) {
    auto& writer = *writers.emplace_back(std::make_unique<DatasetWriter>(parts[part], whole->type()));
    for (const int64_t end = at + counts[part]; at < end;) {
      while (whole->document_begin(document + 1) <= at) ++document;
      const int64_t document_end = whole->document_begin(document + 1);
      const int64_t take = std::min({static_cast<int64_t>(block.size()), end - at, document_end - at});
      const auto piece = std::span(block).first(static_cast<size_t>(take));
      whole->read(at, piece);
      const auto mask = std::span(flags).first(whole->has_mask() ? piece.size() : 0);
      whole->read_counts(at, mask);
      writer.append(piece, mask);
      at += take;
      if (at == document_end) writer.end_document();
    }
  }
  std::vector<int64_t> documents;
  for (auto& writer : writers) {
    writer->commit();
    documents.push_back(writer->documents());
  }
  return documents;
}

}  // namespace octet
