// For tests: a folder with a task file and its data.
#pragma once

#include "base/file.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "tasks/task_evaluation.h"

namespace octet {

class TaskFolder {
 public:
  // Writes task.yaml: `yaml` behind a name and data files data.jsonl (test) and train.jsonl.
  explicit TaskFolder(const std::string& yaml, const std::string& data = "", const std::string& train = "") {
    write_file(folder_.file("data.jsonl"), data);
    write_file(folder_.file("train.jsonl"), train);
    write_file(path(),
               "task: t\ndataset_path: json\ndataset_kwargs: {data_files: {test: data.jsonl, train: "
               "train.jsonl}}\ntest_split: test\n" +
                   yaml);
  }
  std::string path() const { return folder_.file("task.yaml"); }
  std::string file(const std::string& name) const { return folder_.file(name); }
  TaskSelection select() const { return select_tasks({path()}, ""); }
  // What selecting the task and reading its documents fails with.
  std::string error() const {
    return error_of([&] {
      const TaskSelection selection = select();
      TaskRunner(selection, {});
    });
  }

 private:
  TempFolder folder_;
};

}  // namespace octet
