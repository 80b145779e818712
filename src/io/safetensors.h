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

// A folder with STEM.safetensors, or STEM.safetensors.index.json and its shards; or the path of one file.
std::unique_ptr<TensorSource> open_safetensors(const std::string& path, const std::string& stem = "model");

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
  int64_t bytes() const { return file_.position(); }  // of the file so far, and their crc32c
  uint32_t checksum() const { return file_.checksum(); }

 private:
  void skip_finished();

  std::string path_;
  std::vector<NamedType> tensors_;
  FileWriter file_;
  size_t next_ = 0;      // index of the tensor being written
  int64_t written_ = 0;  // bytes of it
};

// Tensors dealt to files in their order: STEM.safetensors when everything fits one of max_bytes, else
// STEM-00001-of-0000N.safetensors and so on; a tensor above the limit gets a file of its own. Within a file, the order
// of writing. Throws kInvalidArgument for a limit that is not positive and a name that is taken.
struct SafetensorsFile {
  std::string name;
  std::vector<NamedType> tensors;
};
std::vector<SafetensorsFile> deal_tensors(const std::string& stem, std::vector<NamedType> tensors, int64_t max_bytes);
// STEM.safetensors.index.json of several files in the folder; of one there is none.
void write_index(const std::string& folder, const std::string& stem, const std::vector<SafetensorsFile>& files);

// A folder of the files that deal_tensors("model") makes, and their index. Used like SafetensorsWriter. The folder is
// unchanged before finish(), which also removes the other layout's entry file.
class SafetensorsFolderWriter {
 public:
  SafetensorsFolderWriter(std::string folder, std::vector<NamedType> tensors, const TextMap& metadata = {},
                          int64_t max_shard_bytes = int64_t{5} << 30);

  const std::vector<NamedType>& tensors() const { return tensors_; }  // in the order of write() calls
  void write(const std::string& name, std::span<const std::byte> part);
  void finish();

 private:
  std::string folder_;
  std::vector<SafetensorsFile> files_;
  std::vector<std::unique_ptr<SafetensorsWriter>> writers_;  // of each
  std::vector<NamedType> tensors_;
  std::map<std::string, SafetensorsWriter*> writer_of_;
};

}  // namespace octet
