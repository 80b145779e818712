// The writers of safetensors.h.
#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "io/safetensors.h"

namespace octet {
namespace {

constexpr int64_t kDataAlignment = 64;

// Wider types first keeps each tensor aligned; otherwise in the caller's order.
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
          "{}: tensor name '{}' is taken", path, tensor.name);
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

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<NamedType> tensors, const TextMap& metadata)
    : path_(path), tensors_(aligned_order(std::move(tensors))), file_(path) {
  const std::string header = header_text(path, tensors_, metadata);
  const uint64_t header_bytes = header.size();
  file_.write(&header_bytes, 8);
  file_.write(header);
  skip_finished();
}

void SafetensorsWriter::skip_finished() {
  while (next_ < tensors_.size() && written_ == tensors_[next_].type.bytes()) ++next_, written_ = 0;
}

void SafetensorsWriter::write(const std::string& name, std::span<const std::byte> part) {
  const auto bytes = static_cast<int64_t>(part.size());
  // Empty tensors are skipped; writing zero bytes of one is allowed.
  if (bytes == 0) return;
  check(next_ < tensors_.size(), ErrorCode::kInternal, "{}: '{}' written after the last tensor", path_, name);
  const NamedType& tensor = tensors_[next_];
  check(tensor.name == name, ErrorCode::kInternal, "{}: '{}' written where '{}' is due ({} of {} bytes present)", path_,
        name, tensor.name, written_, tensor.type.bytes());
  check(bytes <= tensor.type.bytes() - written_, ErrorCode::kInternal, "{}: {} bytes for '{}' {}, which lacks only {}",
        path_, bytes, name, to_string(tensor.type), tensor.type.bytes() - written_);
  file_.write(part.data(), bytes);
  written_ += bytes;
  skip_finished();
}

void SafetensorsWriter::finish() {
  check(next_ == tensors_.size(), ErrorCode::kInternal, "{}: finished before tensor '{}' was whole", path_,
        next_ < tensors_.size() ? tensors_[next_].name : "");
  file_.commit();
}

SafetensorsFolderWriter::SafetensorsFolderWriter(std::string folder, std::vector<NamedType> tensors,
                                                 const TextMap& metadata, int64_t max_shard_bytes)
    : folder_(std::move(folder)) {
  check(max_shard_bytes > 0, ErrorCode::kInvalidArgument, "{}: max_shard_bytes {} is not positive", folder_,
        max_shard_bytes);
  std::vector<std::vector<NamedType>> groups(1);
  int64_t group_bytes = 0;
  for (NamedType& tensor : tensors) {
    const int64_t bytes = tensor.type.bytes();
    if (!groups.back().empty() && bytes > max_shard_bytes - group_bytes) {  // a tensor above the limit gets a shard
      groups.emplace_back();
      group_bytes = 0;
    }
    group_bytes += bytes;
    groups.back().push_back(std::move(tensor));
  }
  make_folders(folder_);
  for (size_t index = 0; index < groups.size(); ++index) {
    std::string name = groups.size() == 1 ? "model.safetensors"
                                          : fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, groups.size());
    auto writer = std::make_unique<SafetensorsWriter>(folder_ + "/" + name, std::move(groups[index]), metadata);
    for (const NamedType& tensor : writer->tensors()) {
      check(shard_of_.emplace(tensor.name, index).second, ErrorCode::kInvalidArgument, "{}: tensor name '{}' is taken",
            folder_, tensor.name);
      tensors_.push_back(tensor);
    }
    shards_.push_back({std::move(name), std::move(writer)});
  }
}

void SafetensorsFolderWriter::write(const std::string& name, std::span<const std::byte> part) {
  auto found = shard_of_.find(name);
  check(found != shard_of_.end(), ErrorCode::kInternal, "{}: tensor '{}' was not announced", folder_, name);
  shards_[found->second].writer->write(name, part);
}

void SafetensorsFolderWriter::finish() {
  const std::string index_path = folder_ + "/model.safetensors.index.json";
  for (Shard& shard : shards_) shard.writer->finish();
  if (shards_.size() == 1) return remove_path(index_path);
  nlohmann::ordered_json index;
  int64_t total = 0;
  for (const NamedType& tensor : tensors_) total += tensor.type.bytes();
  index["metadata"]["total_size"] = total;
  for (const NamedType& tensor : tensors_) index["weight_map"][tensor.name] = shards_[shard_of_.at(tensor.name)].name;
  write_file(index_path, index.dump(2) + "\n");
  remove_path(folder_ + "/model.safetensors");
}

}  // namespace octet
