// A model folder in the layout of the Hugging Face hub: one file, or an index that maps tensor names to shards.
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "io/safetensors.h"

namespace octet {
namespace {

constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr int64_t kMaxIndexBytes = 256 << 20;

class SafetensorsShards : public TensorSource {
 public:
  SafetensorsShards(const std::string& folder, const std::string& index_path) : index_path_(index_path) {
    const nlohmann::json index = parse_json(read_file(index_path, kMaxIndexBytes), index_path, true);
    const auto weight_map = json_get<nlohmann::json>(index, "weight_map", index_path);
    check(weight_map.is_object(), ErrorCode::kCorrupt, "{}: weight_map is not an object", index_path);
    std::map<std::string, size_t> opened;
    for (const auto& item : weight_map.items()) {
      const std::string file = json_get<std::string>(weight_map, item.key().c_str(), index_path);
      // Only names inside the folder: an index must not refer to other paths.
      check(!file.empty() && file.find('/') == std::string::npos && file != "..", ErrorCode::kCorrupt,
            "{}: shard '{}' of tensor '{}' is not a plain file name", index_path, file, item.key());
      auto [shard, is_new] = opened.try_emplace(file, shards_.size());
      if (is_new) shards_.push_back(std::make_unique<SafetensorsFile>(folder + "/" + file));
      const SafetensorsFile& source = *shards_[shard->second];
      check(source.find_type(item.key()) != nullptr, ErrorCode::kCorrupt, "{}: tensor '{}' is not in {} as it says",
            index_path, item.key(), file);
      names_.push_back(item.key());
      shard_of_[item.key()] = shard->second;
    }
    for (const auto& shard : shards_) metadata_.insert(shard->metadata().begin(), shard->metadata().end());
  }

  const std::vector<std::string>& names() const override { return names_; }
  const TextMap& metadata() const override { return metadata_; }
  const TensorType* find_type(const std::string& name) const override {
    auto found = shard_of_.find(name);
    return found == shard_of_.end() ? nullptr : shards_[found->second]->find_type(name);
  }
  TensorView read(const std::string& name) const override {
    auto found = shard_of_.find(name);
    if (found == shard_of_.end()) {
      fail(ErrorCode::kNotFound, "{}: no tensor '{}' among its {}{}", index_path_, name, names_.size(),
           if_near(name, names_, "; nearest: '{}'"));
    }
    return shards_[found->second]->read(name);
  }

 private:
  std::string index_path_;
  std::vector<std::unique_ptr<SafetensorsFile>> shards_;
  std::map<std::string, size_t> shard_of_;
  std::vector<std::string> names_;
  TextMap metadata_;
};

}  // namespace

std::unique_ptr<TensorSource> open_safetensors(const std::string& path) {
  if (!is_folder(path)) return std::make_unique<SafetensorsFile>(path);
  const std::string single = path + "/" + kSingleName, index = path + "/" + kIndexName;
  if (path_exists(single)) return std::make_unique<SafetensorsFile>(single);
  check(path_exists(index), ErrorCode::kNotFound, "{}: holds neither {} nor {}", path, kSingleName, kIndexName);
  return std::make_unique<SafetensorsShards>(path, index);
}

}  // namespace octet
