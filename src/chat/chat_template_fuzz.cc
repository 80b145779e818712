// libFuzzer: any bytes as a chat template either render or throw octet::Error, within the limits.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "chat/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto bindings = nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "system", "content": "You are é."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                 {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1.5}}}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "add_generation_prompt": true, "x": [3, 1, 2], "s": "a b<|c|>"})");
  const octet::RenderLimits limits{.steps = 50'000, .depth = 200, .output_bytes = 100'000, .memory_bytes = 8'000'000};
  try {
    const octet::ChatTemplate parsed({reinterpret_cast<const char*>(data), size}, "fuzz");
    parsed.render(bindings, {{"bos_token", "<s>"}}, 0, limits);
  } catch (const octet::Error&) {
  }
  return 0;
}
