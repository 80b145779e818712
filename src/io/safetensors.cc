// The safetensors header, the reader of files and of folders in the layout of the Hugging Face hub, and writers. A
// header is untrusted: all fields are checked against the file's size and each other before use.
#include "io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"

namespace octet {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and used in place");

constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference implementation
constexpr size_t kMaxRank = 64;
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
             "{} is not a size (want a whole number >= 0)", value.dump(-1, ' ', true));
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

constexpr int64_t kDataAlignment = 64;

// Wider types first keeps each tensor aligned; otherwise in the caller's order.
std::string index_name(const std::string& stem) { return stem + ".safetensors.index.json"; }

std::vector<NamedType> aligned_order(std::vector<NamedType> tensors) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const NamedType& a, const NamedType& b) {
    return dtype_bytes(a.type.dtype) > dtype_bytes(b.type.dtype);
  });
  return tensors;
}

std::string header_text(const std::string& path, const std::vector<NamedType>& tensors, const TextMap& metadata) {
  nlohmann::ordered_json root = nlohmann::ordered_json::object();
  if (!metadata.empty()) root["__metadata__"] = metadata;
  std::set<std::string> seen;
  int64_t offset = 0;
  for (const NamedType& tensor : tensors) {
    check(tensor.name != "__metadata__" && seen.insert(tensor.name).second, ErrorCode::kInvalidArgument,
          "{}: duplicate tensor name '{}'", path, tensor.name);
    int64_t end = 0;
    check(!__builtin_add_overflow(offset, tensor.type.bytes(), &end), ErrorCode::kInvalidArgument,
          "{}: more than 2^63 bytes of tensors", path);
    root[tensor.name] = {{"dtype", safetensors_dtype_name(tensor.type.dtype)},
                         {"shape", tensor.type.shape.dims},
                         {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = root.dump();
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::kInvalidArgument, "{}: a name or metadata text is not UTF-8: {}", path, error.what());
  }
  text.append(static_cast<size_t>((-(8 + static_cast<int64_t>(text.size()))) & (kDataAlignment - 1)), ' ');
  return text;
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

std::vector<float> floats_of(const TensorView& view) {
  std::vector<float> values(static_cast<size_t>(view.type.shape.elements()));
  convert(view.type.dtype, view.bytes.data(), DType::kF32, values.data(), std::ssize(values));
  return values;
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
    check(!tensor.empty(), ErrorCode::kCorrupt, "{}: tensor '{}' is not in {} as stated", path_, item.key(), file);
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

std::unique_ptr<TensorSource> open_safetensors(const std::string& path, const std::string& stem) {
  if (!is_folder(path)) return std::make_unique<TensorSource>(path);
  const std::string single = stem + ".safetensors", index = index_name(stem);
  const bool whole = path_exists(path + "/" + single);
  const bool shards = path_exists(path + "/" + index);
  check(whole || shards, ErrorCode::kNotFound, "{}: holds neither {} nor {}", path, single, index);
  if (whole && shards)
    log_warning("{} contains {} and {}: the first is read, as transformers does; delete the one that is not meant",
                path, single, index);
  return std::make_unique<TensorSource>(path + "/" + (whole ? single : index));
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<NamedType> tensors, const TextMap& metadata)
    : path_(path), tensors_(aligned_order(std::move(tensors))), file_(path) {
  skip_finished();
  const std::string header = header_text(path, tensors_, metadata);
  const uint64_t header_bytes = header.size();
  file_.write(&header_bytes, 8);
  file_.write(header);
}

void SafetensorsWriter::skip_finished() {
  while (next_ < tensors_.size() && written_ == tensors_[next_].type.bytes()) ++next_, written_ = 0;
}

void SafetensorsWriter::write(const std::string& name, std::span<const std::byte> part) {
  const auto bytes = static_cast<int64_t>(part.size());
  // Empty tensors are skipped; writing zero bytes of one is allowed.
  if (bytes == 0) return;
  check(next_ < tensors_.size(), ErrorCode::kInternal, "{}: '{}' was written after the last tensor", path_, name);
  const NamedType& tensor = tensors_[next_];
  check(tensor.name == name, ErrorCode::kInternal, "{}: '{}' written instead of '{}' ({} of {} bytes present)", path_,
        name, tensor.name, written_, tensor.type.bytes());
  check(bytes <= tensor.type.bytes() - written_, ErrorCode::kInternal, "{}: {} bytes for '{}' {}, which lacks only {}",
        path_, bytes, name, to_string(tensor.type), tensor.type.bytes() - written_);
  file_.write(part.data(), bytes);
  written_ += bytes;
  skip_finished();
}

void SafetensorsWriter::finish() {
  check(next_ == tensors_.size(), ErrorCode::kInternal, "{}: finished before tensor '{}' was complete", path_,
        next_ < tensors_.size() ? tensors_[next_].name : "");
  file_.commit();
}

std::vector<SafetensorsFile> deal_tensors(const std::string& stem, std::vector<NamedType> tensors, int64_t max_bytes) {
  check(max_bytes > 0, ErrorCode::kInvalidArgument, "{}: files of at most {} bytes: want a positive number", stem,
        max_bytes);
  std::vector<SafetensorsFile> files(1);
  std::set<std::string> names;
  int64_t file_bytes = 0;
  for (NamedType& tensor : tensors) {
    check(names.insert(tensor.name).second, ErrorCode::kInvalidArgument, "{}: duplicate tensor name '{}'", stem,
          tensor.name);
    const int64_t bytes = tensor.type.bytes();
    if (!files.back().tensors.empty() && bytes > max_bytes - file_bytes) {
      files.emplace_back();
      file_bytes = 0;
    }
    file_bytes += bytes;
    files.back().tensors.push_back(std::move(tensor));
  }
  for (size_t i = 0; i < files.size(); ++i) {
    files[i].name = files.size() == 1 ? stem + ".safetensors"
                                      : fmt::format("{}-{:05}-of-{:05}.safetensors", stem, i + 1, files.size());
    files[i].tensors = aligned_order(std::move(files[i].tensors));
  }
  return files;
}

void write_index(const std::string& folder, const std::string& stem, const std::vector<SafetensorsFile>& files) {
  if (files.size() == 1) return;
  nlohmann::ordered_json index;
  int64_t total = 0;
  for (const SafetensorsFile& file : files)
    for (const NamedType& tensor : file.tensors) total += tensor.type.bytes();
  index["metadata"]["total_size"] = total;
  for (const SafetensorsFile& file : files)
    for (const NamedType& tensor : file.tensors) index["weight_map"][tensor.name] = file.name;
  write_file(folder + "/" + index_name(stem), index.dump(2) + "\n");
}

SafetensorsFolderWriter::SafetensorsFolderWriter(std::string folder, std::vector<NamedType> tensors,
                                                 const TextMap& metadata, int64_t max_shard_bytes)
    : folder_(std::move(folder)), files_(deal_tensors("model", std::move(tensors), max_shard_bytes)) {
  make_folders(folder_);
  for (const SafetensorsFile& file : files_) {
    writers_.push_back(std::make_unique<SafetensorsWriter>(folder_ + "/" + file.name, file.tensors, metadata));
    for (const NamedType& tensor : file.tensors) {
      writer_of_[tensor.name] = writers_.back().get();
      tensors_.push_back(tensor);
    }
  }
}

void SafetensorsFolderWriter::write(const std::string& name, std::span<const std::byte> part) {
  auto found = writer_of_.find(name);
  check(found != writer_of_.end(), ErrorCode::kInternal, "{}: tensor '{}' was not announced", folder_, name);
  found->second->write(name, part);
}

void SafetensorsFolderWriter::finish() {
  for (const auto& writer : writers_) writer->finish();
  write_index(folder_, "model", files_);
  remove_path(folder_ + "/" + (files_.size() == 1 ? index_name("model") : "model.safetensors"));
}

}  // namespace octet
