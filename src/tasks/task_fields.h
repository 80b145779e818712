// The texts a task makes of a document: fields by their names, else templates (chat/) under Jinja2's StrictUndefined,
// of which lists and numbers are read as Python literals. As lm-evaluation-harness has it, rule by rule.
#pragma once

#include <map>
#include <memory>

#include "chat/chat_template.h"
#include "tasks/task_config.h"

namespace octet {

class TaskFields {
 public:
  // `fields`: names that the documents have; templates of `task` are parsed now. Throws kInvalidArgument as
  // ChatTemplate.
  TaskFields(const TaskConfig& task, std::vector<std::string> fields);

  // Throw kInvalidArgument for what a template raises or names and a document lacks.
  nlohmann::ordered_json text(const nlohmann::ordered_json& doc, const TaskForm& form) const;    // a text or number
  nlohmann::ordered_json target(const nlohmann::ordered_json& doc, const TaskForm& form) const;  // or a list
  std::vector<std::string> choices(const nlohmann::ordered_json& doc, const TaskForm& form) const;
  std::string prefix(const nlohmann::ordered_json& doc, const TaskForm& form) const;  // gen_prefix; empty: none
  std::string description(const nlohmann::ordered_json& doc) const;

 private:
  bool is_field(const std::string& name) const;
  std::string render(const std::string& source, const nlohmann::ordered_json& doc) const;
  void prepare(const nlohmann::ordered_json& spec);

  const TaskConfig& task_;
  std::vector<std::string> fields_;
  std::map<std::string, std::unique_ptr<const ChatTemplate>> templates_;  // by their text
};

}  // namespace octet
