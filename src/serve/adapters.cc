#include "serve/adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "serve/api.h"

namespace octet::serve {
namespace {

namespace fs = std::filesystem;

void check_admin(const ApiRequest& request, const ApiModel& model) {
  if (model.adapter_root.empty())
    throw ApiError("adapters are not loaded over HTTP here (start the server with --adapter-root DIR)", {}, 404);
  if (!request.admin)
    throw ApiError("this key may not load adapters (\"admin\": true in its line of --api-keys admits it)", {}, 403,
                   "not_admin");
}

std::string name_of(Fields& fields) {
  std::string name = fields.text("lora_name").value_or("");
  const auto plain = [](unsigned char c) { return c > ' ' && c != 0x7f && c != ',' && c != '"' && c != '\\'; };
  if (name.empty() || name.size() > 256 || !std::ranges::all_of(name, plain))
    fields.fail("lora_name", "want a name of 1 to 256 bytes without spaces, commas and quotes");
  return name;
}

// With links followed: what they lead to is below the root too.
std::string folder_of(Fields& fields, const std::string& root) {
  const std::string path = fields.text("lora_path").value_or("");
  if (path.empty()) fields.fail("lora_path", "want the folder of an adapter");
  std::error_code error;
  const fs::path base = fs::canonical(root, error);
  const fs::path folder = error ? fs::path() : fs::weakly_canonical(base / path, error);
  const auto [end, below] = std::ranges::mismatch(base, folder);
  if (error || end != base.end() || below == folder.end())
    fields.fail("lora_path", fmt::format("'{}' is not below the folder that adapters are loaded from", path));
  if (!fs::is_directory(folder, error)) fields.fail("lora_path", fmt::format("the folder '{}' does not exist", path));
  return folder.string();
}

std::string success(const std::string& name, const char* done) {
  log_info("adapter {}: {}", name, done);
  return dump({{"message", fmt::format("Success: LoRA adapter '{}' {} successfully.", name, done)}});
}

}  // namespace

std::string load_lora_adapter(const ApiRequest& request, const ApiModel& model) {
  check_admin(request, model);
  Fields fields(request.json);
  const std::string name = name_of(fields), folder = folder_of(fields, model.adapter_root);
  const bool in_place = fields.flag("load_inplace").value_or(false);
  fields.refuse("is_3d_lora_weight", "not supported");
  if (std::ranges::find(model.names, name) != model.names.end())
    fields.fail("lora_name", fmt::format("'{}' is the model's own name", name));
  if (model.is_adapter(name) && !in_place)
    fields.fail("lora_name", fmt::format("'{}' is loaded (unload it first, or set load_inplace)", name));
  model.engine->load_adapter(name, folder, in_place);
  return success(name, "added");
}

std::string unload_lora_adapter(const ApiRequest& request, const ApiModel& model) {
  check_admin(request, model);
  Fields fields(request.json);
  const std::string name = name_of(fields);
  fields.ignore("lora_int_id");
  if (!model.is_adapter(name))
    throw ApiError(fmt::format("no adapter '{}' is loaded", name), "lora_name", 404, "model_not_found");
  model.engine->unload_adapter(name);
  return success(name, "removed");
}

}  // namespace octet::serve
