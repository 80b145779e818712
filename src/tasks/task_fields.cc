#include "tasks/task_fields.h"

#include <algorithm>

#include "base/error.h"
#include "tasks/python_text.h"

namespace octet {

using nlohmann::ordered_json;

namespace {

std::string shown(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace).substr(0, 300);
}

}  // namespace

TaskFields::TaskFields(const TaskConfig& task, std::vector<std::string> fields)
    : task_(task), fields_(std::move(fields)) {
  for (const TaskForm* form : {&task.form, &task.fewshot_form})
    for (const ordered_json* spec : {&form->text, &form->target, &form->choice, &form->gen_prefix}) prepare(*spec);
  prepare(task.description);
}

void TaskFields::prepare(const ordered_json& spec) {
  if (!spec.is_string()) return;
  const auto& source = spec.get_ref<const std::string&>();
  if (is_field(source) || templates_.contains(source)) return;
  constexpr TemplateOptions kOptions{.trim_blocks = false, .lstrip_blocks = false, .strict_undefined = true};
  // A line end behind the template is kept; of two at the end the parser drops one.
  templates_[source] =
      std::make_unique<ChatTemplate>(source.ends_with('\n') ? source + "\n" : source, task_.where, kOptions);
}

bool TaskFields::is_field(const std::string& name) const { return std::ranges::find(fields_, name) != fields_.end(); }

std::string TaskFields::render(const std::string& source, const ordered_json& doc) const {
  return templates_.at(source)->render(doc, {}, 0).text;
}

ordered_json TaskFields::text(const ordered_json& doc, const TaskForm& form) const {
  if (!form.text.is_string()) return form.text;
  const auto& source = form.text.get_ref<const std::string&>();
  if (is_field(source)) return doc.at(source);
  std::string text = render(source, doc);
  if (!is_digits(text) || task_.form.choice.is_null()) return text;
  return python_literal(text).value_or(text);
}

ordered_json TaskFields::target(const ordered_json& doc, const TaskForm& form) const {
  if (!form.target.is_string()) return form.target;
  const auto& source = form.target.get_ref<const std::string&>();
  if (is_field(source)) return doc.at(source);
  std::string text = render(source, doc);
  const bool literal = (is_digits(text) && !task_.form.choice.is_null()) ||
                       (text.size() >= 2 && text.front() == '[' && text.back() == ']');
  return literal ? python_literal(text).value_or(text) : ordered_json(text);
}

std::vector<std::string> TaskFields::choices(const ordered_json& doc, const TaskForm& form) const {
  ordered_json list = form.choice;
  if (list.is_string()) {
    const auto& source = form.choice.get_ref<const std::string&>();
    if (is_field(source)) {
      list = doc.at(source);
    } else {
      const std::string text = render(source, doc);
      std::optional<ordered_json> value = python_literal(text);
      check(value && value->is_array(), ErrorCode::kInvalidArgument, "{}: doc_to_choice gives no list: {}", task_.where,
            text.substr(0, 300));
      list = std::move(*value);
    }
  }
  std::vector<std::string> texts;
  for (const ordered_json& choice : list) {
    check(choice.is_string(), ErrorCode::kInvalidArgument, "{}: a choice that is not a text: {}", task_.where,
          shown(list));
    texts.push_back(choice.get<std::string>());
  }
  check(!texts.empty(), ErrorCode::kInvalidArgument, "{}: a document without choices: {}", task_.where, shown(doc));
  return texts;
}

std::string TaskFields::prefix(const ordered_json& doc, const TaskForm& form) const {
  if (!form.gen_prefix.is_string()) return {};
  const auto& source = form.gen_prefix.get_ref<const std::string&>();
  return is_field(source) ? python_str(doc.at(source)) : render(source, doc);
}

std::string TaskFields::description(const ordered_json& doc) const {
  if (task_.description.empty()) return {};
  return is_field(task_.description) ? python_str(doc.at(task_.description)) : render(task_.description, doc);
}

}  // namespace octet
