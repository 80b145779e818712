// libFuzzer: any bytes either parse or throw octet::Error, and what parses prints to a text that prints the same.
#include <cstdlib>

#include "base/error.h"
#include "ir/text.h"
#include "ir/verify.h"

namespace {

template <typename Parsed>
void check_round_trip(Parsed (*parse)(std::string_view, const std::string&), std::string_view text) {
  std::string printed;
  try {
    Parsed parsed = parse(text, "fuzz");
    printed = octet::print(parsed);
    octet::verify(parsed);
  } catch (const octet::Error&) {
    if (printed.empty()) return;
  }
  if (octet::print(parse(printed, "printed")) != printed) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  check_round_trip(octet::parse_graph, text);
  check_round_trip(octet::parse_program, text);
  return 0;
}
