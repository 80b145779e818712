// libFuzzer: any bytes as a line are taken or refused; what is taken can be unescaped, repaired, quoted and read again.
#include <cstdlib>

#include "base/error.h"
#include "corpus/json_line.h"
#include "corpus/repair_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const std::string_view line(reinterpret_cast<const char*>(data), size);
    std::string buffer, repaired, again, quoted = "{\"text\":";
    const octet::JsonLine found = octet::scan_json_line(line, "text", "id", "fuzz");
    octet::repair_text(octet::unescape_json(found.text, buffer), repaired);
    octet::append_json_string(quoted, repaired);
    quoted += '}';
    if (octet::unescape_json(octet::scan_json_line(quoted, "text", "id", "again").text, again) != repaired)
      std::abort();
  } catch (const octet::Error&) {
  }
  return 0;
}
