// Reading safetensors: u64 header length, JSON header (name -> dtype, shape, data_offsets; "__metadata__" -> text), raw
// little-endian data without gaps. A file is memory-mapped and its header fully validated before data is
// read. Source: github.com/huggingface/safetensors, README "Format".
#pragma once

#include <map>
#include <memory>
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
  std::span<const std::byte> bytes;  // aligned for its type; valid during the file object's lifetime
};

// A source of named tensors: one file or a folder of shards.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual const std::vector<std::string>& names() const = 0;
  virtual const TensorType* find_type(const std::string& name) const = 0;  // null when absent
  virtual TensorView read(const std::string& name) const = 0;              // kNotFound names the nearest
  virtual const TextMap& metadata() const = 0;
};

class SafetensorsFile : public TensorSource {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::vector<std::string>& names() const override { return names_; }  // in file order
  const TensorType* find_type(const std::string& name) const override;
  TensorView read(const std::string& name) const override;
  const TextMap& metadata() const override { return header_.metadata; }
  const std::string& path() const { return map_.path(); }

 private:
  MappedFile map_;
  SafetensorsHeader header_;
  std::vector<std::string> names_;
  std::map<std::string, size_t, std::less<>> index_;
  // Copies of tensors that another writer left misaligned for their type: rare, and casting them would be undefined.
  std::map<size_t, std::unique_ptr<std::byte[]>> aligned_;
};

// A folder with `model.safetensors`, or `model.safetensors.index.json` and its shards; or the path of one file.
std::unique_ptr<TensorSource> open_safetensors(const std::string& path);

}  // namespace octet
