// Tasks run on a model: requests, replies, metrics; results and samples in lm-evaluation-harness's form.
#pragma once

#include "tasks/model_calls.h"
#include "tasks/task_index.h"
#include "tasks/task_prompts.h"

namespace octet {

struct TaskRunOptions {
  std::optional<int64_t> shots = {};  // instead of the files' num_fewshot, but where that is 0
  int64_t limit = 0;                  // documents of each task; 0: all
  RenderTurns chat = {};              // shots and questions as turns of a chat
  int64_t draws = 100'000;            // of bootstrapped errors; 0: no errors
  uint32_t seed = 1234;               // of few shots
  bool samples = true;                // TaskRun has them
};

struct TaskRun {
  nlohmann::ordered_json results;               // {task or group: {"alias", "sample_len", "acc,none": ...}}
  nlohmann::ordered_json groups;                // those of groups, again
  nlohmann::ordered_json shots;                 // {task: number}
  nlohmann::ordered_json higher_is_better;      // {task: {metric: flag}}
  nlohmann::ordered_json documents;             // {task: {"original", "effective"}}
  std::vector<nlohmann::ordered_json> samples;  // of each task, filter and document, in this order
};

// What will be asked, before a model is there: reads the documents and makes the prompts.
class TaskRunner {
 public:
  // Throws kInvalidArgument for what is wrong with tasks and documents.
  TaskRunner(const TaskSelection& selection, const TaskRunOptions& options);
  ~TaskRunner();
  int64_t requests() const;                        // texts that will be done
  nlohmann::ordered_json first_arguments() const;  // of the first document, as its sample will show them
  TaskRun run(ModelCalls& calls);

 private:
  struct Prepared;
  const TaskSelection& selection_;
  TaskRunOptions options_;
  std::vector<std::unique_ptr<Prepared>> tasks_;
};

// Turns by the chat template of a model's folder, as the harness renders them; throws kNotFound where there is none.
RenderTurns chat_turns(const std::string& folder);

}  // namespace octet
