// Values between Python, JSON and the settings tables.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/settings.h"

namespace octet::python {

namespace nb = nanobind;

// None, bool, int, float, str, lists, tuples and dicts, whose keys may be whole numbers; anything else is an error that
// names `where`.
nlohmann::ordered_json to_json(nb::handle value, const std::string& where);
nb::object to_python(const nlohmann::ordered_json& json);

// A sequence of whole numbers that fit 32 bits, of Python or an array; `where` names it in errors.
std::vector<int32_t> ids_of(nb::handle value, const std::string& where);
bool is_whole(nb::handle value);       // int or what stands for one, no bool
std::string text_of(nb::handle str);   // UTF-8 of a str
std::string path_of(nb::handle path);  // of a str or os.PathLike

// Sets rows by name; None leaves a row as it is. `where`: "octet.Engine". Throws as SettingsTable::set().
void set_all(SettingsTable& table, nb::dict values, const std::string& where);
std::string setting_text(nb::handle value, const std::string& where);

// Of the rows that are not the program's own: ", *, device: str = 'auto', ..." and "device: str\n    meaning".
std::string signature_of(const SettingsTable& table);
std::string doc_of(const SettingsTable& table);

}  // namespace octet::python
