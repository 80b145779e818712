// DatasetWriter (dataset.h), and the cutting of a set into parts.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "io/dataset.h"

namespace octet {

DatasetWriter::DatasetWriter(std::string prefix, TokenType type)
    : prefix_(std::move(prefix)), type_(type), bin_(prefix_ + ".bin"), lengths_(prefix_ + ".lengths") {
  check(type == TokenType::kU16 || type == TokenType::kI32, ErrorCode::kUnsupported,
        "token type {} (written: u16, i32)", static_cast<int>(type));
}

void DatasetWriter::append_counts(size_t ids, std::span<const uint8_t> counts) {
  if (mask_ == nullptr && std::ranges::count(counts, 0) == 0) return;
  const auto append_ones = [&](int64_t count) {
    const std::string ones(static_cast<size_t>(std::min<int64_t>(count, 1 << 20)), 1);
    for (; count > 0; count -= std::ssize(ones)) mask_->write(ones.data(), std::min<int64_t>(count, std::ssize(ones)));
  };
  if (mask_ == nullptr) {
    mask_ = std::make_unique<FileWriter>(prefix_ + ".mask");
    append_ones(tokens_);
  }
  counts.empty() ? append_ones(static_cast<int64_t>(ids)) : mask_->write(counts.data(), std::ssize(counts));
}

void DatasetWriter::append(std::span<const int32_t> ids, std::span<const uint8_t> counts) {
  append_counts(ids.size(), counts);
  if (type_ == TokenType::kI32) {
    bin_.write(ids.data(), std::ssize(ids) * 4);
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
      bin_.write(block, static_cast<int64_t>(count) * 2);
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
  const auto length = static_cast<int32_t>(current_);
  lengths_.write(&length, 4);
  ++documents_;
  current_ = 0;
}

void DatasetWriter::commit() {
  end_document();
  lengths_.commit();
  const MappedFile lengths(prefix_ + ".lengths");
  remove_path(lengths.path());  // mapped, it stays readable
  FileWriter idx(prefix_ + ".idx");
  const auto put = [&](auto value) { idx.write(&value, sizeof value); };
  idx.write({"MMIDIDX\0\0", 9});
  put(uint64_t{1});
  put(type_);
  put(documents_);
  put(documents_ + 1);
  idx.write(lengths.bytes().data(), lengths.size());
  int64_t offset = 0;
  for (int64_t i = 0; i < documents_; ++i) {
    put(offset);
    int32_t length = 0;
    std::memcpy(&length, lengths.bytes().data() + i * 4, 4);
    offset += length * octet::token_bytes(type_);
  }
  for (int64_t i = 0; i <= documents_; ++i) put(i);
  remove_path(prefix_ + ".mask");
  if (mask_ != nullptr) mask_->commit();
  bin_.commit();
  idx.commit();
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
