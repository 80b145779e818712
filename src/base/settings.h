// One table describes every setting: name, type, default, range, meaning. From it come parsing (YAML file, key=value
// words), --help, docs/config.md, the line printed at start and the record in a checkpoint.
//
// A struct of settings registers its fields once:
//   SettingsTable table;
//   table.add("train.steps", &config.steps, {.meaning = "optimiser steps", .min = 1});
// and the table then reads and prints that struct. An unknown key is an error that names the nearest one.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace octet {

struct SettingInfo {
  std::string meaning;
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  std::vector<std::string> choices = {};  // for strings: the allowed values (empty = any)
};

class SettingsTable {
 public:
  using Target = std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*>;

  // The field's value at registration is the default. `name` is dotted: "optimizer.lr".
  void add(std::string name, Target target, SettingInfo info);

  // Parses text into the field. Integers take 64k / 1M / 2_000 forms, bools true|false|yes|no|on|off|1|0.
  // Throws kInvalidArgument with the value, the range or choices, `where` (file:line or "command line") and, for an
  // unknown name, the nearest known one.
  void set(const std::string& name, const std::string& text, const std::string& where);

  void load_yaml_file(const std::string& path);  // nested maps become dotted names
  void load_yaml_text(const std::string& text, const std::string& where);
  void set_words(const std::vector<std::string>& words);  // "name=value" words of a command line

  std::string get(const std::string& name) const;  // printed value
  std::string to_yaml() const;                     // all values; load_yaml_text reads it back
  std::string changed_line() const;                // "a=1 b=2": what differs from the defaults
  std::string help() const;                        // aligned text for --help
  std::string markdown() const;                    // table for docs/config.md
  std::vector<std::string> names() const;

 private:
  struct Row {
    std::string name;
    Target target;
    SettingInfo info;
    std::string default_text;
  };
  const Row* find(const std::string& name) const;
  std::vector<Row> rows_;
};

}  // namespace octet
