#include "tasks/task_prompts.h"

#include <algorithm>

#include "base/error.h"
#include "tasks/python_text.h"

namespace octet {

using nlohmann::ordered_json;

namespace {

// With `delimiter` between them where neither has white space there.
std::string delimited(const std::string& first, const std::string& second, const std::string& delimiter) {
  if (first.empty() || second.empty()) return first + second;
  return ends_with_space(first) || begins_with_space(second) ? first + second : first + delimiter + second;
}

}  // namespace

TaskPrompts::TaskPrompts(const TaskConfig& task, const TaskDocuments& docs, int64_t shots, uint32_t seed,
                         RenderTurns chat)
    : task_(task), fields_(task, docs.fields), shots_(shots), random_(seed), chat_(std::move(chat)) {
  many_ = !task.form.choice.is_null() && fields_.text(docs.docs[0], task.form).is_number_integer();
  if (shots == 0) return;
  // The harness compares the two splits, which are equal where neither is named.
  without_own_ = task.fewshot_split == task.test_split;
  if (!task.fewshot_split && task.fewshot_samples) {
    pool_.assign(task.fewshot_samples->begin(), task.fewshot_samples->end());
  } else {
    const std::string& split = task.fewshot_split      ? *task.fewshot_split
                               : task.training_split   ? *task.training_split
                               : task.validation_split ? *task.validation_split
                                                       : *task.test_split;
    pool_ = split == task.eval_split() ? docs.docs : read_documents(task, split).docs;
  }
  const int64_t spare = without_own_ ? 1 : 0;
  check(std::ssize(pool_) >= shots + spare, ErrorCode::kInvalidArgument,
        "{}: {} shots, and their split has {} documents (want {} at least)", task.where, shots, pool_.size(),
        shots + spare);
}

std::vector<const ordered_json*> TaskPrompts::draw(const ordered_json& doc) {
  std::vector<const ordered_json*> drawn;
  const auto want = static_cast<size_t>(shots_);
  if (task_.sampler == "first_n") {
    for (size_t i = 0; i < pool_.size() && drawn.size() < want; ++i)
      if (!without_own_ || pool_[i] != doc) drawn.push_back(&pool_[i]);
  } else {
    for (const size_t i : random_.sample(pool_.size(), want + (without_own_ ? 1 : 0)))
      if (drawn.size() < want && (!without_own_ || pool_[i] != doc)) drawn.push_back(&pool_[i]);
    if (drawn.size() < want) {  // the pool has the document more than once
      drawn.clear();
      std::vector<const ordered_json*> others;
      for (const ordered_json& other : pool_)
        if (other != doc) others.push_back(&other);
      if (others.size() >= want)
        for (const size_t i : random_.sample(others.size(), want)) drawn.push_back(others[i]);
    }
  }
  check(drawn.size() == want, ErrorCode::kInvalidArgument,
        "{}: only {} documents other than the one asked about, for {} shots", task_.where, drawn.size(), want);
  return drawn;
}

std::string TaskPrompts::answer_of(const ordered_json& target, const std::vector<std::string>& choices,
                                   const std::string& where) {
  ordered_json answer = target.is_array() && !target.empty() ? ordered_json(target[0]) : target;
  if (answer.is_boolean()) answer = static_cast<int64_t>(answer.get<bool>());
  if (answer.is_number_integer() && !choices.empty()) {
    int64_t place = answer.get<int64_t>();
    if (place < 0) place += std::ssize(choices);
    check(place >= 0 && place < std::ssize(choices), ErrorCode::kInvalidArgument,
          "{}: a shot's target is {}, and there are {} choices", where, answer.dump(), choices.size());
    return choices[static_cast<size_t>(place)];
  }
  check(answer.is_string(), ErrorCode::kInvalidArgument,
        "{}: a shot's target is {} (want a text, or a choice's number)", where, answer.dump());
  return answer.get<std::string>();
}

void TaskPrompts::add_question(std::vector<Turn>& turns, std::string question, const std::string& prefix,
                               const std::string& delimiter) const {
  const bool apart = !prefix.empty() && !question.empty() && !ends_with_space(question) && !begins_with_space(prefix);
  turns.push_back({"user", std::move(question), apart ? delimiter : ""});
  if (!prefix.empty()) turns.push_back({"assistant", prefix, ""});
}

// A shot: its question and answer.
void TaskPrompts::add_turns(std::vector<Turn>& turns, const ordered_json& doc, const TaskForm& form) const {
  ordered_json question = fields_.text(doc, form);
  std::vector<std::string> choices;
  if (!form.choice.is_null()) choices = fields_.choices(doc, form);
  const std::string prefix = fields_.prefix(doc, form);
  const ordered_json target = fields_.target(doc, form);
  if (many_) {
    question = answer_of(question, choices, task_.where);
    choices.clear();
  }
  check(question.is_string(), ErrorCode::kInvalidArgument, "{}: doc_to_text gives no text: {}", task_.where,
        question.dump());
  if (target == "") return add_question(turns, question.get<std::string>(), prefix, form.target_delimiter);
  const bool apart = prefix.empty() || (question != "" && !ends_with_space(question.get_ref<const std::string&>()) &&
                                        !begins_with_space(prefix));
  turns.push_back({"user", question.get<std::string>(), apart ? form.target_delimiter : ""});
  turns.push_back(
      {"assistant", delimited(prefix, answer_of(target, choices, task_.where), " "), form.fewshot_delimiter});
}

std::string TaskPrompts::join(const std::vector<Turn>& turns, bool open) const {
  if (chat_) {
    ordered_json messages = ordered_json::array();
    for (const Turn& turn : turns) messages.push_back({{"role", turn.role}, {"content", turn.text}});
    return chat_(messages, open);
  }
  std::string text;
  for (const Turn& turn : turns) text += turn.text + turn.delimiter;
  return text;
}

std::vector<std::string> TaskPrompts::contexts(const ordered_json& doc) {
  std::vector<Turn> turns;
  if (std::string description = fields_.description(doc); !description.empty())
    turns.push_back({"system", std::move(description), ""});
  if (shots_ > 0)
    for (const ordered_json* shot : draw(doc)) add_turns(turns, *shot, task_.fewshot_form);
  const std::string prefix = fields_.prefix(doc, task_.form);
  std::vector<std::string> contexts;
  const auto finish = [&](std::vector<Turn> all, const std::string& question, const std::string& delimiter) {
    add_question(all, question, prefix, delimiter);
    contexts.push_back(join(all, prefix.empty()));
  };
  if (many_) {
    for (const std::string& choice : fields_.choices(doc, task_.form)) finish(turns, choice, "");
    return contexts;
  }
  const ordered_json question = fields_.text(doc, task_.form);
  check(question.is_string(), ErrorCode::kInvalidArgument, "{}: doc_to_text gives no text: {}", task_.where,
        question.dump());
  finish(turns, question.get<std::string>(), task_.form.target_delimiter);
  return contexts;
}

}  // namespace octet
