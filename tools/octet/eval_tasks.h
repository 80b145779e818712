// octet eval MODEL --tasks: options and the run.
#pragma once

#include <string>
#include <vector>

#include "octet/engine.h"

namespace CLI {
class App;
}

namespace octet {

struct TaskOptions {
  std::vector<std::string> names;
  std::string samples;
  int64_t shots = -1, max_length = 0, limit = 0, bootstrap = 100'000;
  bool chat = false;
};

// --tasks and what goes with it. Call it when the command has its other options: those in `others` are refused with
// --tasks.
void add_task_options(CLI::App& command, TaskOptions& options, const std::vector<std::string>& others);

// `data`: the folder of built-in tasks' files. `json`: the results go to standard output as JSON, or to the file
// `json_file` where it is not empty.
void run_tasks(const TaskOptions& options, const std::string& model, EngineOptions engine, const std::string& data,
               bool json, const std::string& json_file);

}  // namespace octet
