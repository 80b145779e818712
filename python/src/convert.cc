#include "convert.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace octet::python {
namespace {

constexpr int kMaxDepth = 64;

std::string type_of(nb::handle value) { return nb::cast<std::string>(value.type().attr("__name__")); }

nlohmann::ordered_json json_of(nb::handle value, const std::string& where, int depth) {
  using Json = nlohmann::ordered_json;
  check(depth < kMaxDepth, ErrorCode::kInvalidArgument, "{}: nested deeper than {} levels", where, kMaxDepth);
  if (value.is_none()) return nullptr;
  if (PyBool_Check(value.ptr())) return value.ptr() == Py_True;
  if (nb::isinstance<nb::str>(value)) return text_of(value);
  if (is_whole(value)) {
    const nb::object whole = nb::steal(PyNumber_Index(value.ptr()));
    if (!whole.is_valid()) throw nb::python_error();
    int overflow = 0;
    const int64_t number = PyLong_AsLongLongAndOverflow(whole.ptr(), &overflow);
    if (overflow != 0)
      fail(ErrorCode::kInvalidArgument, "{}: {} does not fit 64 bits", where, nb::cast<std::string>(nb::str(whole)));
    return number;
  }
  if (PyNumber_Check(value.ptr()) && PyObject_HasAttrString(value.ptr(), "__float__")) {
    const double number = PyFloat_AsDouble(value.ptr());
    if (number == -1 && PyErr_Occurred()) throw nb::python_error();
    return number;
  }
  if (nb::isinstance<nb::dict>(value)) {
    Json object = Json::object();
    for (const auto& [key, member] : nb::borrow<nb::dict>(value)) {
      if (!nb::isinstance<nb::str>(key) && !is_whole(key))
        fail(ErrorCode::kInvalidArgument, "{}: a key is of type {} (want str or int)", where, type_of(key));
      object[text_of(nb::str(key))] = json_of(member, where, depth + 1);
    }
    return object;
  }
  if (nb::isinstance<nb::list>(value) || nb::isinstance<nb::tuple>(value)) {
    Json list = Json::array();
    for (const nb::handle item : value) list.push_back(json_of(item, where, depth + 1));
    return list;
  }
  fail(ErrorCode::kInvalidArgument, "{} is of type {} (want None, bool, int, float, str, list or dict)", where,
       type_of(value));
}

const char* type_name(const SettingsTable::Target& target) {
  struct Name {
    const char* operator()(const bool*) const { return "bool"; }
    const char* operator()(const int64_t*) const { return "int"; }
    const char* operator()(const double*) const { return "float"; }
    const char* operator()(const std::string*) const { return "str"; }
    const char* operator()(const std::vector<std::string>*) const { return "Sequence[str]"; }
    const char* operator()(const uint8_t*) const { return "str"; }
  };
  return std::visit(Name{}, target);
}

std::string default_of(const SettingsTable::Row& row) {
  if (std::holds_alternative<bool*>(row.target)) return row.default_text == "true" ? "True" : "False";
  if (std::holds_alternative<int64_t*>(row.target) || std::holds_alternative<double*>(row.target))
    return row.default_text;
  if (std::holds_alternative<std::vector<std::string>*>(row.target)) return "()";
  return "'" + row.default_text + "'";
}

}  // namespace

nlohmann::ordered_json to_json(nb::handle value, const std::string& where) { return json_of(value, where, 0); }

nb::object to_python(const nlohmann::ordered_json& json) {
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::boolean: return nb::bool_(json.get<bool>());
    case nlohmann::ordered_json::value_t::number_integer: return nb::int_(json.get<int64_t>());
    case nlohmann::ordered_json::value_t::number_unsigned: return nb::int_(json.get<uint64_t>());
    case nlohmann::ordered_json::value_t::number_float: return nb::float_(json.get<double>());
    case nlohmann::ordered_json::value_t::string: {
      const auto& text = json.get_ref<const std::string&>();
      return nb::str(text.data(), text.size());
    }
    case nlohmann::ordered_json::value_t::array: {
      nb::list list;
      for (const nlohmann::ordered_json& item : json) list.append(to_python(item));
      return list;
    }
    case nlohmann::ordered_json::value_t::object: {
      nb::dict dict;
      for (const auto& [key, member] : json.items()) dict[key.c_str()] = to_python(member);
      return dict;
    }
    default: return nb::none();
  }
}

bool is_whole(nb::handle value) { return PyIndex_Check(value.ptr()) && !PyBool_Check(value.ptr()); }

std::vector<int32_t> ids_of(nb::handle value, const std::string& where) {
  std::vector<int32_t> ids;
  for (const nb::handle item : value) {
    if (!is_whole(item))
      fail(ErrorCode::kInvalidArgument, "{} has {} at {} (want token ids)", where,
           nb::cast<std::string>(nb::repr(item)), ids.size());
    const int64_t id = PyNumber_AsSsize_t(item.ptr(), nullptr);
    check(std::in_range<int32_t>(id), ErrorCode::kInvalidArgument, "{} has {} at {} (want token ids)", where, id,
          ids.size());
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

std::string text_of(nb::handle str) {
  Py_ssize_t size = 0;
  const char* bytes = PyUnicode_AsUTF8AndSize(str.ptr(), &size);
  if (bytes == nullptr) throw nb::python_error();  // lone surrogates
  return {bytes, static_cast<size_t>(size)};
}

std::string path_of(nb::handle path) {
  const nb::object text = nb::steal(PyOS_FSPath(path.ptr()));
  if (!text.is_valid()) throw nb::python_error();
  if (!nb::isinstance<nb::str>(text))
    fail(ErrorCode::kInvalidArgument, "a path is of type {} (want str)", type_of(text));
  return text_of(text);
}

std::string setting_text(nb::handle value, const std::string& where) {
  if (PyBool_Check(value.ptr())) return value.ptr() == Py_True ? "true" : "false";
  if (nb::isinstance<nb::str>(value)) return text_of(value);
  if (is_whole(value) || PyFloat_Check(value.ptr())) return text_of(nb::repr(nb::handle(value)));
  if (PyObject_HasAttrString(value.ptr(), "__fspath__")) return path_of(value);
  if (nb::isinstance<nb::list>(value) || nb::isinstance<nb::tuple>(value)) {
    std::string words;
    for (const nb::handle item : value) words += (words.empty() ? "" : ",") + setting_text(item, where);
    return words;
  }
  fail(ErrorCode::kInvalidArgument, "{} is of type {} (want bool, int, float, str or a list of these)", where,
       type_of(value));
}

void set_all(SettingsTable& table, nb::dict values, const std::string& where) {
  for (const auto& [key, value] : values) {
    const std::string name = text_of(key);
    bool own = false;
    for (const SettingsTable::Row& row : table.rows()) own |= row.info.by_program && row.name == name;
    check(!own, ErrorCode::kInvalidArgument, "{}: {} is set by the library", where, name);
    if (!value.is_none()) table.set(name, setting_text(value, where + ": " + name), where);
  }
}

std::string signature_of(const SettingsTable& table) {
  std::string text = ", *";
  for (const SettingsTable::Row& row : table.rows())
    if (!row.info.by_program) text += fmt::format(", {}: {} = {}", row.name, type_name(row.target), default_of(row));
  return text;
}

std::string doc_of(const SettingsTable& table) {
  std::string text;
  for (const SettingsTable::Row& row : table.rows()) {
    if (row.info.by_program) continue;
    std::string range = row.info.allowed();
    if (!row.info.choices.empty() && row.info.choices[0].empty()) range.clear();  // the meaning names them
    text += fmt::format("    {}: {}{}\n", row.name, row.info.meaning, range.empty() ? "" : " (" + range + ")");
  }
  return text;
}

}  // namespace octet::python
