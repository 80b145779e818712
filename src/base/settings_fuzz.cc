// libFuzzer: any text either loads into a settings table or throws octet::Error; what loaded prints and loads again.
#include <cstdlib>

#include "base/error.h"
#include "base/settings.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  bool flag = false;
  int64_t integer = 1;
  double number = 0.5;
  std::string text = "a";
  std::vector<std::string> list;
  octet::SettingsTable table;
  table.add("a.flag", &flag, {.meaning = "flag"});
  table.add("a.integer", &integer, {.meaning = "integer", .min = -5, .max = 1e12});
  table.add("b.c.number", &number, {.meaning = "number"});
  table.add("text", &text, {.meaning = "text"});
  table.add("list", &list, {.meaning = "list"});
  try {
    table.load_yaml_text(std::string(reinterpret_cast<const char*>(data), size), "fuzz");
  } catch (const octet::Error&) {
    return 0;
  }
  const std::string yaml = table.to_yaml();
  table.load_yaml_text(yaml, "printed");
  if (table.to_yaml() != yaml) std::abort();
  return 0;
}
