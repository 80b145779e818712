// libFuzzer: any bytes as tokenizer.model either load or throw octet::Error; what loads encodes any text, or says why
// not, and decodes every id.
#include "base/error.h"
#include "io/tokenizer_parts.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const std::string_view bytes(reinterpret_cast<const char*>(data), size);
    const auto tokenizer = octet::read_sentencepiece(bytes, "", "fuzz");
    for (const char* text : {"Hello, it's 42\xFF\xE2\x82 \n\n\t<s>", "  \xE4\xBD\xA0\xEF\xAC\x81 a  b ", ""}) {
      tokenizer->decode(tokenizer->encode(text));
      tokenizer->decode(tokenizer->encode(text, {.parse_special = true, .text_start = false}));
    }
    for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) tokenizer->decode(std::vector<int32_t>{id});
  } catch (const octet::Error&) {
  }
  return 0;
}
