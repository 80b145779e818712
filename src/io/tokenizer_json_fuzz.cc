// libFuzzer: any bytes as tokenizer.json either load or throw octet::Error; what loads encodes and decodes.
#include <cstdlib>

#include "base/error.h"
#include "io/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const std::string_view json(reinterpret_cast<const char*>(data), size);
    const auto tokenizer = octet::parse_tokenizer_json(json, "fuzz");
    const std::string text = "Hello, it's 42\xFF\xE2\x82 \n\n\t<|endoftext|>";
    const auto ids = tokenizer->encode(text);
    if (tokenizer->byte_level() && tokenizer->decode(ids) != text) std::abort();
  } catch (const octet::Error&) {
  }
  return 0;
}
