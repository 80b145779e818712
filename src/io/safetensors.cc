// The safetensors header, and the reader of files and of folders in the layout of the Hugging Face hub. A header is
// untrusted: all fields are checked against the file's size and each other before use.
#include "io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>

#include "base/error.h"
#include "base/json.h"

namespace octet {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and used in place");

constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference implementation
constexpr size_t kMaxRank = 64;
constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr int64_t kMaxIndexBytes = 256 << 20;

struct DTypeName {
  const char* name;
  DType dtype;
};
constexpr DTypeName kDTypeNames[] = {{"F64", DType::kF64}, {"F32", DType::kF32},      {"BF16", DType::kBF16},
                                     {"F16", DType::kF16}, {"F8_E4M3", DType::kE4M3}, {"F8_E5M2", DType::kE5M2},
                                     {"I64", DType::kI64}, {"I32", DType::kI32},      {"I8", DType::kI8},
                                     {"U8", DType::kU8},   {"BOOL", DType::kU8}};

template <typename... Args>
void check_file(bool condition, const std::string& where, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]]
    throw_error(ErrorCode::kCorrupt, where + ": " + fmt::format(format, std::forward<Args>(args)...));
}

// A dimension or offset: a whole number in [0, 2^63).
int64_t size_value(const nlohmann::json& value, const std::string& where) {
  check_file(value.is_number_unsigned() && std::in_range<int64_t>(value.get<uint64_t>()), where,
             "{} is not a size (want a whole number from 0)", value.dump(-1, ' ', true));
  return value.get<int64_t>();
}

SafetensorsEntry parse_entry(const std::string& name, const nlohmann::json& claims, int64_t data_begin,
                             int64_t data_bytes, const std::string& file) {
  const std::string where = file + ": tensor '" + name + "'";
  check_file(claims.is_object(), where, "its header entry is not an object");
  for (const auto& item : claims.items())
    check_file(item.key() == "dtype" || item.key() == "shape" || item.key() == "data_offsets", where,
               "unknown member '{}' (want dtype, shape, data_offsets)", item.key());
  SafetensorsEntry entry{.name = name};
  entry.type.dtype = parse_safetensors_dtype(json_get<std::string>(claims, "dtype", where), where);

  const auto shape = json_get<nlohmann::json>(claims, "shape", where);
  check_file(shape.is_array() && shape.size() <= kMaxRank, where, "shape is not a list of at most {} sizes", kMaxRank);
  int64_t bytes = dtype_bytes(entry.type.dtype);
  bool overflow = false, empty = false;
  for (const auto& value : shape) {
    int64_t dim = size_value(value, where);
    entry.type.shape.dims.push_back(dim);
    if (dim == 0)
      empty = true;
    else
      overflow |= __builtin_mul_overflow(bytes, dim, &bytes);
  }
  // Also with a zero dim: Shape::elements() multiplies from the left and must not overflow.
  check_file(!overflow, where, "shape {} has more than 2^63 bytes", to_string(entry.type.shape));
  if (empty) bytes = 0;

  const auto offsets = json_get<nlohmann::json>(claims, "data_offsets", where);
  check_file(offsets.is_array() && offsets.size() == 2, where, "data_offsets is not [begin, end]");
  int64_t begin = size_value(offsets[0], where), end = size_value(offsets[1], where);
  check_file(begin <= end && end <= data_bytes, where, "data_offsets [{}, {}] leave the file's {} bytes of data", begin,
             end, data_bytes);
  check_file(end - begin == bytes, where, "{} needs {} bytes but its data_offsets [{}, {}] hold {}",
             to_string(entry.type), bytes, begin, end, end - begin);
  entry.offset = data_begin + begin;
  entry.bytes = bytes;
  return entry;
}

}  // namespace

DType parse_safetensors_dtype(std::string_view name, const std::string& where) {
  std::string known;
  for (const DTypeName& row : kDTypeNames) {
    if (name == row.name) return row.dtype;
    known += std::string(known.empty() ? "" : " ") + row.name;
  }
  fail(ErrorCode::kUnsupported, "{}: dtype '{}' is not one of {}", where, name, known);
}

const char* safetensors_dtype_name(DType dtype) {
  for (const DTypeName& row : kDTypeNames)
    if (row.dtype == dtype) return row.name;
  fail(ErrorCode::kInternal, "no safetensors name for dtype {}", dtype_name(dtype));
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& where) {
  const auto size = static_cast<int64_t>(file.size());
  check_file(size >= 8, where, "{} bytes cannot hold a safetensors header (8 bytes of length)", size);
  uint64_t claimed;
  std::memcpy(&claimed, file.data(), 8);
  check_file(claimed <= static_cast<uint64_t>(kMaxHeaderBytes), where,
             "header length {} exceeds the limit of {}: not a safetensors file?", claimed, kMaxHeaderBytes);
  const auto header_bytes = static_cast<int64_t>(claimed);
  check_file(header_bytes <= size - 8, where, "header of {} bytes does not fit the file's {}: truncated?", header_bytes,
             size);
  const auto* text = reinterpret_cast<const char*>(file.data()) + 8;
  check_file(header_bytes >= 2 && text[0] == '{', where,
             "the header does not begin with '{{': not a safetensors file?");
  const nlohmann::json root = parse_json({text, static_cast<size_t>(header_bytes)}, where, true);

  SafetensorsHeader header;
  const int64_t data_begin = 8 + header_bytes, data_bytes = size - data_begin;
  for (const auto& item : root.items()) {
    if (item.key() != "__metadata__") {
      header.tensors.push_back(parse_entry(item.key(), item.value(), data_begin, data_bytes, where));
      continue;
    }
    check_file(item.value().is_object(), where, "__metadata__ is not an object");
    for (const auto& pair : item.value().items()) {
      check_file(pair.value().is_string(), where, "__metadata__ member '{}' is not text", pair.key());
      header.metadata[pair.key()] = pair.value().get<std::string>();
    }
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
  });
  int64_t expected = data_begin;
  const std::string* previous = nullptr;
  for (const SafetensorsEntry& entry : header.tensors) {
    check_file(entry.offset == expected, where, "tensor '{}' begins at data byte {} but {} ends at {}: {}", entry.name,
               entry.offset - data_begin, previous ? "'" + *previous + "'" : "the header", expected - data_begin,
               entry.offset < expected ? "they overlap" : "there is a gap");
    expected = entry.offset + entry.bytes;
    previous = &entry.name;
  }
  check_file(expected == size, where, "{} bytes after the last tensor: oversized or damaged", size - expected);
  return header;
}

TensorSource::Tensors TensorSource::open_file(const std::string& path, std::vector<std::string>* names) {
  const std::span<const std::byte> file = maps_.emplace_back(path).bytes();
  SafetensorsHeader header = parse_safetensors(file, path);
  Tensors tensors;
  for (const SafetensorsEntry& entry : header.tensors) {
    TensorView view{entry.type, file.subspan(static_cast<size_t>(entry.offset), static_cast<size_t>(entry.bytes))};
    if (entry.bytes > 0 && entry.offset % dtype_bytes(entry.type.dtype) != 0) {
      auto& copy = aligned_.emplace_back(std::make_unique<std::byte[]>(view.bytes.size()));
      std::memcpy(copy.get(), view.bytes.data(), view.bytes.size());
      view.bytes = {copy.get(), view.bytes.size()};
    }
    if (names != nullptr) names->push_back(entry.name);
    tensors.emplace(entry.name, std::move(view));
  }
  metadata_.merge(header.metadata);
  return tensors;
}

void TensorSource::open_shards() {
  const nlohmann::json index = parse_json(read_file(path_, kMaxIndexBytes), path_, true);
  const auto weight_map = json_get<nlohmann::json>(index, "weight_map", path_);
  check(weight_map.is_object(), ErrorCode::kCorrupt, "{}: weight_map is not an object", path_);
  std::map<std::string, Tensors> opened;
  for (const auto& item : weight_map.items()) {
    const std::string file = json_get<std::string>(weight_map, item.key().c_str(), path_);
    // Only names inside the folder: an index must not refer to other paths.
    check(!file.empty() && file.find('/') == std::string::npos && file != "..", ErrorCode::kCorrupt,
          "{}: shard '{}' of tensor '{}' is not a plain file name", path_, file, item.key());
    if (!opened.contains(file)) opened[file] = open_file(parent_folder(path_) + "/" + file);
    auto tensor = opened[file].extract(item.key());
    check(!tensor.empty(), ErrorCode::kCorrupt, "{}: tensor '{}' is not in {} as it says", path_, item.key(), file);
    names_.push_back(item.key());
    tensors_.insert(std::move(tensor));
  }
}

TensorSource::TensorSource(const std::string& path) : path_(path) {
  if (path.ends_with(".json"))
    open_shards();
  else
    tensors_ = open_file(path, &names_);
}

const TensorType* TensorSource::find_type(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second.type;
}

TensorView TensorSource::read(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  fail(ErrorCode::kNotFound, "{}: no tensor '{}' among its {}{}", path_, name, names_.size(),
       if_near(name, names_, "; nearest: '{}'"));
}

std::unique_ptr<TensorSource> open_safetensors(const std::string& path) {
  if (!is_folder(path)) return std::make_unique<TensorSource>(path);
  const std::string single = path + "/" + kSingleName, index = path + "/" + kIndexName;
  check(path_exists(single) || path_exists(index), ErrorCode::kNotFound, "{}: holds neither {} nor {}", path,
        kSingleName, kIndexName);
  return std::make_unique<TensorSource>(path_exists(single) ? single : index);
}

}  // namespace octet
