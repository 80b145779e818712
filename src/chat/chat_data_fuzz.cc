// libFuzzer: any bytes as a chat record are either ids and a mask of them or throw octet::Error.
#include <cstdlib>

#include "base/error.h"
#include "chat/chat_data.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto tokenizer = [] {
    std::vector<std::string> characters;
    for (char c = ' '; c < 127; ++c) characters.emplace_back(1, c);
    return octet::make_character_tokenizer(characters);
  }();
  static const octet::ChatEncoder encoder(
      *tokenizer, "{% for m in messages %}{{ m.role }}:{{ m.content | trim }};{% endfor %}", "fuzz", {}, 0);
  try {
    const octet::ChatRecord record = octet::read_chat_record({reinterpret_cast<const char*>(data), size});
    if (record.is_pair()) {
      encoder.encode_pair(record);
      return 0;
    }
    const octet::ChatTokens tokens = encoder.encode(record);
    if (tokens.ids.size() != tokens.mask.size()) std::abort();
  } catch (const octet::Error&) {
  }
  return 0;
}
