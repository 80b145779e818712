#include "octet/model_path.h"

#include "base/error.h"
#include "base/file.h"
#include "train/checkpoint.h"

namespace octet {

std::string model_folder(const std::string& path) {
  if (!is_folder(path + "/checkpoints")) return path;
  auto newest = newest_sound_checkpoint(path);
  check(newest.has_value(), ErrorCode::kNotFound, "{}: no sound checkpoint in {}/checkpoints", path, path);
  return *newest;
}

}  // namespace octet
