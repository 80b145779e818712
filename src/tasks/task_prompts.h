// A document's prompt: description, few shots and question, as one text or as turns of a chat.
#pragma once

#include <functional>

#include "tasks/python_random.h"
#include "tasks/task_documents.h"
#include "tasks/task_fields.h"

namespace octet {

// Renders [{"role", "content"}]; `open`: a new turn of the assistant is begun, else its last one goes on.
using RenderTurns = std::function<std::string(const nlohmann::ordered_json& messages, bool open)>;

class TaskPrompts {
 public:
  // `shots`: the number of examples; `seed`: of the sampler. `chat`: empty, or turns are rendered by it.
  TaskPrompts(const TaskConfig& task, const TaskDocuments& docs, int64_t shots, uint32_t seed, RenderTurns chat);

  // The contexts of a document: one, or, where doc_to_text is a choice's number, one for each choice. Draws the shots:
  // to be called for the documents in their order.
  std::vector<std::string> contexts(const nlohmann::ordered_json& doc);

  const TaskFields& fields() const { return fields_; }
  bool contexts_differ() const { return many_; }  // in the choices: the target is what is scored
  bool chat() const { return static_cast<bool>(chat_); }

 private:
  struct Turn {
    std::string role, text, delimiter;
  };
  std::vector<const nlohmann::ordered_json*> draw(const nlohmann::ordered_json& doc);
  void add_turns(std::vector<Turn>& turns, const nlohmann::ordered_json& doc, const TaskForm& form) const;
  void add_question(std::vector<Turn>& turns, std::string question, const std::string& prefix,
                    const std::string& delimiter) const;
  std::string join(const std::vector<Turn>& turns, bool open) const;
  static std::string answer_of(const nlohmann::ordered_json& target, const std::vector<std::string>& choices,
                               const std::string& where);

  const TaskConfig& task_;
  TaskFields fields_;
  int64_t shots_;
  PythonRandom random_;
  RenderTurns chat_;
  std::vector<nlohmann::ordered_json> pool_;  // of the shots
  bool without_own_ = false;                  // a document is no shot of itself
  bool many_ = false;
};

}  // namespace octet
