// Writes a PREFIX.bin/.idx pair, and PREFIX.mask if some tokens are no targets, document by document, as
// PREFIX.*.partial until commit() renames them: an aborted run leaves no incomplete file under the final name. Memory
// does not grow with the number of documents.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "io/dataset.h"

namespace octet {

// An append-only file with a buffer; every failed write is an Error that names the file.
class OutputFile {
 public:
  explicit OutputFile(std::string path);
  ~OutputFile();  // closes without error checks: call finish() first
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  void append(const void* data, size_t bytes);
  void finish();  // flush, fsync, close
  int64_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  void flush();
  std::string path_, buffer_;
  int file_ = -1;
  int64_t size_ = 0;
};

class DatasetWriter {
 public:
  DatasetWriter(std::string prefix, TokenType type);  // kU16 or kI32
  ~DatasetWriter();                                   // without commit(): removes the partial files
  DatasetWriter(const DatasetWriter&) = delete;
  DatasetWriter& operator=(const DatasetWriter&) = delete;

  // Tokens of the current document; call any number of times. `counts`: whether each is a target; empty: all are. An id
  // the type cannot hold is an error.
  void append(std::span<const int32_t> ids, std::span<const uint8_t> counts = {});
  void end_document();  // a document of no tokens is not recorded
  // Closes the files and gives them their names: .idx last. A mask of an earlier set of this name is removed.
  void commit();

  int64_t tokens() const { return tokens_; }
  int64_t documents() const { return documents_; }
  const std::string& prefix() const { return prefix_; }

 private:
  std::string partial(const char* extension) const { return prefix_ + extension + ".partial"; }
  void write_index();
  void append_counts(size_t ids, std::span<const uint8_t> counts);
  std::string prefix_;
  TokenType type_;
  std::unique_ptr<OutputFile> bin_, lengths_, mask_;  // mask_: from the first token on that is no target
  int64_t tokens_ = 0, documents_ = 0, current_ = 0;
  bool committed_ = false;
};

// Cuts one prepared pair into several by token counts (nanoGPT's first 90 % and last 10 %): part i gets `counts[i]`
// tokens. A document that lies across a cut is divided. Reads PREFIX, writes the others; returns documents of each
// part.
std::vector<int64_t> cut_dataset(const std::string& prefix, const std::vector<std::string>& parts,
                                 const std::vector<int64_t>& counts);

}  // namespace octet
