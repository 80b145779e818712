// libFuzzer: any bytes as a schema, regex, grammar or tools (by the first byte) make a guide or throw octet::Error; a
// text under the guide takes what its mask allows.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "chat/call_guide.h"
#include "chat/reply_parser.h"
#include "chat/token_trie.h"

namespace {

std::shared_ptr<const octet::Guide> calls(std::string_view source, uint8_t rules, const octet::GuideLimits& limits) {
  auto tools = nlohmann::ordered_json::parse(source, nullptr, false);
  if (tools.is_discarded()) tools = nullptr;
  return octet::call_guide({.format = octet::reply_formats()[rules % 5], .required = rules % 2 == 0}, tools, limits);
}

}  // namespace

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
    const auto guide = data[0] % 4 == 0   ? octet::json_schema_guide(source, limits)
                       : data[0] % 4 == 1 ? octet::regex_guide(source, limits)
                       : data[0] % 4 == 2 ? octet::grammar_guide(source, limits)
                                          : calls(source, uint8_t(data[0] / 4), limits);
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
