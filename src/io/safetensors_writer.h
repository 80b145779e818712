// Writing safetensors tensor by tensor, so that a model is never in memory twice. Files appear complete or not at
// all (base/file.h).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/shape.h"
#include "io/safetensors.h"

namespace octet {

struct NamedType {
  std::string name;
  TensorType type;
};

// One file. The header is fixed at construction; then every tensor's bytes follow in the order of tensors(), in one or
// more parts; finish() renames it to its final name. Data begins at a multiple of 64 bytes and wider types come first,
// so that each tensor is aligned for its type (the format knows no padding between tensors).
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, std::vector<NamedType> tensors, const TextMap& metadata = {});

  const std::vector<NamedType>& tensors() const { return tensors_; }  // in the order of write() calls
  void write(const std::string& name, std::span<const std::byte> part);
  void finish();
  uint32_t checksum() const { return file_.checksum(); }  // crc32c of the file so far

 private:
  void skip_finished();

  std::string path_;
  std::vector<NamedType> tensors_;
  FileWriter file_;
  size_t next_ = 0;      // index of the tensor being written
  int64_t written_ = 0;  // bytes of it
};

// A folder: `model.safetensors` when everything fits one shard, else `model-00001-of-0000N.safetensors` and the index.
// Used like SafetensorsWriter. The folder is unchanged before finish(), which also removes the other layout's entry
// file.
class SafetensorsFolderWriter {
 public:
  SafetensorsFolderWriter(std::string folder, std::vector<NamedType> tensors, const TextMap& metadata = {},
                          int64_t max_shard_bytes = int64_t{5} << 30);

  const std::vector<NamedType>& tensors() const { return tensors_; }  // in the order of write() calls
  void write(const std::string& name, std::span<const std::byte> part);
  void finish();

 private:
  struct Shard {
    std::string name;
    std::unique_ptr<SafetensorsWriter> writer;
  };
  std::string folder_;
  std::vector<NamedType> tensors_;
  std::vector<Shard> shards_;
  std::map<std::string, size_t> shard_of_;
};

}  // namespace octet
