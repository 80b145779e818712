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
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

namespace octet {

struct SettingInfo {
  std::string meaning;
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  std::vector<std::string> choices = {};  // for strings: the allowed values (empty = any); for enums: their names
  std::optional<double> off = {};         // for numbers: a value beyond the range that stands for none
  bool by_program = false;                // set by the program that owns the struct, by no flag

  bool allows(double value) const;
  std::string allowed(const char* to = "..") const;  // "1..64", "1..64 or 0", ">= 0", "one of: a, b" or ""
};

class SettingsTable {
 public:
  // The last: an enum of one byte, whose values 0, 1, .. have the names `choices`.
  using Target = std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*, uint8_t*>;
  struct Row {
    std::string name;
    Target target;
    SettingInfo info;
    std::string default_text;
  };

  // The field's value at registration is the default. `name` is dotted: "optimizer.lr".
  void add(std::string name, Target target, SettingInfo info);

  // Parses text into the field. Integers take 64k / 1M / 2_000 forms, bools true|false|yes|no|on|off|1|0.
  // Throws kInvalidArgument with the value, the range or choices, `where` (file:line or "command line") and, for an
  // unknown name, the nearest known one.
  void set(const std::string& name, const std::string& text, const std::string& where);

  void load_yaml_file(const std::string& path);  // nested maps become dotted names
  void load_yaml_text(const std::string& text, const std::string& where);
  void set_words(const std::vector<std::string>& words);  // "name=value" words of a command line
  void validate() const;                                  // throws for a field that holds what set() would refuse

  std::string get(const std::string& name) const;  // printed value
  std::string to_yaml() const;                     // all values; load_yaml_text reads it back
  std::string changed_line() const;                // "a=1 b=2": what differs from the defaults
  std::string help() const;                        // aligned text for --help
  std::string markdown() const;                    // table for docs/config.md
  std::vector<std::string> names() const;
  const std::vector<Row>& rows() const { return rows_; }
  Row& row(const std::string& name);  // such as to word its meaning for one command

 private:
  const Row* find(const std::string& name) const;
  std::vector<Row> rows_;
};

template <typename Enum>
requires std::is_same_v<std::underlying_type_t<Enum>, uint8_t> SettingsTable::Target enum_target(Enum* field) {
  return reinterpret_cast<uint8_t*>(field);
}

}  // namespace octet
