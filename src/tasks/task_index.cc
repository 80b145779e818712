#include "tasks/task_index.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "tasks/task_yaml.h"

namespace octet {

using nlohmann::ordered_json;

namespace {

constexpr int kMaxDepth = 16;

struct Entry {
  ordered_json json;
  std::string where, folder;
  bool builtin = false;
};

bool is_yaml(const std::string& name) { return name.ends_with(".yaml") || name.ends_with(".yml"); }
bool is_group(const ordered_json& json) { return json.contains("task") && !json["task"].is_string(); }

std::string name_of(const ordered_json& json) {
  const char* key = is_group(json) ? "group" : "task";
  return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "";
}

class Index {
 public:
  explicit Index(std::string data) : data_(std::move(data)) {
    for (const auto& [name, json] : builtin_tasks()) entries_[name] = {json, name, data_, true};
  }

  std::string add_file(const std::string& path) {
    ordered_json json = read_task_yaml(path);
    std::string name = name_of(json);
    check(!name.empty(), ErrorCode::kInvalidArgument, "{}: no name (want task: NAME, or group: NAME and task: a list)",
          path);
    // Siblings that a group may name; those that cannot be read are said to be so only where one is asked for.
    const std::string folder = parent_folder(path);
    for (const std::string& file : list_folder(folder)) {
      if (!is_yaml(file) || folder + "/" + file == path) continue;
      try {
        ordered_json other = read_task_yaml(folder + "/" + file);
        if (const std::string known = name_of(other); !known.empty())
          entries_[known] = {std::move(other), folder + "/" + file, folder};
      } catch (const Error& error) {
        unread_.push_back(error.message());
      }
    }
    entries_[name] = {std::move(json), path, folder};
    return name;
  }

  void select(const std::string& name) { select_name(name, nullptr, 0); }
  TaskSelection take() { return std::move(selection_); }

 private:
  void select_name(const std::string& name, TaskGroup* group, int depth) {
    check(depth < kMaxDepth, ErrorCode::kInvalidArgument, "{}: groups nested deeper than {}", name, kMaxDepth);
    if (const auto found = entries_.find(name); found != entries_.end())
      return select_entry(found->second, group, depth);
    std::vector<std::string> tagged, names;
    for (const auto& [known, entry] : entries_) {
      names.push_back(known);
      const ordered_json tags = entry.json.value("tag", ordered_json());
      if (tags == name || (tags.is_array() && std::ranges::find(tags, ordered_json(name)) != tags.end()))
        tagged.push_back(known);
    }
    check(!tagged.empty(), ErrorCode::kNotFound, "no task '{}'{}{}: want a path of a YAML file, or one of {}", name,
          if_near(name, names, " (nearest: {})"),
          unread_.empty() ? "" : fmt::format(" (not read: {})", fmt::join(unread_, "; ")), shown_names());
    for (const std::string& one : tagged) select_name(one, group, depth + 1);
  }

  // MMLU's many are one word.
  std::string shown_names() const {
    std::vector<std::string> names;
    for (const auto& [name, json] : builtin_tasks())
      if (!name.starts_with("mmlu_")) names.push_back(name);
    return fmt::format("{}", fmt::join(names, ", "));
  }

  void select_entry(const Entry& entry, TaskGroup* group, int depth) {
    if (is_group(entry.json)) return select_group(entry, group, depth);
    add_task(entry, group);
  }

  void add_task(const Entry& entry, TaskGroup* group) {
    TaskConfig task = parse_task(entry.json, entry.where, entry.builtin);
    task.folder = entry.folder;
    if (!data_.empty()) task.other_folders = {data_ + "/" + task.name, data_};
    if (entry.builtin) {
      check(!data_.empty(), ErrorCode::kInvalidArgument,
            "{} is built in and reads files of its data set: --data DIR names their folder (docs/evaluation.md lists "
            "them)",
            task.name);
      if (task.name.starts_with("mmlu_")) task.other_folders.insert(task.other_folders.begin(), data_ + "/mmlu");
    }
    if (group != nullptr && std::ranges::find(group->tasks, task.name) == group->tasks.end())
      group->tasks.push_back(task.name);
    if (std::ranges::find(selection_.tasks, task.name, &TaskConfig::name) == selection_.tasks.end())
      selection_.tasks.push_back(std::move(task));
  }

  void select_group(const Entry& entry, TaskGroup* parent, int depth) {
    TaskGroup group = parse_group(entry);
    const ordered_json children = entry.json["task"];
    check(children.is_array() && !children.empty(), ErrorCode::kInvalidArgument, "{}: task: {} (want a list of names)",
          entry.where, children.dump());
    for (const ordered_json& child : children) {
      if (child.is_string()) {
        select_name(child.get<std::string>(), &group, depth + 1);
        continue;
      }
      check(child.is_object(), ErrorCode::kInvalidArgument, "{}: {} (want a task's name)", entry.where, child.dump());
      select_entry(changed(child, entry), &group, depth + 1);
    }
    if (parent != nullptr)
      for (const std::string& task : group.tasks)
        if (std::ranges::find(parent->tasks, task) == parent->tasks.end()) parent->tasks.push_back(task);
    if (std::ranges::find(selection_.groups, group.name, &TaskGroup::name) == selection_.groups.end())
      selection_.groups.push_back(std::move(group));
  }

  // A task or group written inside a group: whole, or a known task with other values.
  Entry changed(const ordered_json& child, const Entry& group) const {
    Entry entry{child, group.where + ": " + name_of(child), group.folder, group.builtin};
    const auto known = is_group(child) ? entries_.end() : entries_.find(name_of(child));
    if (known == entries_.end() || is_group(known->second.json)) return entry;
    entry.json = known->second.json;
    entry.json.update(child);
    entry.folder = known->second.folder;
    entry.builtin = known->second.builtin;
    return entry;
  }

  static TaskGroup parse_group(const Entry& entry) {
    TaskGroup group{.name = name_of(entry.json)};
    check(!group.name.empty(), ErrorCode::kInvalidArgument, "{}: a group without a name (want group: NAME)",
          entry.where);
    static const std::vector<std::string> kKnown = {"group",    "group_alias", "task", "aggregate_metric_list",
                                                    "metadata", "tag"};
    for (const auto& [key, value] : entry.json.items())
      check(std::ranges::find(kKnown, key) != kKnown.end(), ErrorCode::kInvalidArgument,
            "{}: unknown key '{}' of a group{}", entry.where, key, if_near(key, kKnown, " (nearest: {})"));
    group.alias = entry.json.value("group_alias", group.name);
    ordered_json metrics = entry.json.value("aggregate_metric_list", ordered_json::array());
    if (metrics.is_object()) metrics = ordered_json::array({metrics});
    for (const ordered_json& metric : metrics) {
      static const std::vector<std::string> kMembers = {"metric", "aggregation", "weight_by_size", "filter_list"};
      check(metric.is_object() && metric.value("metric", ordered_json()).is_string(), ErrorCode::kInvalidArgument,
            "{}: aggregate_metric_list: {} (want metric: NAME)", entry.where, metric.dump());
      for (const auto& [key, value] : metric.items())
        check(std::ranges::find(kMembers, key) != kMembers.end(), ErrorCode::kInvalidArgument,
              "{}: aggregate_metric_list: unknown key '{}'{}", entry.where, key,
              if_near(key, kMembers, " (nearest: {})"));
      const ordered_json aggregation = metric.value("aggregation", ordered_json("mean"));
      check(aggregation == "mean", ErrorCode::kInvalidArgument,
            "{}: aggregate_metric_list: aggregation: {} (want mean)", entry.where, aggregation.dump());
      const ordered_json weigh = metric.value("weight_by_size", ordered_json(true));
      check(weigh.is_boolean(), ErrorCode::kInvalidArgument, "{}: weight_by_size: {} (want true or false)", entry.where,
            weigh.dump());
      GroupMetric one{.name = metric["metric"].get<std::string>(), .weight_by_size = weigh.get<bool>()};
      ordered_json filters = metric.value("filter_list", ordered_json());
      if (filters.is_string()) filters = ordered_json::array({filters});
      for (const ordered_json& filter : filters) one.filters.push_back(filter.get<std::string>());
      group.metrics.push_back(std::move(one));
    }
    return group;
  }

  std::string data_;
  std::map<std::string, Entry> entries_;
  std::vector<std::string> unread_;  // why files of the folders are not known
  TaskSelection selection_;
};

}  // namespace

TaskSelection select_tasks(const std::vector<std::string>& names, const std::string& data) {
  Index index(data);
  std::vector<std::string> wanted;
  for (const std::string& name : names) {
    const bool file = is_yaml(name) || name.find('/') != std::string::npos;
    wanted.push_back(file ? index.add_file(name) : name);
  }
  for (const std::string& name : wanted) index.select(name);
  return index.take();
}

}  // namespace octet
