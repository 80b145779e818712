// YAML of task files as JSON, with the scalars of YAML 1.1 that PyYAML knows. A file's `include` is merged under it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace octet {

// Throws kInvalidArgument with `where` and line: damaged YAML, a key named twice, `!function` (a hook in Python).
nlohmann::ordered_json parse_task_yaml(const std::string& text, const std::string& where);
// Of a file, with what it includes (relative to it). Throws as above, and kNotFound.
nlohmann::ordered_json read_task_yaml(const std::string& path);

}  // namespace octet
