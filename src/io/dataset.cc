// See dataset.h: the .idx parser, the memory-mapped reader and the writer.
#include "io/dataset.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/crc32c.h"
#include "base/error.h"

namespace octet {
namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr size_t kHeaderBytes = 9 + 8 + 1 + 8 + 8;

template <typename T>
T load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

// Calls visit(T{}) with the type that tokens are stored in.
template <typename Visit>
auto with_token_type(TokenType type, const Visit& visit) {
  switch (type) {
    case TokenType::kU8: return visit(uint8_t{});
    case TokenType::kI8: return visit(int8_t{});
    case TokenType::kI16: return visit(int16_t{});
    case TokenType::kU16: return visit(uint16_t{});
    case TokenType::kI32: return visit(int32_t{});
    case TokenType::kI64: return visit(int64_t{});
  }
  return decltype(visit(uint8_t{}))();
}

// Calls fn(first, count) for blocks of [0, total): all, or `most` evenly spaced ones including both ends.
template <typename Fn>
void for_spread(int64_t total, int64_t block, int64_t most, Fn fn) {
  const int64_t blocks = std::min(most, (total + block - 1) / block), last = std::max<int64_t>(0, total - block);
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t first = blocks < most ? i * block : last / (blocks - 1) * i + last % (blocks - 1) * i / (blocks - 1);
    fn(first, std::min(block, total - first));
  }
}

}  // namespace

int64_t token_bytes(TokenType type) {
  return with_token_type(type, [](auto token) { return static_cast<int64_t>(sizeof token); });
}

int64_t IndexView::sequence_begin(int64_t sequence) const {
  return sequence == sequences ? tokens : load<int64_t>(offsets + sequence * 8) / token_bytes(type);
}

int64_t IndexView::document_begin(int64_t document) const {
  return documents_at == nullptr ? document * tokens : sequence_begin(load<int64_t>(documents_at + document * 8));
}

IndexView parse_index(std::string_view bytes, int64_t bin_bytes, const std::string& where) {
  check(bytes.size() >= kHeaderBytes, ErrorCode::kCorrupt, "{}: {} bytes, but the header alone takes {}", where,
        bytes.size(), kHeaderBytes);
  check(bytes.starts_with(kMagic), ErrorCode::kCorrupt, "{}: does not begin with MMIDIDX: not a Megatron index", where);
  const auto version = load<uint64_t>(bytes.data() + 9);
  check(version == 1, ErrorCode::kUnsupported, "{}: version {} (known: 1)", where, version);
  IndexView view;
  view.type = static_cast<TokenType>(bytes[17]);
  const int64_t width = token_bytes(view.type);
  check(width > 0, ErrorCode::kUnsupported, "{}: token type {} (known: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 8 u16)", where,
        static_cast<int>(view.type));
  const auto sequences = load<uint64_t>(bytes.data() + 18), marks = load<uint64_t>(bytes.data() + 26);
  const uint64_t body = bytes.size() - kHeaderBytes;
  check(sequences <= body / 12 && marks <= body / 8 && sequences * 12 + marks * 8 == body, ErrorCode::kCorrupt,
        "{}: claims {} sequences and {} document marks, which take {} bytes after the header; it has {}", where,
        sequences, marks, static_cast<double>(sequences) * 12 + static_cast<double>(marks) * 8, body);
  check(marks >= 1, ErrorCode::kCorrupt, "{}: no document marks", where);
  view.sequences = static_cast<int64_t>(sequences);
  view.documents = static_cast<int64_t>(marks) - 1;
  view.lengths = bytes.data() + kHeaderBytes;
  view.offsets = view.lengths + sequences * 4;
  view.documents_at = view.offsets + sequences * 8;
  for (int64_t i = 0; i < view.sequences; ++i) {
    const auto length = load<int32_t>(view.lengths + i * 4);
    const auto offset = load<int64_t>(view.offsets + i * 8);
    check(length >= 0, ErrorCode::kCorrupt, "{}: sequence {} has length {}", where, i, length);
    check(offset == view.tokens * width, ErrorCode::kCorrupt,
          "{}: sequence {} begins at byte {}, but the sequences before it end at byte {}", where, i, offset,
          view.tokens * width);
    view.tokens += length;
    check(
        view.tokens <= bin_bytes / width, ErrorCode::kCorrupt,
        "{}: sequence {} ends at byte {} but the .bin has {} bytes: the pair does not belong together or is truncated",
        where, i, view.tokens * width, bin_bytes);
  }
  check(view.tokens * width == bin_bytes, ErrorCode::kCorrupt,
        "{}: the sequences take {} bytes but the .bin has {}: the pair does not belong together", where,
        view.tokens * width, bin_bytes);
  int64_t previous = 0;
  for (int64_t i = 0; i <= view.documents; ++i) {
    const auto mark = load<int64_t>(view.documents_at + i * 8);
    const bool good = i == 0 ? mark == 0 : i == view.documents ? mark == view.sequences : mark >= previous;
    check(good && mark >= previous && mark <= view.sequences, ErrorCode::kCorrupt,
          "{}: document mark {} is {} (want rising from 0 to {})", where, i, mark, view.sequences);
    previous = mark;
  }
  return view;
}

std::shared_ptr<const TokenDataset> TokenDataset::open(const std::string& prefix, int64_t vocab_size, int32_t begin_id,
                                                       int64_t row_length) {
  std::shared_ptr<TokenDataset> set(new TokenDataset);
  set->prefix_ = prefix;
  if (prefix.ends_with(".bin") || prefix.ends_with(".idx")) set->prefix_.resize(prefix.size() - 4);
  set->idx_ = MappedFile(set->prefix_ + ".idx");
  set->bin_ = MappedFile(set->prefix_ + ".bin");
  const auto index = set->idx_.bytes();
  set->index_ =
      parse_index({reinterpret_cast<const char*>(index.data()), index.size()}, set->bin_.size(), set->prefix_ + ".idx");
  check(set->index_.tokens > 0, ErrorCode::kInvalidArgument, "{}: holds no tokens", set->prefix_);
  if (const std::string mask = set->prefix_ + ".mask"; path_exists(mask)) {
    set->mask_.emplace(mask);
    check(set->mask_->size() == set->index_.tokens, ErrorCode::kCorrupt,
          "{} has {} bytes for {} tokens: it belongs to another set or is truncated", mask, set->mask_->size(),
          set->index_.tokens);
  }
  if (const std::string weights = set->prefix_ + ".weights"; path_exists(weights)) {
    set->weights_.emplace(weights);
    check(set->weights_->size() == 4 * set->index_.tokens, ErrorCode::kCorrupt,
          "{} has {} bytes for {} tokens (want 4 for each): it belongs to another set or is truncated", weights,
          set->weights_->size(), set->index_.tokens);
  }
  set->vocab_size_ = vocab_size;
  set->begin_id_ = begin_id;
  set->row_length_ = row_length;
  return set;
}

int64_t TokenDataset::document_at(int64_t token) const {
  check(token >= 0 && token < tokens(), ErrorCode::kInvalidArgument, "{}: token {} of {}", prefix_, token, tokens());
  int64_t low = 0, high = documents();  // the last document that begins at or before `token`
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (document_begin(middle) <= token ? low : high) = middle;
  }
  return low;
}

void TokenDataset::check_range(int64_t first, size_t size) const {
  const auto count = static_cast<int64_t>(size);
  check(first >= 0 && count <= tokens() && first <= tokens() - count, ErrorCode::kInvalidArgument,
        "{}: tokens {}..{} of {}", prefix_, first, first + count, tokens());
}

void TokenDataset::read(int64_t first, std::span<int32_t> out) const {
  check_range(first, out.size());
  copy(first, out);
  const uint32_t limit = vocab_size_ > 0 ? static_cast<uint32_t>(vocab_size_) : 0x80000000u;
  bool good = true;
  for (int32_t id : out) good &= static_cast<uint32_t>(id) < limit;
  if (good) return;
  const auto bad = std::find_if(out.begin(), out.end(), [&](int32_t id) { return static_cast<uint32_t>(id) >= limit; });
  const int64_t at = first + (bad - out.begin());
  fail(ErrorCode::kInvalidArgument,
       "{}: token {} of document {} has an id ({}) outside the vocabulary of {}: prepared with another tokenizer?",
       prefix_, at - document_begin(document_at(at)), document_at(at), *bad, vocab_size_ > 0 ? vocab_size_ : INT32_MAX);
}

void TokenDataset::read_counts(int64_t first, std::span<uint8_t> out) const {
  check_range(first, out.size());
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = !has_mask() || mask_->bytes()[static_cast<size_t>(first) + i] != std::byte{0};
  if (begin_id_ < 0 || out.empty()) return;
  for (int64_t document = document_at(first); document < documents(); ++document) {
    const int64_t at = document_begin(document) - first;
    if (at >= std::ssize(out)) break;
    int32_t id = -1;
    if (at >= 0) copy(first + at, std::span(&id, 1));
    if (id == begin_id_) out[static_cast<size_t>(at)] = 0;
  }
}

void TokenDataset::read_weights(int64_t first, std::span<float> out) const {
  check_range(first, out.size());
  if (!has_weights()) {
    std::ranges::fill(out, 1.0f);
    return;
  }
  if (!out.empty()) std::memcpy(out.data(), weights_->bytes().data() + first * 4, out.size_bytes());
  const auto bad = std::ranges::find_if(out, [](float weight) { return !(weight >= 0 && std::isfinite(weight)); });
  check(bad == out.end(), ErrorCode::kCorrupt, "{}: the weight of token {} is {} (want 0 or more)", weights_->path(),
        first + (bad - out.begin()), bad == out.end() ? 0 : *bad);
}

void TokenDataset::copy(int64_t first, std::span<int32_t> out) const {
  with_token_type(type(), [&](auto token) {
    using T = decltype(token);
    const auto* from = reinterpret_cast<const char*>(bin_.bytes().data()) + first * static_cast<int64_t>(sizeof(T));
    for (size_t i = 0; i < out.size(); ++i) {
      const auto value = static_cast<int64_t>(load<T>(from + i * sizeof(T)));  // NOLINT(bugprone-signed-char-misuse)
      // An i64 that int32 cannot hold becomes -1, which the range check of read() reports.
      out[i] = value > INT32_MAX || value < 0 ? -1 : static_cast<int32_t>(value);
    }
  });
}

uint32_t TokenDataset::checksum() const {
  constexpr int64_t kBlock = 4096, kBlocks = 256;
  std::vector<int32_t> ids;
  uint32_t crc = 0;
  for_spread(tokens(), kBlock, kBlocks, [&](int64_t first, int64_t count) {
    ids.resize(static_cast<size_t>(count));
    copy(first, ids);
    crc = crc32c(ids.data(), count * 4, crc);
  });
  std::vector<uint8_t> counts;
  for_spread(has_mask() ? tokens() : 0, kBlock, kBlocks, [&](int64_t first, int64_t count) {
    counts.resize(static_cast<size_t>(count));
    read_counts(first, counts);
    crc = crc32c(counts.data(), count, crc);
  });
  std::vector<float> weights;
  for_spread(has_weights() ? tokens() : 0, kBlock, kBlocks, [&](int64_t first, int64_t count) {
    weights.resize(static_cast<size_t>(count));
    read_weights(first, weights);
    crc = crc32c(weights.data(), count * 4, crc);
  });
  for_spread(documents(), kBlock, kBlocks, [&](int64_t first, int64_t count) {
    for (int64_t document = first; document < first + count; ++document) {
      const int64_t begin = document_begin(document);
      crc = crc32c(&begin, 8, crc);
    }
  });
  return crc;
}

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

void DatasetWriter::append_weights(size_t ids, std::span<const float> weights) {
  if (weights_ == nullptr && std::ranges::count(weights, 1.0f) == std::ssize(weights)) return;
  const auto append_ones = [&](int64_t count) {
    const std::vector<float> ones(static_cast<size_t>(std::min<int64_t>(count, 1 << 18)), 1.0f);
    for (; count > 0; count -= std::ssize(ones))
      weights_->write(ones.data(), 4 * std::min<int64_t>(count, std::ssize(ones)));
  };
  if (weights_ == nullptr) {
    weights_ = std::make_unique<FileWriter>(prefix_ + ".weights");
    append_ones(tokens_);
  }
  weights.empty() ? append_ones(static_cast<int64_t>(ids)) : weights_->write(weights.data(), 4 * std::ssize(weights));
}

void DatasetWriter::append(std::span<const int32_t> ids, std::span<const uint8_t> counts,
                           std::span<const float> weights) {
  append_counts(ids.size(), counts);
  append_weights(ids.size(), weights);
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
        "{}: document {} has {} tokens, but the format holds at most {}: split the file into documents", prefix_,
        documents_, current_, INT32_MAX);
  const auto length = static_cast<int32_t>(current_);
  lengths_.write(&length, 4);
  ++documents_;
  current_ = 0;
}

void DatasetWriter::end_row() {
  end_document();
  row_ends_.push_back(documents_);
}

void DatasetWriter::commit() {
  end_document();
  check(row_ends_.empty() || row_ends_.back() == documents_, ErrorCode::kInternal, "{}: documents outside of rows",
        prefix_);
  lengths_.commit();
  const MappedFile lengths(prefix_ + ".lengths");
  remove_path(lengths.path());  // mapped, it stays readable
  FileWriter idx(prefix_ + ".idx");
  const auto put = [&](auto value) { idx.write(&value, sizeof value); };
  idx.write({"MMIDIDX\0\0", 9});
  put(uint64_t{1});
  put(type_);
  put(documents_);
  put(row_ends_.empty() ? documents_ + 1 : std::ssize(row_ends_) + 1);
  idx.write(lengths.bytes().data(), lengths.size());
  int64_t offset = 0;
  for (int64_t i = 0; i < documents_; ++i) {
    put(offset);
    int32_t length = 0;
    std::memcpy(&length, lengths.bytes().data() + i * 4, 4);
    offset += length * octet::token_bytes(type_);
  }
  if (row_ends_.empty()) {
    for (int64_t i = 0; i <= documents_; ++i) put(i);
  } else {
    put(int64_t{0});
    for (const int64_t end : row_ends_) put(end);
  }
  for (const auto& [file, end] : {std::pair(&mask_, ".mask"), {&weights_, ".weights"}}) {
    remove_path(prefix_ + end);
    if (*file != nullptr) (*file)->commit();
  }
  bin_.commit();
  idx.commit();
}

std::vector<int64_t> cut_dataset(const std::string& prefix, const std::vector<std::string>& parts,
                                 const std::vector<int64_t>& counts) {
  const auto whole = TokenDataset::open(prefix);
  std::vector<std::unique_ptr<DatasetWriter>> writers;
  std::vector<int32_t> block(1 << 16);
  std::vector<uint8_t> flags(whole->has_mask() ? block.size() : 0);
  std::vector<float> weights(whole->has_weights() ? block.size() : 0);
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
      const auto weighed = std::span(weights).first(whole->has_weights() ? piece.size() : 0);
      whole->read_weights(at, weighed);
      writer.append(piece, mask, weighed);
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
