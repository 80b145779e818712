// See signatures.h.
#include "corpus/signatures.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace octet {
namespace {

constexpr int64_t kRows = 1 << 16;
constexpr uint64_t kMagic = 0x31676973746374ull;
constexpr int64_t kFooter = 4 * 8;  // magic, columns, documents, bad lines

}  // namespace

SignatureWriter::SignatureWriter(const std::string& path, int64_t columns)
    : file_(path), block_(static_cast<size_t>(columns * kRows)), totals_{.columns = columns} {}

void SignatureWriter::add(std::span<const uint64_t> row) {
  for (size_t column = 0; column < row.size(); ++column)
    block_[column * kRows + static_cast<size_t>(rows_)] = row[column];
  ++totals_.documents;
  if (++rows_ == kRows) write_block();
}

void SignatureWriter::write_block() {
  for (int64_t column = 0; column < totals_.columns; ++column)
    file_.write(&block_[static_cast<size_t>(column * kRows)], rows_ * 8);
  rows_ = 0;
}

void SignatureWriter::commit() {
  write_block();
  const uint64_t footer[] = {kMagic, static_cast<uint64_t>(totals_.columns), static_cast<uint64_t>(totals_.documents),
                             static_cast<uint64_t>(totals_.bad_lines)};
  file_.write(footer, kFooter);
  file_.commit();
}

SignatureFile::SignatureFile(const std::string& path, int64_t columns) : file_(path) {
  uint64_t footer[4] = {};
  if (file_.size() >= kFooter) std::memcpy(footer, file_.bytes().data() + file_.size() - kFooter, kFooter);
  totals_ = {static_cast<int64_t>(footer[1]), static_cast<int64_t>(footer[2]), static_cast<int64_t>(footer[3])};
  check(footer[0] == kMagic && totals_.columns == columns && totals_.documents <= file_.size() &&
            file_.size() == totals_.columns * totals_.documents * 8 + kFooter,
        ErrorCode::kCorrupt, "{}: is no whole file of signatures of {} columns: remove it and run its stage again",
        path, columns);
}

int64_t SignatureFile::blocks() const { return (totals_.documents + kRows - 1) / kRows; }

std::span<const uint64_t> SignatureFile::column(int64_t block, int64_t column) const {
  const int64_t rows = std::min(kRows, totals_.documents - block * kRows);
  const auto* words = reinterpret_cast<const uint64_t*>(file_.bytes().data());
  return {words + block * kRows * totals_.columns + column * rows, static_cast<size_t>(rows)};
}

uint64_t SignatureFile::at(int64_t row, int64_t column) const {
  return this->column(row / kRows, column)[static_cast<size_t>(row % kRows)];
}

void DocumentTable::add(const std::string& path, int64_t columns) {
  tables_.emplace_back(path, columns);
  first_.push_back(first_.back() + tables_.back().totals().documents);
}

DocumentTable::Place DocumentTable::place(uint64_t document) const {
  const auto after = std::upper_bound(first_.begin(), first_.end(), static_cast<int64_t>(document));
  const auto file = static_cast<size_t>(after - first_.begin()) - 1;
  return {file, static_cast<int64_t>(document) - first_[file]};
}

uint64_t DocumentTable::at(uint64_t document, int64_t column) const {
  const Place where = place(document);
  return tables_[where.file].at(where.row, column);
}

uint64_t DocumentTable::begin_of(Place place, int64_t column) const {
  return place.row == 0 ? 0 : tables_[place.file].at(place.row - 1, column);
}

}  // namespace octet
