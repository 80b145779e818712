#include "octet/model_path.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "model/model.h"
#include "train/checkpoint.h"

namespace octet {

std::string model_folder(const std::string& path) {
  const std::vector<std::string> sizes = named_models();
  const bool named = std::find(sizes.begin(), sizes.end(), path) != sizes.end();
  check(path_exists(path), ErrorCode::kNotFound, "{}: no such file or folder{}", path,
        named ? " (it is a size: octet train model.size=..., or octet bench ... --random-weights)" : "");
  if (!is_folder(path + "/checkpoints")) return path;
  auto newest = newest_sound_checkpoint(path);
  check(newest.has_value(), ErrorCode::kNotFound, "{}: no checkpoint in {}/checkpoints", path, path);
  return *newest;
}

}  // namespace octet
