// Documents of a task: files of JSON lines, JSON or CSV, as the package datasets reads them.
#pragma once

#include <memory>

#include "tasks/task_config.h"

namespace octet {

struct TaskDocuments {
  std::vector<nlohmann::ordered_json> docs;  // objects
  std::vector<std::string> fields;           // names that any of them has
  bool has(const std::string& field) const;
};

// The documents of a split. Throws kInvalidArgument with the file and line for what is no document, for no documents,
// and kNotFound with the places looked in.
TaskDocuments read_documents(const TaskConfig& task, const std::string& split);

// Parts of it: the documents of a file's text; `kwargs`: those of the task.
std::vector<nlohmann::ordered_json> parse_documents(const std::string& text, const std::string& format,
                                                    const nlohmann::ordered_json& kwargs, const std::string& where);
// What a built-in task makes of its documents; `path`: their file.
void apply_hook(TaskHook hook, std::vector<nlohmann::ordered_json>& docs, const std::string& path);
// WikiText's page as text that people write.
std::string wikitext_detokenized(const std::string& page);

}  // namespace octet
