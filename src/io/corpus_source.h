// One corpus file opened for reading, unpacked on the fly.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "io/corpus_reader.h"

namespace octet {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Appends up to `most` bytes to `out`; false at the end of the file.
  virtual bool read(std::string& out, size_t most) = 0;
  virtual int64_t disk_position() const = 0;  // bytes of the file on disk consumed so far
};

std::unique_ptr<ByteSource> open_source(const CorpusFile& file);

}  // namespace octet
