// Tasks and groups by their names: those built in, and those of YAML files.
#pragma once

#include <map>

#include "tasks/task_config.h"

namespace octet {

struct GroupMetric {
  std::string name;
  std::vector<std::string> filters;  // empty: all that its tasks have
  bool weight_by_size = true;
};

struct TaskGroup {
  std::string name, alias;
  std::vector<std::string> tasks;  // all tasks below it, each once
  std::vector<GroupMetric> metrics;
};

struct TaskSelection {
  std::vector<TaskConfig> tasks;  // each once, in the order asked for
  std::vector<TaskGroup> groups;  // a group behind those in it
};

// `names`: of built-in tasks, groups and tags, or paths of YAML files, of which the folder's other files are known by
// name too. `data`: the folder of the files that built-in tasks read, and tried first by others where it is not empty.
// Throws kNotFound with the nearest name.
TaskSelection select_tasks(const std::vector<std::string>& names, const std::string& data);

// Configurations of tasks and groups that are built in, by name. Their data_files are names in the folder `data`.
const std::map<std::string, nlohmann::ordered_json>& builtin_tasks();

}  // namespace octet
