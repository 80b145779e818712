#include "io/chat_template_file.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace octet {
namespace {

nlohmann::json read_object(const std::string& path) {
  nlohmann::json object = path_exists(path) ? parse_json(read_file(path), path) : nlohmann::json::object();
  check(object.is_object(), ErrorCode::kInvalidArgument, "{} is not a JSON object", path);
  return object;
}

}  // namespace

std::string find_chat_template(const std::string& folder, const std::string& name, std::string& path) {
  const bool is_default = name == "default";
  path = folder + (is_default ? "/chat_template.jinja" : "/additional_chat_templates/" + name + ".jinja");
  if (path_exists(path)) return read_file(path);
  path = folder + "/tokenizer_config.json";
  const nlohmann::json given = read_object(path).value("chat_template", nlohmann::json());
  if (given.is_string() && is_default) return given.get<std::string>();
  if (given.is_array())
    for (const nlohmann::json& one : given)
      if (one.value("name", "") == name) return one.value("template", "");
  return {};
}

nlohmann::ordered_json read_token_texts(const std::string& folder) {
  const nlohmann::json config = read_object(folder + "/tokenizer_config.json");
  const nlohmann::json special = read_object(folder + "/special_tokens_map.json");
  nlohmann::ordered_json texts = nlohmann::ordered_json::object();
  for (const char* key : {"bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"}) {
    for (const nlohmann::json* file : {&special, &config}) {
      nlohmann::json token = file->value(key, nlohmann::json());
      if (token.is_object()) token = token.value("content", nlohmann::json());
      if (token.is_string()) texts[key] = token.get<std::string>();
    }
  }
  return texts;
}

}  // namespace octet
