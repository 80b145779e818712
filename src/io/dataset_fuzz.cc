// libFuzzer: any bytes as .idx either parse or throw octet::Error; what parses has documents that cover the tokens.
// The first eight bytes stand for the size of the .bin.
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "io/dataset.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 8) return 0;
  int64_t bin_bytes = 0;
  std::memcpy(&bin_bytes, data, 8);
  if (bin_bytes < 0) return 0;
  try {
    const std::string_view bytes(reinterpret_cast<const char*>(data) + 8, size - 8);
    const octet::IndexView view = octet::parse_index(bytes, bin_bytes, "fuzz");
    int64_t previous = 0;
    for (int64_t i = 0; i <= view.documents; ++i) {
      const int64_t begin = view.document_begin(i);
      if (begin < previous || begin > view.tokens) std::abort();
      previous = begin;
    }
    if (previous != view.tokens) std::abort();
  } catch (const octet::Error&) {
  }
  return 0;
}
