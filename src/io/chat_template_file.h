// Where a model's or vocabulary's folder holds its chat template, and the texts of special tokens that templates write.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace octet {

// The template called `name` ("default", "tool_use"), as transformers finds it: a file of its own
// (chat_template.jinja, additional_chat_templates/NAME.jinja), else in tokenizer_config.json, where one that has no
// name is the default. Empty: there is none. `path` becomes where it is. Throws kInvalidArgument for damaged files.
std::string find_chat_template(const std::string& folder, const std::string& name, std::string& path);

// bos_token, eos_token and the like, of special_tokens_map.json and tokenizer_config.json.
nlohmann::ordered_json read_token_texts(const std::string& folder);

}  // namespace octet
