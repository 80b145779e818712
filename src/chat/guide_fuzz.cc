// libFuzzer: any bytes as a schema, regex or grammar (by the first byte) make a guide or throw octet::Error; a text
// under the guide takes what its mask allows.
#include <cstdlib>

#include "base/error.h"
#include "chat/guide.h"
#include "chat/token_trie.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto trie = [] {
    std::vector<std::string> tokens = {"{\"", "\": ", ", \"", "true", "12", "ab"};
    for (int b = 1; b < 256; b++) tokens.push_back(std::string(1, char(b)));
    return std::make_shared<const octet::TokenTrie>(std::move(tokens));
  }();
  if (size == 0) return 0;
  const std::string_view source(reinterpret_cast<const char*>(data) + 1, size - 1);
  const octet::GuideLimits limits{.states = 20'000, .steps = 100'000};
  try {
    const auto guide = data[0] % 3 == 0   ? octet::json_schema_guide(source, limits)
                       : data[0] % 3 == 1 ? octet::regex_guide(source, limits)
                                          : octet::grammar_guide(source, limits);
    octet::GuideState state(guide, trie);
    for (size_t step = 0; step < 20; step++) {
      std::vector<uint32_t> bits(size_t(trie->words()), ~0u);
      state.mask(bits);
      std::vector<int32_t> tokens;
      for (int32_t token = 0; token < trie->vocab_size(); token++)
        if ((bits[size_t(token / 32)] >> (token % 32) & 1) != 0) tokens.push_back(token);
      if (tokens.empty()) break;
      if (!state.accept(tokens[(data[step % size] + step) % tokens.size()])) std::abort();
    }
    state.rollback(1);
  } catch (const octet::Error&) {
  }
  return 0;
}
