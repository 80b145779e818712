// Safetensors: u64 header length, JSON header (name -> dtype, shape, data_offsets; "__metadata__" -> text), raw
// little-endian data without gaps. A file is memory-mapped and its header fully validated before data is
// read; it is written tensor by tensor, so that a model is never in memory twice, and appears complete or not at all.
// Source: github.com/huggingface/safetensors, README "Format".
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/shape.h"

namespace octet {

using TextMap = std::map<std::string, std::string>;

// Header entry of one tensor; `offset` counts from the start of the file.
struct SafetensorsEntry {
  std::string name;
  TensorType type;
  int64_t offset = 0;
  int64_t bytes = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  // in file order
  TextMap metadata;
};

// F64 F32 BF16 F16 F8_E4M3 F8_E5M2 I64 I32 U8, and BOOL as u8. kUnsupported for anything else.
DType parse_safetensors_dtype(std::string_view name, const std::string& where);
const char* safetensors_dtype_name(DType dtype);

// Checks a whole file's bytes and returns its header; `where` names the file in errors. Pure; also run by
// the fuzzer.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& where);

struct TensorView {
  TensorType type;
  std::span<const std::byte> bytes;  // aligned for its type; valid during the source's lifetime
};

// Its values, converted.
std::vector<float> floats_of(const TensorView& view);

// Named tensors of one file, or of the shards that an index ("model.safetensors.index.json") names.
class TensorSource {
 public:
  explicit TensorSource(const std::string& path);

  const std::vector<std::string>& names() const { return names_; }  // in file order; of an index, sorted
  const TensorType* find_type(const std::string& name) const;       // null when absent
  TensorView read(const std::string& name) const;                   // kNotFound names the nearest
  const TextMap& metadata() const { return metadata_; }

 private:
  using Tensors = std::map<std::string, TensorView, std::less<>>;
  Tensors open_file(const std::string& path, std::vector<std::string>* names = nullptr);
  void open_shards();

  std::string path_;
  std::vector<MappedFile> maps_;
  // Copies of tensors that another writer left misaligned for their type: rare, and casting them would be undefined.
  std::vector<std::unique_ptr<std::byte[]>> aligned_;
  Tensors tensors_;
  std::vector<std::string> names_;
  TextMap metadata_;
};

// A folder with `model.safetensors`, or `model.safetensors.index.json` and its shards; or the path of one file.
std::unique_ptr<TensorSource> open_safetensors(const std::string& path);

struct NamedType {
  std::string name;
  TensorType type;
};

// One file. The header is fixed at construction; then every tensor's bytes follow in the order of tensors(), in one or
// more parts; finish() renames it to its final name. Data begins at a multiple of 64 bytes and wider types come first,
// so that each tensor is aligned for its type (the format knows no padding between tensors). "" as the path: nothing is
// written, by a rank that only gives its parts.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, std::vector<NamedType> tensors, const TextMap& metadata = {});

  const std::vector<NamedType>& tensors() const { return tensors_; }  // in the order of write() calls
  void write(const std::string& name, std::span<const std::byte> part);
  void finish();
  uint32_t checksum() const { return file_ ? file_->checksum() : 0; }  // crc32c of the file so far

 private:
  void skip_finished();

  std::string path_;
  std::vector<NamedType> tensors_;
  std::optional<FileWriter> file_;
  size_t next_ = 0;      // index of the tensor being written
  int64_t written_ = 0;  // bytes of it
};

// A folder: `model.safetensors` when everything fits one shard, else `model-00001-of-0000N.safetensors` and the index.
// Used like SafetensorsWriter; "" as the folder: nothing is written. The folder is unchanged before finish(), which
// also removes the other layout's entry file.
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
