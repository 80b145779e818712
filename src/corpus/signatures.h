// Files of signatures: a table of 64-bit values, a row for each document. In blocks of rows, each column by column, so
// that a pass over one column reads nothing else and a writer holds one block.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"

namespace octet {

// The columns; those of the keys of bands follow.
enum SignatureColumn : int64_t { kLine, kTextLow, kTextHigh, kNameEnd, kSetEnd, kFirstBand };

struct SignatureTotals {
  int64_t columns = 0, documents = 0, bad_lines = 0;
};

class SignatureWriter {
 public:
  SignatureWriter(const std::string& path, int64_t columns);
  void add(std::span<const uint64_t> row);
  void add_bad_line() { ++totals_.bad_lines; }
  void commit();

 private:
  void write_block();

  FileWriter file_;
  std::vector<uint64_t> block_;  // [columns, kSignatureRows]
  int64_t rows_ = 0;             // in the block
  SignatureTotals totals_;
};

class SignatureFile {
 public:
  SignatureFile(const std::string& path, int64_t columns);  // throws kCorrupt for another number of columns
  const SignatureTotals& totals() const { return totals_; }
  int64_t blocks() const;
  std::span<const uint64_t> column(int64_t block, int64_t column) const;
  uint64_t at(int64_t row, int64_t column) const;

 private:
  MappedFile file_;
  SignatureTotals totals_;
};

// The documents of all inputs, numbered through in their order.
class DocumentTable {
 public:
  DocumentTable() = default;
  void add(const std::string& path, int64_t columns);

  struct Place {
    size_t file = 0;
    int64_t row = 0;
  };
  int64_t documents() const { return first_.back(); }
  int64_t first(size_t file) const { return first_[file]; }
  size_t files() const { return tables_.size(); }
  const SignatureFile& file(size_t file) const { return tables_[file]; }
  Place place(uint64_t document) const;
  uint64_t at(uint64_t document, int64_t column) const;
  // The end of the row before it in a column of ends; 0 for the first of a file.
  uint64_t begin_of(Place place, int64_t column) const;

 private:
  std::vector<SignatureFile> tables_;
  std::vector<int64_t> first_{0};
};

}  // namespace octet
